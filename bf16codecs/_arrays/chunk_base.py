"""Bases of chunks: the same box of another array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._arrays.indexing import cut_run
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.device_memory import DeviceMemory, Place

__all__ = ["BaseReader", "ChunkBase"]


class BaseReader(Protocol):
    """The interface of bases: ranges of an array's bytes, and boxes of its items."""

    def read_run(self, start: int, stop: int, out: Place) -> None:
        """Read a range of the array's bytes."""

    def read_box(self, axes: Sequence[range], out: NDArray[Any]) -> None:
        """Read a box of the array."""


class ChunkBase:
    """The bases of an array's chunks.

    Parameters
    ----------
    base
        Another array of the same shape and data type.
    plan
        The array.
    """

    def __init__(self, base: BaseReader, plan: ArrayPlan) -> None:
        self._base, self._plan = base, plan

    def read(self, index: tuple[int, ...], start: int, stop: int, out: Place) -> None:
        """Read a range of the bytes of a chunk's base, padded as the chunk is.

        It is of whole items, as blocks of frames are.
        """
        if self._plan.is_contiguous:
            self._read_run(index, start, stop, out)
        elif isinstance(out, DeviceMemory):
            host = np.empty(out.size, np.uint8)
            self._read_boxes(index, start, stop, host)
            out[:] = host
        else:
            self._read_boxes(index, start, stop, out)

    def _read_run(self, index: tuple[int, ...], start: int, stop: int, out: Place) -> None:
        piece = self._plan.piece(index)
        stored = max(0, min(stop, piece.nbytes) - start)
        if stored:
            first = piece.offset + start
            self._base.read_run(first, first + stored, out[:stored])
        if isinstance(out, np.ndarray) and out.size > stored:
            self._pad(out[stored:])
        elif out.size > stored:
            padding = np.empty(out.size - stored, np.uint8)
            self._pad(padding)
            out[stored:] = padding

    def _read_boxes(self, index: tuple[int, ...], start: int, stop: int, out: Bytes) -> None:
        plan, rest = self._plan, self._pad(out)
        for local in cut_run(plan.chunks, start // plan.item_size, stop // plan.item_size):
            lengths = [len(axis) for axis in local]
            box, rest = np.split(rest, [math.prod(lengths)])
            axes = [
                range(i * n + axis.start, min(i * n + axis.stop, whole))
                for i, n, axis, whole in zip(index, plan.chunks, local, plan.shape, strict=True)
            ]
            if all(axes):
                place = tuple(slice(len(axis)) for axis in axes)
                self._base.read_box(axes, box.reshape(lengths)[place])

    def _pad(self, out: Bytes) -> NDArray[Any]:
        """Fill memory with items that arrays are padded with, and return these."""
        values = out.view(np.dtype(self._plan.dtype).newbyteorder("<"))
        values[:] = self._plan.fill_value
        return values
