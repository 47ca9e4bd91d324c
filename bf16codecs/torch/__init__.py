"""Model stores in PyTorch: `safetensors.torch`, models of transformers, pipelines of diffusers."""

from typing import TYPE_CHECKING

from bf16codecs._base.lazy import lazy_names
from bf16codecs._base.torch_tensors import as_tensor
from bf16codecs.model.following import follow
from bf16codecs.model.patching import patch_safetensors, unpatch_safetensors
from bf16codecs.torch.files import load_file, load_model, save_file, save_model
from bf16codecs.torch.loading import load_into
from bf16codecs.torch.patching import patch_transformers, unpatch_transformers
from bf16codecs.torch.pipelines import patch_diffusers, unpatch_diffusers
from bf16codecs.torch.pretrained import from_pretrained

if TYPE_CHECKING:
    from bf16codecs.torch.publishing import publish
    from bf16codecs.torch.training import RunCallback

__all__ = [
    "RunCallback",
    "as_tensor",
    "follow",
    "from_pretrained",
    "load_file",
    "load_into",
    "load_model",
    "patch_diffusers",
    "patch_safetensors",
    "patch_transformers",
    "publish",
    "save_file",
    "save_model",
    "unpatch_diffusers",
    "unpatch_safetensors",
    "unpatch_transformers",
]

# The callback's module imports transformers, and publishing torch.distributed, which takes a while;
# the other functions import transformers when they are called.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bf16codecs.torch.publishing": "publish",
        "bf16codecs.torch.training": "RunCallback",
    },
)
