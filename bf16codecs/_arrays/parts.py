"""Parts of chunks to read, and the bytes that a selection touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._arrays.indexing import Axis
from bf16codecs._arrays.storage import Range
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.device_memory import Memory

__all__ = ["Base", "ChunkPart", "base_advice", "touched_ranges"]

#: Reads a range of a base, given by its first byte and the one after the last, into memory.
Base = Callable[[int, int, Any], None]

# Gaps between ranges to read that cost more to leave out than to read.
_GAP = 1 << 16


def base_advice() -> str:
    """Return advice about a base that is missing, or does not match."""
    in_python = "base=..., as bf16codecs.open_model takes it"
    return f"name its base with {for_caller(in_python, '--base')}"


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """The part of a chunk to read, and the memory to decode it to."""

    #: The chunk's size, padding included.
    chunk_nbytes: int
    #: Returns the bytes of the chunk to read: ranges, ascending, without overlap. Those that are
    #: closer than its argument may be one.
    touched: Callable[[int], Sequence[Range]]
    #: The chunk's bytes from `offset` on. What lies between the ranges is undefined.
    out: Memory
    offset: int = 0
    #: Reads ranges of the base that versions of the chunk may be coded against.
    base: Base | None = None
    #: Returns a range of that base where it is in memory, or None.
    base_view: Callable[[int, int], Bytes | None] = lambda start, stop: None
    #: The version of the chunk that the base is: it is not decoded. None if it is outside of it.
    known: int | None = None
    #: Has what parts of `out`, on the host, had before frames were decoded to them.
    log: _core.UndoLog | None = None
    #: Whether missing versions are read as bytes of 255. Otherwise asking for one is an error.
    pads: bool = False

    @classmethod
    def of_range(cls, chunk_nbytes: int, out: Memory, offset: int) -> ChunkPart:
        """Return the part that fills `out`, from an offset on."""
        return cls(chunk_nbytes, lambda gap: [(offset, offset + out.size)], out, offset)

    @classmethod
    def whole(cls, out: Memory) -> ChunkPart:
        """Return all of a chunk as a part."""
        return cls.of_range(out.size, out, 0)

    @property
    def whole_array(self) -> Bytes | None:
        """The memory that holds the whole chunk, if that is the host's and not only a part."""
        is_whole = self.out.size == self.chunk_nbytes and isinstance(self.out, np.ndarray)
        return self.out if is_whole else None  # type: ignore[return-value]

    def ranges(self, gap: int = _GAP) -> Sequence[Range]:
        """Return the ranges; those with a small gap between them, at most `gap`, may be joined."""
        return self.touched(min(gap, _GAP))

    def view(self, start: int, stop: int) -> Any:
        """Return the chunk's bytes [start, stop) in `out`, or None if it lacks some of them."""
        if start < self.offset or stop > self.offset + self.out.size:
            return None
        return self.out[start - self.offset : stop - self.offset]

    def put(self, start: int, content: Any) -> None:
        """Copy the chunk's bytes from `start` on into `out`, as far as it has them."""
        first = max(start, self.offset)
        last = min(start + content.size, self.offset + self.out.size)
        if first < last:
            target: Any = self.out[first - self.offset : last - self.offset]
            if self.log is not None:
                self.log.add(target)
            target[:] = content[first - start : last - start]


def touched_ranges(
    selection: Any, shape: tuple[int, ...], item_size: int, gap: int, base: int = 0
) -> list[Range]:
    """Find the bytes that hold the elements of ``array[selection]``, as ascending ranges.

    The answer may have a byte too many and never one too few: the selection itself is left to
    NumPy, over an array in which the other bytes are undefined. The selection has integers, slices
    and integer arrays, as zarr hands them to partial decoding, and the array begins at byte `base`.
    Ranges with fewer than `gap` bytes between them are joined: so their number is at most the size
    of the array divided by `gap`, and one more.

    Examples
    --------
    >>> touched_ranges((slice(10, 12), slice(None)), (100, 64), 2, 1024)
    [(1280, 1536)]
    >>> touched_ranges(([0, 99],), (100, 64), 2, 1024)
    [(0, 128), (12672, 12800)]
    """
    selection = selection if isinstance(selection, tuple) else (selection,)
    if _is_coordinates(selection, shape):
        starts = _coordinate_starts(selection, shape, item_size)
        stops = starts + item_size
    else:
        starts, stops = _orthogonal_spans(_axes(selection, shape), shape, item_size, gap)
    return _joined(starts + base, stops + base, gap)


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


def _axes(selection: tuple[Any, ...], shape: tuple[int, ...]) -> list[Axis]:
    """Return the indices that the selection uses on each axis: maybe too many, never too few."""
    if any(s is Ellipsis for s in selection):
        at = next(i for i, s in enumerate(selection) if s is Ellipsis)
        fill = (slice(None),) * (len(shape) - len(selection) + 1)
        selection = selection[:at] + fill + selection[at + 1 :]
    selection += (slice(None),) * (len(shape) - len(selection))
    if len(selection) != len(shape):  # boolean arrays of several dimensions, or new axes
        return [range(length) for length in shape]
    return [_axis(s, length) for s, length in zip(selection, shape, strict=True)]


def _axis(selection: Any, length: int) -> Axis:
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
    axes: list[Axis], shape: tuple[int, ...], item_size: int, gap: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return byte ranges, ascending, that cover the selected items.

    From the last axis to the first, every index repeats the ranges of the axes after it. Where an
    axis steps by at most `gap`, one range covers neighbouring indices and the gaps between them.
    """
    starts, stops = np.zeros(1, np.intp), np.full(1, item_size, np.intp)
    stride = item_size
    for axis, length in zip(reversed(axes), reversed(shape), strict=True):
        if len(axis) == 0:
            return starts[:0], stops[:0]
        if stride <= gap:
            first, last = _spans_of_indices(axis, gap // stride)
            starts, stops = first * stride + starts[0], last * stride + stops[-1]
        else:
            offsets = np.asarray(axis, np.intp)[:, np.newaxis] * stride
            starts, stops = (offsets + starts).ravel(), (offsets + stops).ravel()
        stride *= length
    return starts, stops


def _spans_of_indices(axis: Axis, gap: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return first and last index of each span in which neighbours differ by at most `gap`."""
    if isinstance(axis, range) and (axis.step <= gap or len(axis) == 1):
        return np.array([axis[0]], np.intp), np.array([axis[-1]], np.intp)
    indices = np.asarray(axis, np.intp)
    breaks = np.flatnonzero(np.diff(indices) > gap)
    return indices[np.r_[0, breaks + 1]], indices[np.r_[breaks, len(indices) - 1]]


def _joined(starts: NDArray[np.intp], stops: NDArray[np.intp], gap: int) -> list[Range]:
    """Return the ranges, with those joined that are closer than `gap`."""
    if len(starts) == 0:
        return []
    is_first = np.r_[True, starts[1:] - stops[:-1] >= gap]
    last = np.r_[np.flatnonzero(is_first)[1:] - 1, len(stops) - 1]
    return list(zip(starts[is_first].tolist(), stops[last].tolist(), strict=True))
