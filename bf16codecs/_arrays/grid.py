"""Plans of arrays in chunks, each a range of bytes of a safetensors file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bf16codecs import _core

__all__ = [
    "ArrayPlan",
    "ChunkIndex",
    "Piece",
    "chunk_counts",
    "chunk_shape",
    "fill_value",
    "grid_indices",
]

#: The index of a chunk along each axis of its array's grid.
ChunkIndex = tuple[int, ...]

# Divisors that are tried, in 5 ms.
_MAX_TRIES = 1 << 17


@dataclass(frozen=True)
class Piece:
    """One chunk of an array, and its range in the safetensors file."""

    array: ArrayPlan
    index: ChunkIndex
    #: Offset in the file, and size without the padding that an edge chunk has in the store.
    offset: int
    nbytes: int

    @property
    def region(self) -> tuple[range, ...]:
        """The indices that it has along each axis, without padding."""
        return self.array.region(self.index)


@dataclass(frozen=True)
class ArrayPlan:
    """The array that stores a tensor, a header or the index."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    file: int = 0
    #: Offset of the array's bytes in the file.
    offset: int = 0
    #: Whether it is written; tied embeddings, for example, are stored in one array.
    is_written: bool = True
    #: Whether it is written as a difference to the same tensor of a base.
    has_base: bool = False
    #: Whether its float32 numbers are stored as float16: see `stored`.
    is_lossy: bool = False
    #: The level of its codec, if it is not that of the whole store.
    level: str | None = None

    @property
    def stored(self) -> ArrayPlan:
        """The array as stored: float16 if it is lossy."""
        return replace(self, dtype="float16", is_lossy=False) if self.is_lossy else self

    @property
    def item_size(self) -> int:
        """Bytes of one item."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Size of the array's data."""
        return math.prod(self.shape) * self.item_size

    @property
    def chunk_nbytes(self) -> int:
        """Size of a whole chunk."""
        return math.prod(self.chunks) * self.item_size

    @property
    def dimension_names(self) -> list[str]:
        """Dimension names, each with one size in the whole store, as xarray requires."""
        return [f"dim{axis}_{size}" for axis, size in enumerate(self.shape)]

    @property
    def is_contiguous(self) -> bool:
        """Whether each chunk's bytes are one range of the array, and come first in the chunk."""
        split = False
        for size, chunk in zip(self.shape, self.chunks, strict=True):
            if split and chunk != size:  # other bytes, or padding, between the rows
                return False
            split = split or chunk > 1
        return True

    @property
    def fill_value(self) -> Any:
        """The fill value: see the function of this name."""
        return fill_value(np.dtype(self.dtype))

    def region(self, index: Sequence[int]) -> tuple[range, ...]:
        """Return the indices that a chunk has along each axis, without padding."""
        sizes = zip(index, self.chunks, self.shape, strict=True)
        return tuple(range(i * n, min((i + 1) * n, size)) for i, n, size in sizes)

    def pieces(self) -> Iterator[Piece]:
        """Yield the chunks in the order of their bytes; the array must be contiguous."""
        return map(self.piece, grid_indices(chunk_counts(self.shape, self.chunks)))

    def piece(self, index: ChunkIndex) -> Piece:
        """Return a chunk; the array must be contiguous."""
        before, items, stride = 0, 1, 1
        for i, size, chunk in zip(index[::-1], self.shape[::-1], self.chunks[::-1], strict=True):
            before += i * chunk * stride
            items *= min(chunk, size - i * chunk)
            stride *= size
        return Piece(self, index, self.offset + before * self.item_size, items * self.item_size)

    def piece_at(self, byte: int) -> Piece:
        """Return the chunk that has a byte of the array; the array must be contiguous."""
        rest, stride, index = byte // self.item_size, math.prod(self.shape), []
        for size, chunk in zip(self.shape, self.chunks, strict=True):
            stride //= size
            at, rest = divmod(rest, stride)
            index.append(at // chunk)
        return self.piece(tuple(index))


def fill_value(dtype: np.dtype[Any]) -> Any:
    """Return the fill value of arrays, NaN for floats: docs/store.md, "Fill values"."""
    if dtype.kind == "c":
        return complex(math.nan, math.nan)
    return math.nan if dtype.name in _core.DTYPES else dtype.type(0)


def chunk_counts(shape: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...]:
    """Return how many chunks an array has along each axis."""
    return tuple(-(-size // length) for size, length in zip(shape, chunks, strict=True))


def grid_indices(counts: Sequence[int]) -> Iterator[ChunkIndex]:
    """Yield the indices of a grid, the last axis first.

    `itertools.product` would keep all indices of each axis, and metadata may claim any number of
    chunks. For the same reason, an axis without chunks ends the walk at once.
    """
    if not counts:
        yield ()
        return
    if 0 in counts:
        return
    for first in range(counts[0]):
        for rest in grid_indices(counts[1:]):
            yield (first, *rest)


def chunk_shape(shape: Sequence[int], item_size: int, chunk_size: int) -> tuple[int, ...]:
    """Cut an array into chunks of whole rows, of at most `chunk_size` bytes where rows allow it.

    A row larger than `chunk_size` is cut along later axes; chunks of one item are the smallest.
    """
    if 0 in shape:
        return (1,) * len(shape)
    row = math.prod(shape) * item_size
    for axis, size in enumerate(shape):
        row //= size
        if row <= chunk_size:
            length = _even_length(size, max(1, chunk_size // max(1, row)))
            return (1,) * axis + (length,) + tuple(shape[axis + 1 :])
    return (1,) * len(shape)


def _even_length(size: int, limit: int) -> int:
    """Choose a chunk length of at most `limit` that pads the last chunk little."""
    if limit >= size:
        return size
    lengths = range(limit, limit // 2, -1)
    counts = range(-(-size // limit), -(-size // max(1, limit // 2)))
    # The longest that divides evenly, among lengths or counts, whichever are fewer: metadata may
    # claim any size, and only where that is terabytes are both too many.
    if len(lengths) <= len(counts):
        even = (length for length in lengths[:_MAX_TRIES] if size % length == 0)
    else:
        even = (size // count for count in counts[:_MAX_TRIES] if size % count == 0)
    for length in even:
        return length
    count = -(-size // limit)
    return -(-size // count)
