"""Slices of tensors for PyTorch, as `safetensors.safe_open` gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bf16codecs.model.tensor import LazyTensor

if TYPE_CHECKING:
    import torch

__all__ = ["TorchSlice"]


class TorchSlice:
    """A tensor of a model whose selections are tensors of PyTorch; `Model.get_slice` makes it.

    Index it as a `LazyTensor`.
    """

    def __init__(self, tensor: LazyTensor, device: Any = None) -> None:
        self._tensor, self._device = tensor, device

    def get_shape(self) -> list[int]:
        """Return the shape."""
        return self._tensor.get_shape()

    def get_dtype(self) -> str:
        """Return the dtype by its name in safetensors."""
        return self._tensor.get_dtype()

    def __getitem__(self, selection: Any) -> torch.Tensor:
        from bf16codecs._torch_tensors import as_tensor

        array = np.asarray(self._tensor[selection])  # of one item, it is a scalar
        return as_tensor(array, self.get_dtype()).to(self._device or "cpu")

    def __len__(self) -> int:
        return len(self._tensor)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._tensor!r})"
