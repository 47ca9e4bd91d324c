"""PyTorch: the functions of `safetensors.torch`, for model stores."""

from bf16codecs._torch_tensors import as_tensor
from bf16codecs.torch.files import load_file, save_file
from bf16codecs.torch.modules import load_model, save_model

__all__ = ["as_tensor", "load_file", "load_model", "save_file", "save_model"]
