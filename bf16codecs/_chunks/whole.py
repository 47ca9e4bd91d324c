"""Whole arrays, read into memory of a device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bf16codecs._chunks.array import SLAB_BYTES, ArrayReader, ChunkedArray, Job
from bf16codecs._chunks.grid import ArrayPlan
from bf16codecs._chunks.steps import StepView
from bf16codecs._device_memory import DeviceMemory

__all__ = ["device_jobs"]


def device_jobs(array: ArrayReader, memory: DeviceMemory) -> Iterator[Job]:
    """Yield what together reads an array, little-endian and in C order; in any order, at one time.

    Chunks whose bytes are ranges of the array are decoded straight into the memory. Others are
    decoded on the host.

    Parameters
    ----------
    array
        The array.
    memory
        Of the array's size.
    """
    plan = ArrayPlan(array.label, array.dtype.name, array.shape, array.chunks)
    if plan.is_contiguous and isinstance(array, (ChunkedArray, StepView)) and array.decodes_ranges:
        for piece in plan.pieces():
            part = memory[piece.offset : piece.offset + piece.nbytes]
            yield partial(array.read_chunk, piece.index, part)
        return
    plan = array.plan(array.label)
    for piece in plan.pieces():
        for start in range(piece.offset, piece.offset + piece.nbytes, SLAB_BYTES):
            stop = min(start + SLAB_BYTES, piece.offset + piece.nbytes)
            yield partial(array.read_run, start, stop, memory[start:stop])
