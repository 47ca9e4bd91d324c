"""Chunks such that each process of a job writes its own: their edges are edges of shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from bf16codecs._arrays.grid import chunk_counts, chunk_shape

__all__ = ["Box", "chunk_grid", "common"]

# How many times as many chunks as their size asks for are better than chunks that several
# processes have parts of: those are written twice, and encoded by the coordinator alone.
_MANY = 8
# The head of a frame is 1 % of such a chunk.
_LEAST_BYTES = 1 << 12
# Shards of a prime number of rows may be cut nowhere else.
_MOST_BYTES = 1 << 30


class Box(NamedTuple):
    """A box of a tensor: along each axis, the first index and the number of indices."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def axes(self) -> tuple[range, ...]:
        """The indices along each axis."""
        return tuple(range(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))


def common(axis: range, other: range) -> range:
    """Return the indices that two have in common."""
    return range(max(axis.start, other.start), min(axis.stop, other.stop))


def chunk_grid(
    shape: tuple[int, ...], item_size: int, boxes: Sequence[Box], chunk_size: int
) -> tuple[int, ...]:
    """Return the shape of a tensor's chunks.

    Parameters
    ----------
    shape
        The tensor's shape.
    item_size
        Bytes of an item.
    boxes
        What the processes have of it, which together is all of it.
    chunk_size
        The largest size of a chunk, in bytes, where shards allow it.

    Returns
    -------
    tuple of int
        Chunks are of whole rows of the shards, and each is within one, unless they would be very
        many or very small.

    Examples
    --------
    >>> halves = [Box((0, 0), (50, 64)), Box((50, 0), (50, 64))]
    >>> chunk_grid((100, 64), 2, halves, 1 << 20)
    (50, 64)
    >>> chunk_grid((100, 64), 2, halves, 3200)
    (25, 64)
    """
    plain = chunk_shape(shape, item_size, chunk_size)
    if 0 in shape:
        return plain
    # Of shards that begin at 12, 24 and 30, chunks of 6, 3, 2 or 1.
    cells = tuple(
        math.gcd(*(box.offsets[axis] for box in boxes if all(box.sizes))) or size
        for axis, size in enumerate(shape)
    )
    row, found = item_size, []
    limits = chunk_shape(cells, item_size, chunk_size)
    for cell, limit, size in zip(reversed(cells), reversed(limits), reversed(shape), strict=True):
        # Where no shard ends within the axis, chunks may end anywhere.
        most = max(1, _MOST_BYTES // row)
        found.append(limit if cell == size else _divisor(cell, limit, most))
        row *= found[-1]
    chunks = tuple(reversed(found))
    is_large = math.prod(chunks) * item_size >= min(chunk_size, _LEAST_BYTES)
    most = _MANY * (math.prod(chunk_counts(shape, plain)) + len(boxes))
    return chunks if is_large and math.prod(chunk_counts(shape, chunks)) <= most else plain


def _divisor(cell: int, limit: int, most: int) -> int:
    """Return a length that divides a cell: at most `limit`, unless that would be much less."""
    if cell <= limit:
        return cell
    small = [n for n in range(1, math.isqrt(cell) + 1) if cell % n == 0]
    divisors = sorted({*small, *(cell // n for n in small)})
    fitting = max(n for n in divisors if n <= limit)
    larger = min(n for n in divisors if n >= limit)
    return larger if fitting * _MANY < limit and larger <= most else fitting
