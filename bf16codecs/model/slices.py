"""Slices of tensors for other frameworks, as `safetensors.safe_open` gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bf16codecs.model.tensor import LazyTensor

__all__ = ["Slice"]


class Slice:
    """A tensor of a model whose selections are of a framework; `Model.get_slice` makes it.

    Index it as a `LazyTensor`.

    Parameters
    ----------
    tensor
        The tensor.
    read
        Reads a selection of it.
    """

    def __init__(self, tensor: LazyTensor, read: Callable[[LazyTensor, Any], Any]) -> None:
        self._tensor, self._read = tensor, read

    def get_shape(self) -> list[int]:
        """Return the shape."""
        return self._tensor.get_shape()

    def get_dtype(self) -> str:
        """Return the dtype by its name in safetensors."""
        return self._tensor.get_dtype()

    def __getitem__(self, selection: Any) -> Any:
        return self._read(self._tensor, selection)

    def __len__(self) -> int:
        return len(self._tensor)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._tensor!r})"
