"""Arrays made of others: converted ones, one step of an array, and steps of several as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import groupby
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._arrays.array import (
    ArrayReader,
    ChunkedArray,
    Job,
    Located,
    Points,
    RangeReader,
    UnitArray,
    Work,
)
from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex, chunk_counts, grid_indices
from bf16codecs._arrays.indexing import Axis
from bf16codecs._base.buffers import Bytes, row_of
from bf16codecs._base.device_memory import Memory
from bf16codecs._base.half import from_bfloat16, from_half, round_to_bfloat16
from bf16codecs.codecs.growing import directory_nbytes

__all__ = ["StepView", "StepsArray", "grid_job", "rounded_array", "step_nbytes", "widened_array"]


class StepView(UnitArray):
    """One step of an array, by its position on the first axis."""

    def __init__(self, array: UnitArray, position: int) -> None:
        super().__init__(
            array.label, array.shape[1:], array.dtype, array.chunks[1:], array._unit[1:]
        )
        self._array = array
        #: In which unit along the first axis, and where in it.
        self._group, self._local = divmod(position, array._unit[0])
        self.concurrency, self.reads_ranges = array.concurrency, array.reads_ranges

    def against(self, position: int, values: RangeReader) -> StepView | None:
        """Return this step, decoded against an earlier one whose values are at hand.

        The result is None if the other is not in the same chunks, or these are decoded whole, or it
        is this step.
        """
        array, (group, known) = self._array, divmod(position, self._array._unit[0])
        if not isinstance(array, ChunkedArray) or array.versions == 1:
            return None
        if group != self._group or known >= self._local:
            return None
        view = copy(self)
        view._array = array.against(known, values)
        return view

    @property
    def can_log(self) -> bool:
        """Whether `logging` is possible: see `ChunkedArray`."""
        plan = ArrayPlan(self.label, self.dtype.name, self.shape, self.chunks)
        return plan.is_contiguous and self.decodes_ranges

    def logging(self, log: _core.UndoLog) -> StepView:
        """Return this step, which logs what memory had before chunks were decoded to it."""
        assert isinstance(self._array, ChunkedArray)
        view = copy(self)
        view._array = self._array.logging(log)
        return view

    def base_jobs(self) -> Iterator[Job]:
        """Yield jobs that compare values at hand with what the step is coded against."""
        array = self._array
        assert isinstance(array, ChunkedArray)
        return array.base_jobs(self._group * array.versions + self._local)

    @property
    def scratch_nbytes(self) -> int:
        """How much memory reading a chunk takes beside what it is read into."""
        return self._array.scratch_nbytes

    @property
    def decodes_ranges(self) -> bool:
        """Whether `read_chunk` gives the step's bytes."""
        return isinstance(self._array, ChunkedArray) and self._array.decodes_ranges

    def read_chunk(
        self,
        index: ChunkIndex,
        located: Located | None,
        box: tuple[slice, ...],
        out: Memory,
        offset: int,
    ) -> None:
        """Read a box of the step's part of a chunk: see `ChunkedArray`."""
        array, local = self._array, self._local
        assert isinstance(array, ChunkedArray)
        offset += local * (array.unit_nbytes // array.chunks[0])
        box = (slice(local, local + 1), *box)
        array.read_chunk((self._group, *index), located, box, out, offset)

    def _axes(self, axes: Sequence[Axis]) -> list[Axis]:
        return [range(self._local, self._local + 1), *axes]

    def _chunk_work(self, axes: Sequence[Axis]) -> int:
        return self._array._chunk_work(self._axes(axes))

    def _find(self, index: ChunkIndex) -> Located | None:
        return self._array._find((self._group, *index))

    def _read_box(
        self, index: ChunkIndex, located: Located | None, axes: Sequence[Axis], out: NDArray[Any]
    ) -> None:
        self._array._read_box((self._group, *index), located, self._axes(axes), out[np.newaxis])

    def _read_points(
        self, index: ChunkIndex, located: Located | None, points: Points
    ) -> NDArray[Any]:
        first = np.full_like(points[0], self._local)
        return self._array._read_points((self._group, *index), located, (first, *points))


def step_nbytes(array: UnitArray, position: int) -> int:
    """Return how many bytes the frames of one step take in the chunks of an array.

    A chunk that is not a growing frame, written by other software, counts by an even share.
    """
    group, version = divmod(position, array.chunks[0])
    total = 0
    counts = chunk_counts(array.shape[1:], array.chunks[1:])
    for index in grid_indices(counts):
        located = array._find((group, *index))
        if not isinstance(located, Located):
            return 0
        with located.storage.open(located.key) as stored:
            (head,) = stored.read([(0, directory_nbytes(array.chunks[0]))])
            if not _core.is_growing(head):
                total += (stored.size or 0) // array.chunks[0]
                continue
        directory = _core.GrowingIndex(head)
        ends = [directory.directory_size, *directory.ends]
        total += ends[version + 1] - ends[version] if version + 1 < len(ends) else 0
    return total


def grid_job(array: UnitArray) -> Callable[[], str | None] | None:
    """Return a job that reads what the first values of an array were quantised to.

    It reads only the head of a frame; None is returned if there is none, or if it cannot be read
    alone. Chunks are located here, in the thread that may ask HDF5; the job may run in any.
    """
    if isinstance(array, _ConvertedArray):
        return grid_job(array._array)
    if 0 in array.shape:
        return None
    index = (0,) * len(array.shape)
    row = row_of(array.shape) if len(array.shape) > 1 else 0
    if isinstance(array, ChunkedArray):
        return array.grid_job(index, 0, row)
    if isinstance(array, StepView) and isinstance(array._array, ChunkedArray):
        steps = array._array
        offset = array._local * (steps.unit_nbytes // steps.chunks[0])
        return steps.grid_job((array._group, *index), offset, row)
    return None


class StepsArray(ArrayReader):
    """An array whose steps are in several arrays, or in none.

    `by_step` has the array of each step, or None, for which `fill_value` stands.
    """

    #: In boxes: it has no units that could be read whole.
    reads_ranges = True

    def __init__(self, by_step: Sequence[ArrayReader | None], fill_value: Any) -> None:
        first = next(array for array in by_step if array is not None)
        shape = (len(by_step), *first.shape[1:])
        super().__init__(first.label, shape, first.dtype, first.chunks, first._unit)
        self._by_step, self._fill_value = by_step, fill_value
        self._arrays = list({id(array): array for array in by_step if array is not None}.values())
        self.decoded_nbytes = max(array.decoded_nbytes for array in self._arrays)
        self.concurrency = min(array.concurrency for array in self._arrays)

    @property
    def scratch_nbytes(self) -> int:
        """How much memory reading a chunk takes beside what it is read into."""
        return max(array.scratch_nbytes for array in self._arrays)

    def box_work(self, axes: Sequence[Axis]) -> Work:
        """Return how many bytes are decoded to read a box."""
        works = [
            array.box_work([axes[0][part], *axes[1:]])
            for array, part in self._parts(axes[0])
            if array is not None
        ]
        return Work(sum(w.total for w in works), max((w.each for w in works), default=0))

    def points_work(self, indices: Sequence[NDArray[np.intp]]) -> int:
        """Return how many bytes are decoded to read single elements."""
        return sum(
            array.points_work([i[where] for i in indices])
            for array, where in self._split_points(indices[0])
            if array is not None
        )

    def box_jobs(self, axes: Sequence[Axis], out: NDArray[Any]) -> Iterator[Job]:
        """Yield what together reads a box into `out`."""
        if out.size == 0:
            return
        for array, part in self._parts(axes[0]):
            if array is None:
                out[part] = self._fill_value
            else:
                yield from array.box_jobs([axes[0][part], *axes[1:]], out[part])

    def read_points(self, indices: Sequence[NDArray[np.intp]], out: NDArray[Any]) -> None:
        """Read single elements into `out`; all have one dimension."""
        for array, where in self._split_points(indices[0]):
            if array is None:
                out[where] = self._fill_value
                continue
            values = np.empty(np.count_nonzero(where), self.dtype)
            array.read_points([i[where] for i in indices], values)
            out[where] = values

    def _parts(self, steps: Axis) -> Iterator[tuple[ArrayReader | None, slice]]:
        """Yield arrays with the consecutive steps that are in them, as parts of the axis."""
        at = 0
        for _, group in groupby(steps, key=lambda step: id(self._by_step[step])):
            taken = list(group)
            yield self._by_step[taken[0]], slice(at, at + len(taken))
            at += len(taken)

    def _split_points(
        self, steps: NDArray[np.intp]
    ) -> Iterator[tuple[ArrayReader | None, NDArray[np.bool_]]]:
        for array in [*self._arrays, None]:
            where = np.array([self._by_step[int(step)] is array for step in steps], bool)
            if where.any():
                yield array, where


class _ConvertedArray(UnitArray):
    """An array whose items are converted to another data type when they are read.

    `convert` takes items in C order and of any shape, and returns items of `dtype`, or their bits.
    """

    def __init__(
        self,
        array: UnitArray,
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

    def _find(self, index: ChunkIndex) -> Located | None:
        return self._array._find(index)

    def _read_box(
        self, index: ChunkIndex, located: Located | None, axes: Sequence[Axis], out: NDArray[Any]
    ) -> None:
        values = np.empty(out.shape, self._array.dtype)
        self._array._read_box(index, located, axes, values)
        out[...] = self._convert(values).view(self.dtype)

    def _read_points(
        self, index: ChunkIndex, located: Located | None, points: Points
    ) -> NDArray[Any]:
        values = self._array._read_points(index, located, points)
        return self._convert(np.ascontiguousarray(values)).view(self.dtype)

    def _read_unit(self, index: ChunkIndex, out: Bytes) -> None:
        values = np.empty(out.size // self.dtype.itemsize, self._array.dtype)
        self._array._read_unit(index, values.view(np.uint8))
        out.view(self.dtype)[:] = self._convert(values).view(self.dtype)


def rounded_array(array: UnitArray) -> _ConvertedArray:
    """Return a float32 array rounded to bfloat16: see `round_to_bfloat16`."""
    return _ConvertedArray(array, np.dtype(ml_dtypes.bfloat16), round_to_bfloat16)


def widened_array(array: UnitArray) -> _ConvertedArray:
    """Return a bfloat16 or float16 array as float32, which has all of its numbers."""
    convert = from_half if array.dtype == np.float16 else from_bfloat16
    return _ConvertedArray(array, np.dtype(np.float32), convert)
