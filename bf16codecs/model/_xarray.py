"""Tensors of a run as an xarray dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from bf16codecs.model.tensor import LazyTensor

__all__ = ["STEP", "as_dataset"]

#: Name of the coordinate.
STEP = "step"


class _Array(BackendArray):
    """A lazy array of xarray's, backed by a tensor."""

    def __init__(self, tensor: LazyTensor) -> None:
        self._tensor = tensor
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> NDArray[Any]:
        # Several index arrays select points in NumPy, and boxes in xarray.
        support = indexing.IndexingSupport.OUTER_1VECTOR
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        return np.asarray(self._tensor[key])


def as_dataset(tensors: Mapping[str, LazyTensor], steps: Sequence[int]) -> xarray.Dataset:
    """Return tensors whose first axis is the step as variables that are read lazily."""
    variables = {
        name: xarray.Variable(
            [STEP, *(f"dim{axis}_{size}" for axis, size in enumerate(tensor.shape[1:]))],
            indexing.LazilyIndexedArray(_Array(tensor)),
        )
        for name, tensor in tensors.items()
    }
    return xarray.Dataset(variables, coords={STEP: np.asarray(steps, np.int64)})
