"""The blocks of frames: which ones a selection touches, where they lie, and decoding them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._buffers import Bytes, ThreadBuffer
from bf16codecs._chunks.stored import Range
from bf16codecs._messages import counted
from bf16codecs.errors import CorruptDataError, TruncatedDataError

__all__ = ["Head", "Wanted", "block_runs", "touched_blocks", "touched_ranges"]

# Wanted ranges are multiples of this: finer ones would cost more than they save.
_GRAIN = 1 << 16

_Axis = range | NDArray[np.intp]


def touched_blocks(
    selection: Any, shape: tuple[int, ...], item_size: int, block_bytes: int
) -> list[tuple[int, int]]:
    """Find the blocks that hold the elements of ``chunk[selection]``.

    The answer may name a block too many and never one too few: the selection itself is left to
    NumPy, over a chunk in which the other blocks are undefined.

    Parameters
    ----------
    selection : tuple
        Integers, slices and integer arrays, as zarr hands them to partial decoding.
    shape : tuple of int
        Shape of the chunk, in C order.
    item_size : int
        Bytes of an item.
    block_bytes : int
        Bytes of a block.

    Returns
    -------
    list of (int, int)
        Runs of blocks ``[first, last)``, ascending, with gaps between them.

    Examples
    --------
    >>> touched_blocks((slice(10, 12), slice(None)), (100, 64), 2, 1024)
    [(1, 2)]
    >>> touched_blocks(([0, 99],), (100, 64), 2, 1024)
    [(0, 1), (12, 13)]
    """
    selection = selection if isinstance(selection, tuple) else (selection,)
    if _is_coordinates(selection, shape):
        starts = _coordinate_starts(selection, shape, item_size)
        stops = starts + item_size
    else:
        starts, stops = _orthogonal_spans(_axes(selection, shape), shape, item_size, block_bytes)
    return _runs_of_blocks(starts, stops, block_bytes)


def _is_coordinates(selection: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    """Return whether integer arrays of one shape select single items."""
    shapes = {np.shape(s) for s in selection if isinstance(s, np.ndarray) and s.dtype.kind in "iu"}
    return (
        len(selection) == len(shape) > 1
        and len(shapes) == 1
        and all(isinstance(s, np.ndarray) for s in selection)
    )


def _coordinate_starts(
    selection: tuple[NDArray[Any], ...], shape: tuple[int, ...], item_size: int
) -> NDArray[np.intp]:
    offsets = np.zeros(selection[0].size, np.intp)
    for index, length in zip(selection, shape, strict=True):
        offsets *= length
        offsets += index.ravel() % length
    return np.unique(offsets) * item_size


def _axes(selection: tuple[Any, ...], shape: tuple[int, ...]) -> list[_Axis]:
    """Return the indices that the selection uses on each axis: maybe too many, never too few."""
    if any(s is Ellipsis for s in selection):
        at = next(i for i, s in enumerate(selection) if s is Ellipsis)
        fill = (slice(None),) * (len(shape) - len(selection) + 1)
        selection = selection[:at] + fill + selection[at + 1 :]
    selection += (slice(None),) * (len(shape) - len(selection))
    if len(selection) != len(shape):  # boolean arrays of several dimensions, or new axes
        return [range(length) for length in shape]
    return [_axis(s, length) for s, length in zip(selection, shape, strict=True)]


def _axis(selection: Any, length: int) -> _Axis:
    if isinstance(selection, slice):
        indices = range(*selection.indices(length))
        return indices if indices.step > 0 else indices[::-1]
    index = np.asarray(selection)
    if index.dtype.kind == "b":
        return index.nonzero()[0] if index.ndim == 1 else range(length)
    if index.dtype.kind not in "iu":
        return range(length)
    return np.unique(index % length)


def _orthogonal_spans(
    axes: list[_Axis], shape: tuple[int, ...], item_size: int, block_bytes: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return byte ranges, ascending, that cover the selected items and touch no other block.

    From the last axis to the first, every index repeats the ranges of the axes after it. Where an
    axis steps by at most a block, all blocks between neighbouring indices are touched and one
    range covers them; so there are never more ranges than blocks.
    """
    starts, stops = np.zeros(1, np.intp), np.full(1, item_size, np.intp)
    stride = item_size
    for axis, length in zip(reversed(axes), reversed(shape), strict=True):
        if len(axis) == 0:
            return starts[:0], stops[:0]
        if stride <= block_bytes:
            first, last = _runs_of_indices(axis, block_bytes // stride)
            starts, stops = first * stride + starts[0], last * stride + stops[-1]
        else:
            offsets = np.asarray(axis, np.intp)[:, np.newaxis] * stride
            starts, stops = (offsets + starts).ravel(), (offsets + stops).ravel()
        stride *= length
    return starts, stops


def _runs_of_indices(axis: _Axis, gap: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return first and last index of each run in which neighbours differ by at most `gap`."""
    if isinstance(axis, range) and (axis.step <= gap or len(axis) == 1):
        return np.array([axis[0]], np.intp), np.array([axis[-1]], np.intp)
    indices = np.asarray(axis, np.intp)
    breaks = np.flatnonzero(np.diff(indices) > gap)
    return indices[np.r_[0, breaks + 1]], indices[np.r_[breaks, len(indices) - 1]]


def _runs_of_blocks(
    starts: NDArray[np.intp], stops: NDArray[np.intp], block_bytes: int
) -> list[tuple[int, int]]:
    if len(starts) == 0:
        return []
    first, last = starts // block_bytes, -(-stops // block_bytes)
    reach = np.maximum.accumulate(last)
    new = np.r_[True, first[1:] > reach[:-1]]
    ends = np.r_[np.flatnonzero(new)[1:] - 1, len(first) - 1]
    return list(zip(first[new].tolist(), reach[ends].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of a chunk that is wanted, and where it goes.

    Attributes
    ----------
    nbytes : int
        The chunk's size, padding included.
    ranges : sequence of (int, int)
        The chunk's bytes that are wanted: ascending, without overlap.
    out : uint8 ndarray
        The chunk's bytes from `base` on. What lies between the ranges is undefined.
    base : int
        The first byte of the chunk that `out` holds.
    """

    nbytes: int
    ranges: Sequence[Range]
    out: Bytes
    base: int = 0

    @classmethod
    def whole(cls, out: Bytes) -> Wanted:
        """Want all of a chunk."""
        return cls(out.size, [(0, out.size)], out)

    @property
    def is_whole(self) -> bool:
        """Whether `out` holds the whole chunk."""
        return self.out.size == self.nbytes

    def put(self, start: int, content: Bytes) -> None:
        """Copy what `out` holds of the chunk's bytes from `start` on."""
        first = max(start, self.base)
        last = min(start + content.size, self.base + self.out.size)
        self.out[first - self.base : last - self.base] = content[first - start : last - start]


def touched_ranges(
    selection: Any, shape: tuple[int, ...], item_size: int, base: int = 0
) -> list[Range]:
    """Return the bytes that a selection of an array of `shape`, which begins at `base`, needs."""
    size = item_size * int(np.prod(shape, dtype=np.intp))
    runs = touched_blocks(selection, shape, item_size, _GRAIN)
    return [(base + a * _GRAIN, base + min(b * _GRAIN, size)) for a, b in runs]


def block_runs(ranges: Iterable[Range], block_bytes: int, n_blocks: int) -> list[Range]:
    """Return the runs of blocks that hold the ranges: ascending, with gaps between them."""
    runs: list[Range] = []
    for start, stop in ranges:
        # The bytes after the last whole item belong to the last block.
        first = min(start // block_bytes, n_blocks - 1)
        last = min(-(-stop // block_bytes), n_blocks)
        if runs and first <= runs[-1][1]:
            first = runs.pop()[0]
        runs.append((first, last))
    return runs


class Head:
    """The part of a frame that says where its blocks are.

    Parameters
    ----------
    prefix : buffer
        The frame's first bytes: at least its header and block table.
    nbytes : int
        Size of the chunk that it has to hold.
    size : int or None
        Size of the stored frame, if that is known.

    Raises
    ------
    CodecError
        If it is not such a frame.
    """

    __slots__ = ("_index", "block_bytes", "n_blocks", "nbytes", "offsets")

    def __init__(self, prefix: Bytes, nbytes: int, size: int | None) -> None:
        index = self._index = _core.Index(prefix)
        if index.raw_size != nbytes:
            raise CorruptDataError(
                f"the frame holds {counted(index.raw_size, 'byte')},"
                f" a chunk of this array has {nbytes}"
            )
        if size is not None and size < index.frame_size:
            raise TruncatedDataError(f"the frame has {counted(size, 'byte')} of {index.frame_size}")
        if size is not None and size > index.frame_size:
            raise CorruptDataError(
                f"{counted(size - index.frame_size, 'byte')} after the frame's end"
            )
        self.nbytes = nbytes
        self.offsets = tuple(index.offsets)
        self.block_bytes = index.block_items * index.item_size
        self.n_blocks = index.n_blocks

    def range_of(self, run: Range) -> Range:
        """Return where the frame has a run of blocks."""
        return self.offsets[run[0]], self.offsets[run[1]]

    def decode(self, payload: Bytes, run: Range, wanted: Wanted, scratch: ThreadBuffer) -> None:
        """Decode a run of blocks; those that `wanted.out` holds in part are decoded aside."""
        (first, last), size = run, self.block_bytes
        origin, stop = self.range_of(run)
        if payload.size != stop - origin:
            raise TruncatedDataError(
                f"{counted(payload.size, 'byte')} where {stop - origin} were expected, at {origin}"
            )
        reach = wanted.base + wanted.out.size
        inner = max(first, min(last, -(-wanted.base // size)))
        inner_last = last if reach >= self._end(last) else max(inner, min(last - 1, reach // size))
        for block in (*range(first, inner), *range(inner_last, last)):
            begin = block * size
            whole = scratch.get(self._end(block + 1) - begin)
            part = payload[self.offsets[block] - origin : self.offsets[block + 1] - origin]
            self._index.decode_block_range(part, block, block + 1, whole)
            wanted.put(begin, whole)
        if inner < inner_last:
            part = payload[self.offsets[inner] - origin : self.offsets[inner_last] - origin]
            out = wanted.out[inner * size - wanted.base : self._end(inner_last) - wanted.base]
            self._index.decode_block_range(part, inner, inner_last, out)

    def _end(self, block: int) -> int:
        """Return where the blocks before this one end in the chunk."""
        return self.nbytes if block == self.n_blocks else block * self.block_bytes
