"""`safetensors.safe_open`, for model stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bf16codecs.model.model import Model

__all__ = ["safe_open"]

_BACKENDS = ("mmap", "pread")


class safe_open(Model):
    """Open a model as `safetensors.safe_open` opens a file: code that takes one takes the other.

    It has the methods of that one, which give the same, and all of `Model` besides. A tensor that
    is missing is a `KeyError`, and one of a model that is closed a `ValueError`.

    Parameters
    ----------
    filename
        Whatever `open_model` opens, safetensors files too.
    framework : {"pt", "numpy"}
        Of the tensors; ``"torch"`` and ``"np"`` mean the same.
    device
        Of PyTorch's tensors.
    backend : {"mmap", "pread"}
        Accepted, and without effect: stores are read, not mapped.
    storage_options, max_bytes, base
        As `open_model` takes them.

    Raises
    ------
    FileNotFoundError, bf16codecs.store.StoreError, ValueError
        As `open_model` does, and if there is no such backend.

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
        if backend not in _BACKENDS:
            raise ValueError(f"backend must be {' or '.join(_BACKENDS)}, not {backend!r:.80}")
        super().__init__(filename, storage_options, max_bytes, base, framework, device)

    def keys(self) -> list[str]:
        """Return the tensors' names in alphabetical order."""
        return sorted(super().keys())

    def offset_keys(self) -> list[str]:
        """Return the tensors' names in the order of their data."""
        return super().keys()

    def get_tensors(self) -> dict[str, Any]:
        """Read all tensors, in the order of their data."""
        return self.load(names=self.offset_keys())
