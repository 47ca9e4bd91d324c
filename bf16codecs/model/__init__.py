"""Models whose tensors are read when they are indexed."""

from bf16codecs.errors import TensorNotFoundError
from bf16codecs.model.model import Model, open_model
from bf16codecs.model.tensor import LazyTensor

__all__ = ["LazyTensor", "Model", "TensorNotFoundError", "open_model"]
