"""PyTorch: the functions of `safetensors.torch`, for model stores."""

from bf16codecs._torch_tensors import as_tensor
from bf16codecs.torch.files import load_file, save_file

__all__ = ["as_tensor", "load_file", "save_file"]
