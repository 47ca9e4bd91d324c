"""Arrays in chunks, read by selection: boxes and points, chunk by chunk."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._arrays.formats import Format, read
from bf16codecs._arrays.frames import FrameFormat
from bf16codecs._arrays.grid import (
    ArrayPlan,
    ChunkIndex,
    Piece,
    chunk_counts,
    chunk_shape,
    grid_indices,
)
from bf16codecs._arrays.indexing import Axis, as_index, count_chunks, cut_box, cut_range
from bf16codecs._arrays.parts import ChunkPart, base_advice, touched_ranges
from bf16codecs._arrays.storage import Storage, StoredChunk
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.device_memory import DeviceMemory, Memory
from bf16codecs._base.limits import REMOTE_IN_FLIGHT_BYTES
from bf16codecs._base.messages import named_errors
from bf16codecs._base.threads import run_all
from bf16codecs.errors import BaseMismatchError

__all__ = [
    "SLAB_BYTES",
    "ArrayReader",
    "ChunkBase",
    "ChunkedArray",
    "Job",
    "Located",
    "Points",
    "RangeReader",
    "UnitArray",
]


Job = Callable[[], None]
#: Indices of single elements in a chunk, one array for each axis.
Points = tuple[NDArray[np.intp], ...]

#: Arrays that are not read chunk by chunk are read in slabs of at most this size, or one row.
SLAB_BYTES = 1 << 24
# While single elements are picked, at most this part of a chunk is in memory, or one item of its
# first axis.
_POINTS_BYTES = 1 << 28
_NOTHING = np.empty(0, np.uint8)


class Work(NamedTuple):
    """Numbers of bytes that are decoded: in all, and of each chunk at most."""

    total: int
    each: int


class RangeReader(ABC):
    """The interface of arrays that are read by ranges of their bytes, and by boxes of items."""

    #: How many reads at a time pay off; 0 if they have to run in the thread that makes them.
    concurrency: int

    @abstractmethod
    def read_range(self, start: int, stop: int, out: Memory) -> None:
        """Read the array's bytes [start, stop), little-endian and in C order.

        Either end may lie within an item; `out` has the size of the range.
        """

    @abstractmethod
    def read_box(self, axes: Sequence[Axis], out: NDArray[Any]) -> None:
        """Read a box into an array of its shape, given the ascending indices along each axis."""

    def view_range(self, start: int, stop: int) -> Bytes | None:
        """Return the array's bytes [start, stop) where they are, unless they have to be read."""
        return None


class ArrayReader(RangeReader):
    """An array that is read by selection; several threads may read.

    Messages call it `label`. An edge chunk is stored whole. `unit` is the shape that is read at a
    time, if not that of the chunks.
    """

    #: Whether a range of its bytes can be read without decoding all chunks that it is in.
    reads_ranges = False
    #: The path or address of the base, for messages.
    base_label = ""
    #: Versions in a chunk. Reading an item decodes one of them, so limits count one.
    versions = 1

    def __init__(
        self,
        label: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunks: tuple[int, ...],
        unit: tuple[int, ...] | None = None,
    ) -> None:
        self.label, self.shape, self.dtype, self.chunks = label, shape, dtype, chunks
        self._unit = chunks if unit is None else unit
        self.unit_nbytes = math.prod(self._unit) * dtype.itemsize
        #: Size of a chunk, which may have to be decoded to read one item of it.
        self.decoded_nbytes = self.unit_nbytes

    @property
    def scratch_nbytes(self) -> int:
        """How much memory reading a chunk takes beside what it is read into."""
        return self.decoded_nbytes

    @property
    def whole_work(self) -> int:
        """How many bytes are decoded to read all of it."""
        return self.box_work([range(size) for size in self.shape]).total

    @abstractmethod
    def box_work(self, axes: Sequence[Axis]) -> Work:
        """Return how many bytes are decoded to read a box: more than it has, as a rule."""

    @abstractmethod
    def points_work(self, indices: Sequence[NDArray[np.intp]]) -> int:
        """Return how many bytes are decoded to read single elements."""

    @abstractmethod
    def box_jobs(self, axes: Sequence[Axis], out: NDArray[Any]) -> Iterator[Job]:
        """Yield jobs that together read a box into an array of its shape, in any order."""

    @abstractmethod
    def read_points(self, indices: Sequence[NDArray[np.intp]], out: NDArray[Any]) -> None:
        """Read single elements into `out`; all have one dimension."""

    def read_box(self, axes: Sequence[Axis], out: NDArray[Any]) -> None:
        """Read a box into `out`, in this thread: see `RangeReader`."""
        for job in self.box_jobs(axes, out):
            job()

    def read_range(self, start: int, stop: int, out: Memory) -> None:
        """Read a range of the array's bytes: see `RangeReader`."""
        size, stored = self.dtype.itemsize, self.dtype.newbyteorder("<")
        first, last = start // size, -(-stop // size)
        is_whole = self.dtype == stored and (last - first) * size == out.size
        is_direct = is_whole and isinstance(out, np.ndarray)
        raw: Any = out if is_direct else np.empty((last - first) * size, np.uint8)
        values = rest = raw.view(self.dtype)
        for axes in cut_range(self.shape, first, last):
            shape = [len(axis) for axis in axes]
            box, rest = np.split(rest, [math.prod(shape)])
            self.read_box(axes, box.reshape(shape))
        if not is_direct:
            in_order = values.astype(stored, copy=False).view(np.uint8)
            out[:] = in_order[start - first * size : stop - first * size]


