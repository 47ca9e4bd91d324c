"""The rounding of an FP32 array to BF16, read as if it were stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from bf16codecs._buffers import Bytes
from bf16codecs._chunks.array import ArrayReader, Index, Points
from bf16codecs._chunks.indexing import Axis

__all__ = ["RoundedArray", "round_to_bfloat16"]

_QUIET = np.uint16(0x40)


def round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; of a NaN, keep the upper half and make it quiet.

    Parameters
    ----------
    values
        In C order, of any shape.

    Returns
    -------
    ndarray of uint16
        The bits of the bfloat16 numbers, of the same shape. Not ml_dtypes' conversion, which drops
        what a NaN holds.
    """
    bits = values.view(np.uint32)
    upper = bits >> 16
    rounded = ((upper & 1) + np.uint32(0x7FFF) + bits) >> 16
    result = rounded.astype(np.uint16)
    is_nan = np.isnan(values)
    if is_nan.any():
        result[is_nan] = upper[is_nan].astype(np.uint16) | _QUIET
    return result


class RoundedArray(ArrayReader):
    """The rounding of an FP32 array: see `round_to_bfloat16`.

    Parameters
    ----------
    array
        What is rounded.
    """

    def __init__(self, array: ArrayReader) -> None:
        super().__init__(
            array.label, array.shape, np.dtype(ml_dtypes.bfloat16), array.chunks, array._unit
        )
        self._array = array
        self.decoded_nbytes, self.concurrency = array.decoded_nbytes, array.concurrency
        self.reads_ranges = array.reads_ranges

    @property
    def scratch_nbytes(self) -> int:
        """How much memory reading a chunk takes beside what it is read into."""
        return self._array.scratch_nbytes + self._array.unit_nbytes

    def points_work(self, indices: Sequence[NDArray[np.intp]]) -> int:
        """Return how many bytes are decoded to read single elements."""
        return self._array.points_work(indices)

    def _chunk_work(self, axes: Sequence[Axis]) -> int:
        return self._array._chunk_work(axes)

    def _find(self, index: Index) -> Any:
        return self._array._find(index)

    def _read_box(self, index: Index, found: Any, axes: Sequence[Axis], out: NDArray[Any]) -> None:
        values = np.empty(out.shape, np.float32)
        self._array._read_box(index, found, axes, values)
        out[...] = round_to_bfloat16(values).view(self.dtype)

    def _read_points(self, index: Index, found: Any, points: Points) -> NDArray[Any]:
        values = self._array._read_points(index, found, points)
        return round_to_bfloat16(np.ascontiguousarray(values)).view(self.dtype)

    def _read_unit(self, index: Index, out: Bytes) -> None:
        values = np.empty(out.size // self.dtype.itemsize, np.float32)
        self._array._read_unit(index, values.view(np.uint8))
        out.view(np.uint16)[:] = round_to_bfloat16(values)
