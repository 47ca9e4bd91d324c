"""The pieces in which a tensor is analyzed: whole rows, unless a row is too large."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._arrays.array import RangeReader
from bf16codecs._arrays.grid import ArrayPlan, chunk_shape
from bf16codecs._arrays.storage import Range
from bf16codecs._base.buffers import Bytes, row_of
from bf16codecs._base.fields import FIELDS
from bf16codecs.analysis.coded_sizes import CODECS, CodedSizes, measure, measure_differences
from bf16codecs.analysis.counts import Counts
from bf16codecs.analysis.scales import PieceSums
from bf16codecs.convert.damages import NO_DAMAGE
from bf16codecs.errors import BF16CodecsError
from bf16codecs.model.tensor import LazyTensor

__all__ = ["Compared", "Findings", "Read", "Tensor", "TensorPiece"]

Found = TypeVar("Found")

# Small enough to have several in flight; coded sizes are within 0.01 bits per value of those in a
# store's chunks.
_PIECE_BYTES = 1 << 22
# The smallest piece of a tensor in a sample.
_LEAST_BYTES = 1 << 14
# A sample has this many pieces if each can have this size, that of a whole block. Reading a piece
# from an address costs at least a block of a chunk.
_SPREAD_PIECES, _SPREAD_BYTES = 16, 1 << 16
# Pieces begin at multiples of so many rows, or items of a row, where there is room for it: so they
# begin where tiles and groups do.
_TILE_ROWS, _GROUP_ITEMS = 128, 4096
# A sample has fewer pieces, but at least so many, if these then have `_TILE_ROWS` rows: in fewer,
# most grids of columns are not found.
_FEW_PIECES = 4
# So many rows tell tiles from groups. They are read if they do not have more bytes than this.
_TOLD_ROWS, _MOST_TOLD_BYTES = 160, 1 << 24
# Pieces with damage are halved down to this size.
_LEAST_PIECE = 1 << 16


@dataclass(frozen=True)
class TensorPiece:
    """A range of a tensor's bytes: [start, stop)."""

    start: int
    stop: int
    #: Whether it is the first one of the tensor.
    is_first: bool = False

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.stop - self.start


@dataclass(frozen=True)
class Read:
    """The bytes of a piece, those of the rows above it, and the base's."""

    piece: TensorPiece
    data: Bytes
    above: Bytes
    base: Bytes | None


@dataclass
class Findings:
    """Counts and sizes of pieces."""

    counts: Counts
    sizes: CodedSizes = field(default_factory=CodedSizes)
    #: By the index of the piece's first value.
    sums: dict[int, PieceSums] = field(default_factory=dict)
    #: What the values were quantised to, if anything.
    grid: str | None = None

    def __iadd__(self, other: Findings) -> Findings:
        self.grid = self.grid or other.grid
        self.counts += other.counts
        self.sizes += other.sizes
        self.sums.update(other.sums)
        return self


@dataclass
class Compared:
    """How many values were compared with a base's, how many differ, and coded sizes."""

    values: int
    changed: int
    sizes: CodedSizes

    def __iadd__(self, other: Compared) -> Compared:
        self.values += other.values
        self.changed += other.changed
        self.sizes += other.sizes
        return self


