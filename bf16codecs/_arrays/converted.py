"""An array of one data type, read as if it were stored as another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.array import ArrayReader, Index, Points
from bf16codecs._arrays.indexing import Axis
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.half import from_bfloat16, from_half, round_to_bfloat16

__all__ = ["ConvertedArray", "rounded_array", "widened_array"]


class ConvertedArray(ArrayReader):
    """An array whose items are converted when they are read.

    Parameters
    ----------
    array
        What is converted.
    dtype
        Its data type after that.
    convert
        Converts items, given in C order and of any shape, to items of `dtype`, or their bits.
    """

    def __init__(
        self,
        array: ArrayReader,
        dtype: np.dtype[Any],
        convert: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> None:
        super().__init__(array.label, array.shape, dtype, array.chunks, array._unit)
        self._array, self._convert = array, convert
        self.decoded_nbytes, self.concurrency = array.decoded_nbytes, array.concurrency
        self.reads_ranges, self.versions = array.reads_ranges, array.versions

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
        values = np.empty(out.shape, self._array.dtype)
        self._array._read_box(index, found, axes, values)
        out[...] = self._convert(values).view(self.dtype)

    def _read_points(self, index: Index, found: Any, points: Points) -> NDArray[Any]:
        values = self._array._read_points(index, found, points)
        return self._convert(np.ascontiguousarray(values)).view(self.dtype)

    def _read_unit(self, index: Index, out: Bytes) -> None:
        values = np.empty(out.size // self.dtype.itemsize, self._array.dtype)
        self._array._read_unit(index, values.view(np.uint8))
        out.view(self.dtype)[:] = self._convert(values).view(self.dtype)


def rounded_array(array: ArrayReader) -> ConvertedArray:
    """Return a float32 array rounded to bfloat16: see `round_to_bfloat16`."""
    return ConvertedArray(array, np.dtype(ml_dtypes.bfloat16), round_to_bfloat16)


def widened_array(array: ArrayReader) -> ConvertedArray:
    """Return a bfloat16 or float16 array as float32, which has all of its numbers."""
    convert = from_half if array.dtype == np.float16 else from_bfloat16
    return ConvertedArray(array, np.dtype(np.float32), convert)
