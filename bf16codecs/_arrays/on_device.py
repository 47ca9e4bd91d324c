"""Boxes of arrays, read into memory of a device and copied to their positions there."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, product
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.array import SLAB_BYTES, ArrayReader, ChunkedArray, Job, Located
from bf16codecs._arrays.grid import ChunkIndex, chunk_shape
from bf16codecs._arrays.indexing import cut_box
from bf16codecs._arrays.views import StepView
from bf16codecs._base.device_memory import DeviceMemory, Rows

__all__ = ["decodes_there", "device_jobs", "host_nbytes"]

#: Indices along each axis, which follow each other.
Axes = Sequence[range]
#: Arrays whose chunks can be decoded on a device.
Decodable = ChunkedArray | StepView

# A box that is not one range of bytes, in its chunk or in the result, is read into each thread's
# memory first, in parts of this size.
_DETOUR_BYTES = 1 << 22


def decodes_there(array: ArrayReader) -> TypeGuard[Decodable]:
    """Tell whether an array's chunks can be decoded on a device."""
    return isinstance(array, (ChunkedArray, StepView)) and array.decodes_ranges


def host_nbytes(array: ArrayReader) -> int:
    """Return how much memory of the host a job of `device_jobs` takes."""
    if decodes_there(array):
        return array.scratch_nbytes
    return array.scratch_nbytes + math.prod(_unit(array)) * array.dtype.itemsize


def device_jobs(
    array: ArrayReader, memory: DeviceMemory, axes: Axes | None = None
) -> Iterator[Job]:
    """Yield jobs that together read a box, little-endian and in C order, in any order or at once.

    Chunks are decoded on the device if that `decodes_there`, and otherwise on the host. `memory`
    has the size of the box, which is all of the array if `axes` is None.
    """
    if memory.size == 0:  # the other axes may be of any length
        return
    axes = [range(size) for size in array.shape] if axes is None else axes
    layout = _Layout.of([len(axis) for axis in axes], array.dtype.itemsize)
    for segments in cut_box(axes, _unit(array)):
        to = layout.part([segment.positions for segment in segments])
        if decodes_there(array):
            index = tuple(segment.chunk for segment in segments)
            box = [range(s.indices[0], s.indices[-1] + 1) for s in segments]
            yield partial(_decode_there, array, index, array._find(index), box, memory, to)
        else:
            box = [axis[s.positions] for axis, s in zip(axes, segments, strict=True)]
            values = np.empty(to.shape, array.dtype)
            jobs = list(array.box_jobs(box, values))
            yield partial(_decode_here, jobs, values, memory, to)


def _unit(array: ArrayReader) -> tuple[int, ...]:
    """Return the shape that a job reads: a whole unit, if chunks are decoded whole."""
    if decodes_there(array) or not array.reads_ranges:
        return array._unit
    return chunk_shape(array._unit, array.dtype.itemsize, SLAB_BYTES)


def _decode_there(
    array: Decodable,
    index: ChunkIndex,
    located: Located | None,
    axes: Axes,
    memory: DeviceMemory,
    to: _Layout,
) -> None:
    """Read a box of one chunk to its positions in memory."""
    box = _slices(axes)
    stored = _Layout.of(array.chunks, array.dtype.itemsize).part(box)
    if stored.is_contiguous and to.is_contiguous:
        part = memory[to.offset : to.offset + to.span]
        array.read_chunk(index, located, box, part, stored.offset)
    elif stored.span <= _DETOUR_BYTES:
        decoded = memory.lent(stored.span)
        array.read_chunk(index, located, box, decoded, stored.offset)
        _copy(decoded, replace(stored, offset=0), memory, to)
    else:
        for half, region in _halves(axes):
            _decode_there(array, index, located, half, memory, to.part(region))


def _decode_here(
    jobs: Sequence[Job], values: NDArray[Any], memory: DeviceMemory, to: _Layout
) -> None:
    """Read a box on the host, and copy it to its positions."""
    for job in jobs:
        job()
    _put(values.astype(values.dtype.newbyteorder("<"), copy=False), memory, to)


