"""Encodes boxes of tensors as chunks of a store, in any process of a job."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._arrays.array import ChunkBase, RangeReader
from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex, Piece
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.messages import one_line
from bf16codecs.errors import BF16CodecsError, CheckpointWarning
from bf16codecs.store.zarr.writer import ChunkWriter

__all__ = ["ChunkEncoder", "chunks_of"]

# The least gain of level best, which takes many times as long: it gains 3 and 7 % on Adam's
# moments, and 0.8 % on weights: docs/howto/training.md.
_LEAST_GAIN = 0.02


def chunks_of(array: ArrayPlan, axes: Sequence[range]) -> Iterator[ChunkIndex]:
    """Yield the chunks that have items of a box, in C order."""
    if not all(axes):
        return
    firsts = [axis.start // n for axis, n in zip(axes, array.chunks, strict=True)]
    counts = [
        (axis.stop - 1) // n - first + 1
        for axis, n, first in zip(axes, array.chunks, firsts, strict=True)
    ]
    for index in np.ndindex(*counts):
        yield tuple(i + first for i, first in zip(index, firsts, strict=True))


class ChunkEncoder:
    """Encodes and writes chunks, whose items are given as unsigned integers of their width.

    `bases` are by path of the array. With `is_base_optional`, chunks whose base cannot be read are
    stored whole, with a warning.
    """

    def __init__(
        self,
        writer: ChunkWriter,
        bases: Mapping[str, RangeReader],
        is_base_optional: bool = False,
    ) -> None:
        self._writer, self._bases, self._is_base_optional = writer, bases, is_base_optional
        self.concurrency = writer.concurrency
        # Buffers for padded chunks, and for their bases.
        self._memory, self._base_memory = ThreadBuffer(), ThreadBuffer()
        self._has_warned = False

    def put(self, array: ArrayPlan, index: ChunkIndex, values: NDArray[Any]) -> int:
        """Write a chunk of an array, given without padding; return its stored size."""
        chunk, base = self._padded(array, values), self._base(array, index)
        return self._writer.write(Piece(array, index, 0, values.nbytes), chunk, base)

    def best_pays(self, array: ArrayPlan, index: ChunkIndex, values: NDArray[Any]) -> bool:
        """Tell whether level best pays for an array, from one of its chunks."""
        if array.dtype not in _core.DTYPES:
            return False
        chunk, base = self._padded(array, values), self._base(array, index)
        fast, best = (
            len(self._writer.encode(replace(array, level=level), chunk, base))
            for level in ("fast", "best")
        )
        return best <= (1 - _LEAST_GAIN) * fast

    def _base(self, array: ArrayPlan, index: ChunkIndex) -> Bytes | None:
        if not array.has_base or (self._is_base_optional and array.path not in self._bases):
            return None
        base = self._base_memory.get(array.chunk_nbytes)
        # Offsets count from the start of the array, not of the file.
        bases = ChunkBase(lambda: self._bases[array.path], replace(array, offset=0))
        try:
            bases.read(index, 0, base.size, base)
        except (BF16CodecsError, OSError) as e:
            if not self._is_base_optional:
                raise
            self.warn_of_base(e)
            return None
        return base

    def warn_of_base(self, error: Exception) -> None:
        """Warn that the previous checkpoint cannot be read: once, although each chunk needs it."""
        if not self._has_warned:
            self._has_warned = True
            text = "chunks are stored whole: the checkpoint before cannot be read:"
            warnings.warn(f"{text} {one_line(error)}", CheckpointWarning, stacklevel=2)

    def _padded(self, array: ArrayPlan, values: NDArray[Any]) -> Bytes:
        if values.shape == array.chunks and values.flags.c_contiguous:
            return values.reshape(-1).view(np.uint8)
        chunk = self._memory.get(array.chunk_nbytes)
        fill = np.array(array.fill_value, array.dtype).view(f"u{array.item_size}")
        padded = chunk.view(fill.dtype).reshape(array.chunks)
        if values.shape != array.chunks:
            padded[...] = fill
        padded[tuple(map(slice, values.shape))] = values
        return chunk
