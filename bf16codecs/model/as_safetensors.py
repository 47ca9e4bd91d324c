"""`safetensors.safe_open`, for model stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bf16codecs.model.frameworks import Slice, read_array
from bf16codecs.model.model import Model
from bf16codecs.model.tensor import LazyTensor

__all__ = ["check_backend", "safe_open"]

_BACKENDS = ("mmap", "pread")


def check_backend(backend: str) -> None:
    """Refuse a backend that safetensors does not know."""
    if backend not in _BACKENDS:
        raise ValueError(f"backend must be {' or '.join(_BACKENDS)}, not {backend!r:.80}")


class safe_open(Model):
    """A replacement of `safetensors.safe_open` that opens any model.

    It has the methods of that class, with the same results, and those of `Model`. It raises the
    errors of `Model` instead of `SafetensorError`: `KeyError` for a missing tensor, `ValueError`
    for a closed model, and `IndexError` for an invalid selection.

    Parameters
    ----------
    filename
        Any source of `open_model`, including safetensors files.
    framework : {"pt", "numpy", "flax"}
        The framework of the tensors; ``"torch"``, ``"np"`` and ``"jax"`` mean the same. TensorFlow,
        MLX and Paddle are not supported.
    device
        The device of PyTorch's tensors.
    backend : {"mmap", "pread"}
        Has no effect: stores are read, not mapped.
    storage_options, max_bytes, base
        See `open_model`.

    Raises
    ------
    FileNotFoundError, bf16codecs.store.StoreError, ValueError
        See `open_model`; ValueError also for an unknown backend.

    Examples
    --------
    >>> import bf16codecs, importlib.resources
    >>> path = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
    >>> with bf16codecs.safe_open(path, framework="numpy") as f:
    ...     f.get_slice("model.norm.weight")[:3]
    array([1.125, 1.14062, 1.13281], dtype=bfloat16)
    """

    def __init__(
        self,
        filename: Any,
        framework: str = "pt",
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        storage_options: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
        base: Any = None,
    ) -> None:
        check_backend(backend)
        super().__init__(filename, storage_options, max_bytes, base, framework, device)

    def keys(self) -> list[str]:
        """Return the tensors' names in alphabetical order."""
        return sorted(self.offset_keys())

    def offset_keys(self) -> list[str]:
        """Return the tensors' names in the order of their data."""
        _ = self._handle.opened  # raises if it is closed, as safetensors does
        return super().keys()

    def get_slice(
        self, name: str, framework: str | None = None, device: Any = None
    ) -> LazyTensor | Slice:
        """Return a lazy tensor; a selection of one item is also an array."""
        tensor = super().get_slice(name, framework, device)
        return Slice(tensor, read_array) if isinstance(tensor, LazyTensor) else tensor

    def get_tensors(self) -> dict[str, Any]:
        """Read all tensors, in the order of their data."""
        return self.load(names=self.offset_keys())
