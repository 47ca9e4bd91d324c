"""Models whose tensors are read when they are indexed."""

from bf16codecs.errors import TensorNotFoundError
from bf16codecs.model.as_safetensors import safe_open
from bf16codecs.model.info import Info
from bf16codecs.model.model import Model, open_model
from bf16codecs.model.run import Run, RunTensor, open_run
from bf16codecs.model.tensor import LazyTensor

__all__ = [
    "Info",
    "LazyTensor",
    "Model",
    "Run",
    "RunTensor",
    "TensorNotFoundError",
    "open_model",
    "open_run",
    "safe_open",
]
