"""Boxes of arrays, read into memory of a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from bf16codecs._chunks.array import SLAB_BYTES, ArrayReader, ChunkedArray, Index, Job
from bf16codecs._chunks.indexing import cut_box
from bf16codecs._chunks.layouts import Layout, copies
from bf16codecs._chunks.steps import StepView
from bf16codecs._device_memory import DeviceMemory

__all__ = ["decodes_there", "device_jobs"]

#: Indices along each axis, which follow each other.
Axes = Sequence[range]

# What is one run of bytes in its chunk or where it goes, but not in both, is decoded to memory that
# each thread has, in parts of this size.
_DETOUR_BYTES = 1 << 22


def decodes_there(array: ArrayReader) -> bool:
    """Tell whether an array's chunks can be decoded on a device."""
    return isinstance(array, (ChunkedArray, StepView)) and array.decodes_ranges


def device_jobs(
    array: ArrayReader, memory: DeviceMemory, axes: Axes | None = None
) -> Iterator[Job]:
    """Yield what together reads a box, little-endian and in C order; in any order, at one time.

    Parameters
    ----------
    array
        The array.
    memory
        Of the box's size.
    axes
        The box; None for all of the array, which may also be one that the host has to decode.
    """
    if not isinstance(array, (ChunkedArray, StepView)) or not array.decodes_ranges:
        yield from _by_the_host(array, memory)
        return
    if memory.size == 0:  # the other axes may be of any length
        return
    axes = [range(size) for size in array.shape] if axes is None else axes
    box = Layout.of([len(axis) for axis in axes], array.dtype.itemsize)
    for segments in cut_box(axes, array.chunks):
        index = tuple(segment.chunk for segment in segments)
        local = [range(s.indices[0], s.indices[-1] + 1) for s in segments]
        part = box.part([segment.place for segment in segments])
        yield partial(_read_part, array, index, local, memory, part)


def _by_the_host(array: ArrayReader, memory: DeviceMemory) -> Iterator[Job]:
    plan = array.plan(array.label)
    for piece in plan.pieces():
        for start in range(piece.offset, piece.offset + piece.nbytes, SLAB_BYTES):
            stop = min(start + SLAB_BYTES, piece.offset + piece.nbytes)
            yield partial(array.read_run, start, stop, memory[start:stop])


def _read_part(
    array: ChunkedArray | StepView, index: Index, axes: Axes, memory: DeviceMemory, to: Layout
) -> None:
    """Read a box of one chunk to where it is to be in memory."""
    box = _slices(axes)
    stored = Layout.of(array.chunks, array.dtype.itemsize).part(box)
    if stored.is_run and to.is_run:
        array.read_chunk(index, memory[to.offset : to.offset + to.span], stored.offset)
    elif stored.span <= _DETOUR_BYTES:
        decoded = memory.lent(stored.span)
        array.read_chunk(index, decoded, stored.offset, box)
        for there, here, rows in copies(to, replace(stored, offset=0)):
            memory[there : memory.size].put_rows(decoded[here : decoded.size], rows)
    else:
        for half in _halves(axes):
            place = [
                slice(h.start - a.start, h.stop - a.start) for h, a in zip(half, axes, strict=True)
            ]
            _read_part(array, index, half, memory, to.part(place))


def _slices(axes: Axes) -> tuple[slice, ...]:
    return tuple(slice(axis.start, axis.stop) for axis in axes)


def _halves(axes: Axes) -> Iterator[list[range]]:
    """Yield both halves of a box, cut along its first axis of several indices."""
    at = next(i for i, axis in enumerate(axes) if len(axis) > 1)
    middle = len(axes[at]) // 2
    for half in (axes[at][:middle], axes[at][middle:]):
        yield [*axes[:at], half, *axes[at + 1 :]]