class Located(NamedTuple):
    """Where a chunk is stored, and how."""

    format: Format
    storage: Storage
    key: Hashable


class UnitArray(ArrayReader):
    """An array that is read unit by unit, which are chunks as a rule."""

    def box_work(self, axes: Sequence[Axis]) -> Work:
        """Return how many bytes are decoded to read a box: more than it has, as a rule."""
        count = 1
        for axis, size in zip(axes, self.chunks, strict=True):
            count *= count_chunks(axis, size)
        each = self._chunk_work(axes) if count else 0
        return Work(count * each, each)

    def points_work(self, indices: Sequence[NDArray[np.intp]]) -> int:
        """Return how many bytes are decoded to read single elements."""
        return len(np.unique(self._numbers(indices, self.chunks))) * self.decoded_nbytes

    def box_jobs(self, axes: Sequence[Axis], out: NDArray[Any]) -> Iterator[Job]:
        """Yield what together reads a box into `out`: see `ArrayReader`."""
        if out.size == 0:  # the other axes may be of any length
            return
        for segments in cut_box(axes, self._unit):
            index = tuple(segment.chunk for segment in segments)
            part: Any = (*(s.positions for s in segments), ...)  # a view even if of one item
            local = [s.indices for s in segments]
            yield partial(self._read_box, index, self._find(index), local, out[part])

    def read_points(self, indices: Sequence[NDArray[np.intp]], out: NDArray[Any]) -> None:
        """Read single elements into `out`; all have one dimension."""
        if out.size == 0:
            return
        numbers = self._numbers(indices, self._unit)
        order = np.argsort(numbers, kind="stable")

        def job(group: NDArray[np.intp]) -> Job:
            index = tuple(int(i[group[0]]) // c for i, c in zip(indices, self._unit, strict=True))
            local = tuple(i[group] % c for i, c in zip(indices, self._unit, strict=True))
            return partial(self._put_points, index, self._find(index), local, out, group)

        groups = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
        run_all(map(job, groups), self.concurrency, self.unit_nbytes)

    def _numbers(
        self, indices: Sequence[NDArray[np.intp]], unit: tuple[int, ...]
    ) -> NDArray[np.intp]:
        """Return the number of the unit that each of some elements is in."""
        where = [i // n for i, n in zip(indices, unit, strict=True)]
        return np.ravel_multi_index(where, chunk_counts(self.shape, unit))

    def plan(self, path: str) -> ArrayPlan:
        """Describe the array in pieces that are each one range of its bytes, for `read_piece`."""
        plan = ArrayPlan(path, self.dtype.name, self.shape, self._unit)
        if plan.is_contiguous:
            return plan
        slab = chunk_shape(self.shape, self.dtype.itemsize, SLAB_BYTES)
        return ArrayPlan(path, self.dtype.name, self.shape, slab)

    def read_piece(self, piece: Piece, out: Bytes) -> None:
        """Read a piece of `plan` to the front of `out`, which also has room for its padding."""
        if piece.array.chunks == self._unit:
            self._read_unit(piece.index, out)
            return
        region = piece.region
        values = out[: piece.nbytes].view(self.dtype).reshape([len(axis) for axis in region])
        self.read_box(region, values)

    def _put_points(
        self,
        index: ChunkIndex,
        located: Located | None,
        points: Points,
        out: NDArray[Any],
        where: NDArray[np.intp],
    ) -> None:
        out[where] = self._read_points(index, located, points)

    def _chunk_work(self, axes: Sequence[Axis]) -> int:
        """Return how many bytes of each chunk, at most, are decoded to read a box with items."""
        return self.decoded_nbytes

    def _find(self, index: ChunkIndex) -> Located | None:
        """Locate a unit to read, in the thread that makes the jobs; None if none is located."""
        return None

    @abstractmethod
    def _read_box(
        self, index: ChunkIndex, located: Located | None, axes: Sequence[Axis], out: NDArray[Any]
    ) -> None:
        """Read a box of a unit."""

    @abstractmethod
    def _read_points(
        self, index: ChunkIndex, located: Located | None, points: Points
    ) -> NDArray[Any]:
        """Read single elements of a unit."""

    def _read_unit(self, index: ChunkIndex, out: Bytes) -> None:
        """Read a whole unit to the front of `out`, with its padding or without."""
        sizes = zip(index, self._unit, self.shape, strict=True)
        axes = [range(min(n, size - i * n)) for i, n, size in sizes]
        shape = [len(axis) for axis in axes]
        nbytes = math.prod(shape) * self.dtype.itemsize
        values = out[:nbytes].view(self.dtype).reshape(shape)
        self._read_box(index, self._find(index), axes, values)


class ChunkBase:
    """The bases of an array's chunks: the same boxes of another array of its shape and data type.

    `find_base` returns that array when a chunk is read: opening a model does not open its base.
    """

    #: The version of each chunk that the bases are; None if they are outside of it.
    version: int | None = None

    def __init__(self, find_base: Callable[[], RangeReader], plan: ArrayPlan) -> None:
        self._find_base, self._plan = find_base, plan

    def read(self, index: ChunkIndex, start: int, stop: int, out: Memory) -> None:
        """Read a range of a chunk's base, in whole items, as blocks are, padded as the chunk is."""
        if self._plan.is_contiguous:
            self._read_range(index, start, stop, out)
        elif isinstance(out, DeviceMemory):
            host = np.empty(out.size, np.uint8)
            self._read_boxes(index, start, stop, host)
            out[:] = host
        else:
            self._read_boxes(index, start, stop, out)

    def view(self, index: ChunkIndex, start: int, stop: int) -> Bytes | None:
        """Return a range of a chunk's base where it is, unless it has to be read."""
        if not self._plan.is_contiguous:
            return None
        piece = self._plan.piece(index)
        if stop > piece.nbytes:
            return None
        return self._find_base().view_range(piece.offset + start, piece.offset + stop)

    def _read_range(self, index: ChunkIndex, start: int, stop: int, out: Memory) -> None:
        piece = self._plan.piece(index)
        stored = max(0, min(stop, piece.nbytes) - start)
        if stored:
            first = piece.offset + start
            self._find_base().read_range(first, first + stored, out[:stored])
        if isinstance(out, np.ndarray) and out.size > stored:
            self._pad(out[stored:])
        elif out.size > stored:
            padding = np.empty(out.size - stored, np.uint8)
            self._pad(padding)
            out[stored:] = padding

    def _read_boxes(self, index: ChunkIndex, start: int, stop: int, out: Bytes) -> None:
        plan, rest = self._plan, self._pad(out)
        for local in cut_range(plan.chunks, start // plan.item_size, stop // plan.item_size):
            lengths = [len(axis) for axis in local]
            box, rest = np.split(rest, [math.prod(lengths)])
            axes = [
                range(i * n + axis.start, min(i * n + axis.stop, whole))
                for i, n, axis, whole in zip(index, plan.chunks, local, plan.shape, strict=True)
            ]
            if all(axes):
                stored = tuple(slice(len(axis)) for axis in axes)
                self._find_base().read_box(axes, box.reshape(lengths)[stored])

    def _pad(self, out: Bytes) -> NDArray[Any]:
        """Fill memory with padding items, and return these."""
        values = out.view(np.dtype(self._plan.dtype).newbyteorder("<"))
        values[:] = self._plan.fill_value
        return values


class _VersionBase(ChunkBase):
    """One version of each chunk, as base of the others: its items are at hand in another array."""

    def __init__(self, values: RangeReader, plan: ArrayPlan, version: int) -> None:
        super().__init__(lambda: values, plan)
        self.version = version

    def read(self, index: ChunkIndex, start: int, stop: int, out: Memory) -> None:
        """Read a range of a chunk's version; the array of its items lacks the first axis."""
        super().read(index[1:], start, stop, out)

    def view(self, index: ChunkIndex, start: int, stop: int) -> Bytes | None:
        """Return a range of a chunk's version where it is."""
        return super().view(index[1:], start, stop)


class ChunkedArray(UnitArray):
    """An array whose stored chunks are read and decoded here.

    `locate` finds a chunk; the thread that makes the jobs calls it. Unless chunks
    are decoded `in_blocks`, all of a chunk is decoded, whatever is asked for. A chunk has
    `versions`, equal parts along the first axis; other chunks count as one version. `find_base`
    returns the base that chunks may be coded against, another array of this shape and type; where a
    chunk is padded, its base is that array's items with the same padding.
    """

    def __init__(
        self,
        label: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunks: tuple[int, ...],
        locate: Callable[[ChunkIndex], Located],
        in_blocks: bool,
        concurrency: int = 1,
        find_base: Callable[[], RangeReader] | None = None,
        versions: int = 1,
    ) -> None:
        super().__init__(label, shape, dtype, chunks)
        self.versions = versions if in_blocks and chunks and chunks[0] % versions == 0 else 1
        self._locate, self._in_blocks = locate, in_blocks
        self.reads_ranges = in_blocks
        #: Whether the head of a frame can be read alone.
        self.reads_heads = in_blocks
        #: Whether `read_chunk` decodes only the bytes that it returns, in a file's byte order.
        self.decodes_ranges = in_blocks and dtype == dtype.newbyteorder("<")
        self._plan = ArrayPlan(label, dtype.name, shape, chunks)
        self._base = None if find_base is None else ChunkBase(find_base, self._plan)
        self._log: _core.UndoLog | None = None
        if concurrency > 1:
            concurrency = max(2, min(concurrency, REMOTE_IN_FLIGHT_BYTES // self.unit_nbytes))
        self.concurrency = concurrency

    @property
    def scratch_nbytes(self) -> int:
        """How much memory reading a chunk takes beside what it is read into."""
        return 0 if self._in_blocks else self.decoded_nbytes

    def against(self, version: int, values: RangeReader) -> ChunkedArray:
        """Return this array, of whose chunks one version is at hand.

        Other versions are decoded against it where they come from it. `values` lacks the first
        axis, and has the items of the chunks that are read.
        """
        array = copy(self)
        whole = self._plan
        plan = ArrayPlan(whole.path, whole.dtype, whole.shape[1:], whole.chunks[1:])
        array._base = _VersionBase(values, plan, version)
        return array

    @property
    def can_log(self) -> bool:
        """Whether `logging` is possible: chunks are ranges of the array's bytes."""
        return self._plan.is_contiguous and self.decodes_ranges

    def logging(self, log: _core.UndoLog) -> ChunkedArray:
        """Return this array, which logs what memory had before chunks were decoded to it."""
        array = copy(self)
        array._log = log
        return array

    def base_jobs(self, version: int = 0) -> Iterator[Job]:
        """Yield jobs that compare the bases of all chunks with what a version is coded against.

        They raise BaseMismatchError. What is not read block by block has no job.
        """
        size = self.unit_nbytes // self.versions
        begin, group = version % self.versions * size, version // self.versions
        counts = chunk_counts(self.shape, self.chunks)
        if self.versions > 1:
            counts = counts[1:]
        for rest in grid_indices(counts) if self.reads_ranges and self._base is not None else ():
            index = (group, *rest) if self.versions > 1 else rest
            located = self._find(index)
            if isinstance(located.format, FrameFormat):
                part = ChunkPart(
                    self.unit_nbytes, lambda gap: [(begin, begin + size)], _NOTHING, begin
                )
                yield partial(self._check_base, index, located, part)

    def _check_base(self, index: ChunkIndex, located: Located, part: ChunkPart) -> None:
        assert isinstance(located.format, FrameFormat)
        with self._opened(index, located) as stored:
            located.format.check_base(stored, self._with_base(index, part))

    def read_range(self, start: int, stop: int, out: Memory) -> None:
        """Read a range of the array's bytes, straight into `out` where chunks are such ranges."""
        if not self._plan.is_contiguous or self.dtype != self.dtype.newbyteorder("<"):
            super().read_range(start, stop, out)
            return
        while start < stop:
            piece = self._plan.piece_at(start)
            local = start - piece.offset
            count = min(stop - start, piece.nbytes - local)
            part = ChunkPart.of_range(self.unit_nbytes, out[:count], local)
            self._read(piece.index, self._find(piece.index), part)
            start, out = start + count, out[count:]

    def points_work(self, indices: Sequence[NDArray[np.intp]]) -> int:
        """Return how many bytes are decoded to read single elements."""
        work = super().points_work(indices)
        return min(work, indices[0].size * _core.MAX_BLOCK_BYTES) if self._in_blocks else work

    def _chunk_work(self, axes: Sequence[Axis]) -> int:
        if not self._in_blocks:
            return self.decoded_nbytes
        # From the first to the last index of the first axis that has several in one chunk.
        stride = span = self.unit_nbytes
        for axis, size in zip(axes, self.chunks, strict=True):
            stride //= size
            extent = min(size, int(axis[-1]) - int(axis[0]) + 1)
            span = extent * stride
            if extent > 1:
                break
        # The span begins and ends within a block.
        return min(self.unit_nbytes, span + 2 * _core.MAX_BLOCK_BYTES)

    def read_chunk(
        self,
        index: ChunkIndex,
        located: Located | None,
        box: tuple[slice, ...],
        out: Memory,
        offset: int,
    ) -> None:
        """Read a box of a chunk into `out`, which has the chunk's bytes from `offset` on."""
        touched = partial(touched_ranges, box, self.chunks, self.dtype.itemsize)
        self._read(index, located, ChunkPart(self.unit_nbytes, touched, out, offset))

    def grid_job(self, index: ChunkIndex, offset: int, row: int) -> Callable[[], str | None] | None:
        """Return a job that reads what values of a chunk, from a byte on, were quantised to.

        `row` is the number of values in a row of the array, 0 if it has none. The result is None
        if the chunk has no frame whose head can be read alone.
        """
        located = self._find(index) if self.reads_heads else None
        if located is None or not isinstance(located.format, FrameFormat):
            return None
        item = offset, offset + self.dtype.itemsize
        part = ChunkPart(self.unit_nbytes, lambda gap: [item], _NOTHING, offset)
        return partial(self._read_grid, located, part, row)

    def _read_grid(self, located: Located, part: ChunkPart, row: int) -> str | None:
        assert isinstance(located.format, FrameFormat)
        with named_errors(self.label, OSError), located.storage.open(located.key) as stored:
            return located.format.grid(stored, part, row)

    def _read_unit(self, index: ChunkIndex, out: Bytes) -> None:
        # Only the array's part of an edge chunk: the rest may be versions that are not there.
        content = out[: self._plan.piece(index).nbytes]
        self._read(index, self._find(index), ChunkPart.of_range(self.unit_nbytes, content, 0))

    def _read_points(
        self, index: ChunkIndex, located: Located | None, points: Points
    ) -> NDArray[Any]:
        # In parts: a chunk of thousands of versions may be larger than any memory.
        length = max(1, _POINTS_BYTES // (self.unit_nbytes // self.chunks[0]))
        shape = (min(length, self.chunks[0]), *self.chunks[1:])
        nbytes = math.prod(shape) * self.dtype.itemsize
        parts, first = np.divmod(points[0], shape[0])
        out = np.empty(points[0].size, self.dtype)
        for part in np.unique(parts).tolist():
            where = parts == part
            local = (first[where], *(axis[where] for axis in points[1:]))
            at = part * nbytes
            raw = np.empty(min(nbytes, self.unit_nbytes - at), np.uint8)
            touched = partial(touched_ranges, local, shape, self.dtype.itemsize, base=at)
            self._read(index, located, ChunkPart(self.unit_nbytes, touched, raw, at))
            out[where] = raw.view(self.dtype).reshape(-1, *shape[1:])[local]
        return out

    def _read_box(
        self, index: ChunkIndex, located: Located | None, axes: Sequence[Axis], out: NDArray[Any]
    ) -> None:
        # Leading axes of one index only set the offset; the next axis is the first that varies.
        offset, stride, depth = 0, self.unit_nbytes, 0
        for axis, size in zip(axes, self.chunks, strict=True):
            stride //= size
            if len(axis) > 1:
                break
            offset += int(axis[0]) * stride
            depth += 1
        if depth == len(axes):
            self._read_range(index, located, offset, out)
            return
        first, stop = int(axes[depth][0]), int(axes[depth][-1]) + 1
        offset += first * stride
        rest = self.chunks[depth + 1 :]
        dense = stop - first == len(axes[depth])
        inner = axes[depth + 1 :]
        if dense and all(len(a) == n for a, n in zip(inner, rest, strict=True)):
            self._read_range(index, located, offset, out)
            return
        shape = (stop - first, *rest)
        local = (as_index(axes[depth], first), *map(as_index, inner))
        # The system provides memory only for the pages that are decoded into.
        raw = np.empty((stop - first) * stride, np.uint8)
        touched = partial(touched_ranges, local, shape, self.dtype.itemsize, base=offset)
        self._read(index, located, ChunkPart(self.unit_nbytes, touched, raw, offset))
        out[...] = raw.view(self.dtype).reshape(shape)[local].reshape(out.shape)

    def _read_range(
        self, index: ChunkIndex, located: Located | None, offset: int, out: NDArray[Any]
    ) -> None:
        """Read one contiguous range of a chunk."""
        values = out if out.flags.c_contiguous else np.empty(out.shape, self.dtype)
        raw = values.reshape(-1).view(np.uint8)
        self._read(index, located, ChunkPart.of_range(self.unit_nbytes, raw, offset))
        if values is not out:
            out[...] = values

    def _find(self, index: ChunkIndex) -> Located:
        with named_errors(f"{self.label}, chunk {index}", OSError):
            return self._locate(index)

    def _read(self, index: ChunkIndex, located: Located | None, part: ChunkPart) -> None:
        assert located is not None
        with self._opened(index, located) as stored:
            read(located.format, stored, self._with_base(index, part))

    def _with_base(self, index: ChunkIndex, part: ChunkPart) -> ChunkPart:
        if self._base is None:
            return part
        base, view = partial(self._base.read, index), partial(self._base.view, index)
        known = self._base.version
        return replace(part, base=base, base_view=view, known=known, log=self._log)

    @contextmanager
    def _opened(self, index: ChunkIndex, located: Located) -> Iterator[StoredChunk]:
        """Open a chunk, and name it in errors."""
        name = located.key if isinstance(located.key, str) else index
        named = named_errors(f"{self.label}, chunk {name}", OSError)
        with named, located.storage.open(located.key) as stored, self._named_base():
            yield stored

    @contextmanager
    def _named_base(self) -> Iterator[None]:
        """Name a base that does not match, and say what to do; a base names its base itself."""
        try:
            yield
        except BaseMismatchError as e:
            if not self.base_label or str(e).endswith(base_advice()):
                raise
            text = f"{e}: {self.base_label} has other bytes; {base_advice()}"
            raise BaseMismatchError(text) from e