@dataclass(frozen=True)
class Tensor:
    """A tensor and a base's; `dtype` is safetensors' name, `item` the dtype of decoded values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    item: np.dtype[Any]
    reader: RangeReader
    base: RangeReader | None = None
    #: What `of` got, which may be sent to another process.
    pair: tuple[LazyTensor, LazyTensor | None] | None = None

    @classmethod
    def of(cls, tensor: LazyTensor, other: LazyTensor | None = None) -> Tensor:
        """Pair a tensor with a base's; raise BF16CodecsError if either cannot be read."""
        base = None if other is None else tensor.ranges_of(other)
        dtype, shape, item = tensor.get_dtype(), tensor.shape, tensor.dtype
        return cls(tensor.name, dtype, shape, item, tensor.ranges(), base, (tensor, other))

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.item.itemsize

    @property
    def concurrency(self) -> int:
        """How many pieces to read at the same time; 0 if the thread that makes jobs reads them."""
        readers = [self.reader] if self.base is None else [self.reader, self.base]
        return min(reader.concurrency for reader in readers)

    @property
    def columns(self) -> int:
        """The number of values in a row, which lies along the last axis."""
        return self.shape[-1] if self.shape else 1

    @property
    def codec_row(self) -> int:
        """The number of values in a row as codecs see it, 0 if there is but one: see `row_of`."""
        return row_of(self.shape) if self.is_matrix else 0

    @property
    def codec_row_nbytes(self) -> int:
        """The size of a row as codecs see it."""
        return self.item.itemsize * (self.codec_row or self.columns)

    @property
    def is_matrix(self) -> bool:
        """Whether it has rows above each other."""
        return len(self.shape) > 1

    @property
    def row_nbytes(self) -> int:
        """The size of a row."""
        return self.item.itemsize * self.columns

    def pieces(self, share: float) -> Iterator[TensorPiece]:
        """Yield the pieces to analyze: all of the tensor, or evenly spread pieces of it."""
        for number, (start, stop) in enumerate(self._ranges(share)):
            yield TensorPiece(start, stop, is_first=number == 0)

    def _ranges(self, share: float) -> Iterator[Range]:
        if not self.nbytes:
            return
        plan = ArrayPlan(self.name, self.item.name, self.shape, self._piece_shape())
        if share >= 1:
            for piece in plan.pieces():
                yield piece.offset, piece.offset + piece.nbytes
            return
        wanted = min(self.nbytes, max(_LEAST_BYTES, math.ceil(share * self.nbytes)))
        yield from self._spread(wanted, plan.chunk_nbytes)

    def _piece_shape(self) -> tuple[int, ...]:
        """Return the shape of the pieces of a whole tensor: no tile or group is cut."""
        lengths = list(chunk_shape(self.shape, self.item.itemsize, _PIECE_BYTES))
        for axis, most in ((-1, _GROUP_ITEMS), (-2, _TILE_ROWS)):
            if len(lengths) >= -axis and most < lengths[axis] < self.shape[axis]:
                lengths[axis] -= lengths[axis] % most
        return tuple(lengths)

    def _spread(self, wanted: int, most: int) -> Iterator[Range]:
        """Yield ranges of about `wanted` bytes in all, one from each of equally long parts."""
        row = self.codec_row_nbytes
        tall = _TILE_ROWS * row
        least = tall if _SPREAD_BYTES < tall <= wanted // _FEW_PIECES else _SPREAD_BYTES
        count = max(math.ceil(wanted / most), min(_SPREAD_PIECES, wanted // least), 1)
        each = math.ceil(wanted / count)
        # Whole rows, so that a piece has the rows above its last ones, unless a row is too large.
        unit = row if row <= each else self.item.itemsize
        each = math.ceil(each / unit) * unit
        count = max(1, min(round(wanted / each), self.nbytes // each))
        room = (self.nbytes // count - each) // unit
        # A piece that is shorter than a tile begins inside one: blocks of chunks begin where tiles
        # do, and reading the row above would take another block.
        most = min(room, each // unit, _TILE_ROWS if unit == row else _GROUP_ITEMS)
        step = unit * _power_within(most)
        before = 0
        for i in range(count):
            # Not in the middle: blocks of chunks end there, and a piece would touch two.
            start = (5 * i * self.nbytes + 2 * (self.nbytes - count * each)) // (5 * count)
            # Parts of a row, which also begins a group, do not go beyond its end.
            begin = 0 if unit == row else start - start % row
            end = self.nbytes if unit == row else begin + row
            start = min(start, end - each)
            start = max(before, start - (start - begin) % step)
            before = min(start + each, end)
            yield start, before

    def read(self, piece: TensorPiece) -> tuple[Bytes, Bytes, Bytes | None]:
        """Read a piece, the values above its last ones in their columns, and the base's."""
        row = self.row_nbytes if self.is_matrix else piece.stop
        first, last = max(0, piece.start - row), max(0, piece.stop - row)
        if last > piece.start:  # the piece overlaps the rows above it: read both at once
            data = self._read(self.reader, first, piece.stop)
            data, above = data[piece.start - first :], data[: last - first]
        else:
            data = self._read(self.reader, piece.start, piece.stop)
            above = self._read(self.reader, first, last)
        base = None if self.base is None else self._read(self.base, piece.start, piece.stop)
        return data, above, base

    def read_sound(self, piece: TensorPiece) -> tuple[list[Read], list[BF16CodecsError]]:
        """Read as much of a piece as possible, in smaller pieces around damage."""
        try:
            return [Read(piece, *self.read(piece))], []
        except NO_DAMAGE:
            raise
        except BF16CodecsError as e:
            if piece.nbytes <= _LEAST_PIECE:
                return self._read_alone(piece, e)
        row = self.row_nbytes
        middle = (piece.start + piece.stop) // 2
        middle -= middle % (row if row < piece.nbytes // 2 else self.item.itemsize)
        found, errors = self.read_sound(TensorPiece(piece.start, middle))
        more, others = self.read_sound(TensorPiece(middle, piece.stop))
        return found + more, errors + others

    def job(
        self, piece: TensorPiece, work: Callable[[Read], Found]
    ) -> Callable[[], tuple[list[Found], list[BF16CodecsError]]]:
        """Return a job that works on a piece; it also reads the piece where threads may read.

        The job returns the results of `work` on everything that could be read, and the errors.
        """

        def work_on(
            sound: list[Read], errors: list[BF16CodecsError]
        ) -> tuple[list[Found], list[BF16CodecsError]]:
            return [work(read) for read in sound], errors

        if self.concurrency:
            return lambda: work_on(*self.read_sound(piece))
        return partial(work_on, *self.read_sound(piece))

    def _read_alone(
        self, piece: TensorPiece, error: BF16CodecsError
    ) -> tuple[list[Read], list[BF16CodecsError]]:
        """Read a piece without the rows above it, in case only they are damaged."""
        try:
            data = self._read(self.reader, piece.start, piece.stop)
            base = None if self.base is None else self._read(self.base, piece.start, piece.stop)
        except NO_DAMAGE:
            raise
        except BF16CodecsError:
            return [], [error]
        return [Read(piece, data, data[:0], base)], []

    def items(self, data: Bytes) -> NDArray[Any]:
        """Return bytes as unsigned integers, of shape (rows, columns) if there are rows."""
        items = data.view(f"<u{self.item.itemsize}")
        return items.reshape(-1, min(self.columns, items.size)) if self.is_matrix else items

    def analyze(self, read: Read, codecs: Collection[str] = CODECS) -> Findings:
        """Return the counts of a piece, and its coded size with each codec."""
        size = self.item.itemsize
        found = Findings(Counts(size))
        found.counts.add(read.data, read.above)
        if read.base is not None:
            found.counts.add_change(read.data, read.base, self.dtype in FIELDS)
        items = self.items(read.data)
        if self.is_matrix and self.dtype in FIELDS:
            found.sums[read.piece.start // size] = PieceSums.of(items.view(self.item))
        found.sizes = measure(self.item.name, self._for_codecs(items), read.base, codecs)
        if self.item.name in _core.DTYPES:
            found.grid = self._grid(read)
        return found

    def _grid(self, read: Read) -> str | None:
        """Return what the values of a piece were quantised to.

        The first piece names the grid of a tensor: further rows are read to tell tiles from groups.
        """
        grid, row = self._find_grid(read.data), self.codec_row_nbytes
        start = read.piece.start - read.piece.start % (_TILE_ROWS * row)
        stop = min(self.nbytes, start + _TOLD_ROWS * row)
        is_within = read.piece.start == start and stop <= read.piece.stop
        may_read = read.piece.is_first and self.is_matrix and self.concurrency
        if grid is None or is_within or not may_read or stop - start > _MOST_TOLD_BYTES:
            return grid
        try:
            return self._find_grid(self._read(self.reader, start, stop)) or grid
        except NO_DAMAGE:
            raise
        except BF16CodecsError:
            return grid

    def _find_grid(self, data: Bytes) -> str | None:
        return _core.find_grid(data, _core.DTYPES[self.item.name], self.codec_row)

    def _for_codecs(self, items: NDArray[Any]) -> NDArray[Any]:
        """Return items with the rows that codecs see, if they are whole ones."""
        row = self.codec_row
        return items.reshape(-1, row) if row and items.size % row == 0 else items

    def compare(self, read: Read, codecs: Collection[str] = CODECS) -> Compared:
        """Count the values of a piece that differ from the base's, and code the difference."""
        assert read.base is not None
        items = self.items(read.data)
        changed = np.count_nonzero(items.reshape(-1) != read.base.view(items.dtype))
        sizes = measure_differences(self.item.name, items, read.base, codecs)
        return Compared(items.size, int(changed), sizes)

    @staticmethod
    def _read(reader: RangeReader, start: int, stop: int) -> Bytes:
        out = np.empty(stop - start, np.uint8)
        if out.size:
            reader.read_range(start, stop, out)
        return out


def _power_within(number: int) -> int:
    """Return the largest power of two that is not above a number, and at least 1."""
    return 1 << max(1, number).bit_length() - 1
