"""Ranges of arrays whose chunks are decoded whole, however small the range is."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.array import RangeReader, UnitArray
from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._arrays.indexing import Axis, cut_range
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.device_memory import Memory

__all__ = ["KeptPiece", "PiecewiseArray", "ranges_work"]

# How much of a base is read at a time, as a rule: see `PiecewiseArray`.
_PART_BYTES = 1 << 21


class KeptPiece(threading.local):
    """The piece of an array that a thread has decoded last."""

    def __init__(self) -> None:
        self._owner: object = None
        self._offset = 0
        self._memory = np.empty(0, np.uint8)

    def get(self, array: UnitArray, offset: int) -> Bytes | None:
        """Return the piece of an array that begins at an offset, if it is kept."""
        return self._memory if (self._owner, self._offset) == (array, offset) else None

    def room(self, nbytes: int) -> Bytes:
        """Forget the piece, and return memory for another."""
        self._owner = None
        if self._memory.size < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory

    def put(self, array: UnitArray, offset: int) -> None:
        """Note which piece that memory holds."""
        self._owner, self._offset = array, offset


class PiecewiseArray(RangeReader):
    """Reads an array piece by piece, each once if they are asked for in order.

    Differences are read in parts of 2 MiB. From a base in chunks of 16 MiB that were decoded whole
    for each, loading took eight times as long as the base itself. Several arrays may share the last
    piece that is `kept`.
    """

    def __init__(self, array: UnitArray, kept: KeptPiece) -> None:
        self._array, self._kept = array, kept
        self._plan = array.plan(array.label)
        self.concurrency = array.concurrency

    def read_range(self, start: int, stop: int, out: Memory) -> None:
        """Read a range of the array's bytes."""
        whole = self._plan.chunk_nbytes
        while start < stop:
            piece = self._plan.piece_at(start)
            local = start - piece.offset
            size = min(stop - start, piece.nbytes - local)
            content = self._kept.get(self._array, piece.offset)
            if content is None and size == whole and isinstance(out, np.ndarray):
                # Decode straight into `out`: in conversions, whose chunks are often those of the
                # base, this takes 25 MB less.
                self._array.read_piece(piece, out[:size])
            else:
                if content is None:
                    content = self._kept.room(whole)
                    self._array.read_piece(piece, content[:whole])
                    self._kept.put(self._array, piece.offset)
                out[:size] = content[local : local + size]
            start, out = start + size, out[size:]

    def read_box(self, axes: Sequence[Axis], out: NDArray[Any]) -> None:
        """Read a box of the array."""
        self._array.read_box(axes, out)


def ranges_work(array: UnitArray, nbytes: int, chunks: tuple[int, ...]) -> int:
    """Estimate how many bytes are decoded to read `nbytes` of a base in order.

    A part is in few chunks where these are whole rows, and in all of them where they are columns.
    If the `chunks` of the differences are not whole rows, the base is read in the order of chunks.
    """
    size, whole = array.dtype.itemsize, math.prod(array.shape) * array.dtype.itemsize
    if whole == 0:
        return 0
    box = array.shape
    if not _are_contiguous(array, chunks):
        box = tuple(map(min, chunks, array.shape))
    elif _are_contiguous(array, array.chunks):
        return nbytes * array.whole_work // whole
    part = _PART_BYTES if array.reads_ranges else array.plan(array.label).chunk_nbytes
    items = max(1, min(part // size, math.prod(box)))
    boxes = cut_range(box, 0, items)
    return sum(array.box_work(axes).total for axes in boxes) * -(-nbytes // (items * size))


def _are_contiguous(array: UnitArray, chunks: tuple[int, ...]) -> bool:
    return ArrayPlan(array.label, array.dtype.name, array.shape, chunks).is_contiguous