def _put(values: NDArray[Any], memory: DeviceMemory, to: _Layout) -> None:
    if to.is_contiguous:
        memory[to.offset : to.offset + to.span] = _bytes(values)
    elif values.nbytes <= _DETOUR_BYTES:
        there = memory.lent(values.nbytes)
        there[:] = _bytes(values)
        _copy(there, _Layout.of(values.shape, values.itemsize), memory, to)
    else:
        for _, region in _halves([range(size) for size in values.shape]):
            _put(values[region], memory, to.part(region))


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _copy(source: DeviceMemory, at: _Layout, memory: DeviceMemory, to: _Layout) -> None:
    for there, here, rows in _copies(to, at):
        memory[there : memory.size].put_rows(source[here : source.size], rows)


def _slices(axes: Axes) -> tuple[slice, ...]:
    return tuple(slice(axis.start, axis.stop) for axis in axes)


def _halves(axes: Axes) -> Iterator[tuple[Axes, tuple[slice, ...]]]:
    """Yield both halves of a box, and their slices of it, along its first axis of several."""
    at = next(i for i, axis in enumerate(axes) if len(axis) > 1)
    middle = len(axes[at]) // 2
    for cut in (slice(0, middle), slice(middle, len(axes[at]))):
        half = [*axes[:at], axes[at][cut], *axes[at + 1 :]]
        part = [slice(0, len(axis)) for axis in axes]
        part[at] = cut
        yield half, tuple(part)


@dataclass(frozen=True)
class _Layout:
    """Where the items of a box are in the bytes of an array in C order.

    `strides` are the bytes from one item to the next along each axis, and `offset` is that of the
    first.
    """

    item_size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, shape: Sequence[int], item_size: int) -> _Layout:
        """Return the layout of a whole array."""
        strides = accumulate(reversed(shape), operator.mul, initial=item_size)
        return cls(item_size, tuple(shape), tuple(strides)[-2::-1])

    @property
    def span(self) -> int:
        """Bytes from the first item to the end of the last, if there are items."""
        sizes = zip(self.shape, self.strides, strict=True)
        return sum((size - 1) * stride for size, stride in sizes) + self.item_size

    @property
    def is_contiguous(self) -> bool:
        """Whether the items are one range of bytes."""
        return self.span == math.prod(self.shape) * self.item_size

    def part(self, region: Sequence[slice]) -> _Layout:
        """Return the layout of a part, given by slices with a start and a stop."""
        at = sum(p.start * stride for p, stride in zip(region, self.strides, strict=True))
        shape = tuple(p.stop - p.start for p in region)
        return replace(self, shape=shape, offset=self.offset + at)


def _copies(to: _Layout, source: _Layout) -> Iterator[tuple[int, int, Rows]]:
    """Yield the few copies that move a box: offsets of the first row in both, and the rows."""
    axes = _joined_axes(to, source)
    nbytes = to.item_size
    if axes and axes[-1][1:] == (nbytes, nbytes):
        nbytes *= axes.pop()[0]
    rows = Rows(nbytes, *(axes.pop() if axes else (1, nbytes, nbytes)))
    for index in product(*(range(size) for size, _, _ in axes)):
        there = sum(i * stride for i, (_, stride, _) in zip(index, axes, strict=True))
        here = sum(i * stride for i, (_, _, stride) in zip(index, axes, strict=True))
        yield to.offset + there, source.offset + here, rows


def _joined_axes(to: _Layout, source: _Layout) -> list[tuple[int, int, int]]:
    """Return the size of each axis and its strides in both, where neighbours may be one."""
    axes: list[tuple[int, int, int]] = []
    for size, there, here in zip(to.shape, to.strides, source.strides, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1:] == (size * there, size * here):
            axes[-1] = (axes[-1][0] * size, there, here)
        else:
            axes.append((size, there, here))
    return axes
