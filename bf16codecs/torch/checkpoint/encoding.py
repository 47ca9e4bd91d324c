"""Boxes of tensors that become chunks of a store, in any process that has them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._buffers import Bytes, ThreadBuffer
from bf16codecs._chunks.based import ChunkBase
from bf16codecs._chunks.grid import ArrayPlan, Piece
from bf16codecs._chunks.pieces import RangeReader
from bf16codecs.errors import BF16CodecsError, CheckpointWarning
from bf16codecs.store.zarr_metadata import chunk_key
from bf16codecs.store.zarr_writer import ChunkWriter

__all__ = ["ZARR_FORMAT", "ChunkEncoder", "Index", "chunk_axes", "chunk_file", "chunks_of"]

ZARR_FORMAT = 3

# What level best has to gain, which takes many times as long: of Adam's moments, it does (3 and
# 9 %), of weights it does not (0.6 %): docs/training.md.
_LEAST_GAIN = 0.02

#: Of a chunk, along each axis.
Index = tuple[int, ...]


def chunk_axes(array: ArrayPlan, index: Index) -> tuple[range, ...]:
    """Return the indices that a chunk has along each axis, without padding."""
    return Piece(array, index, 0, 0).region


def chunks_of(array: ArrayPlan, axes: Sequence[range]) -> Iterator[Index]:
    """Yield the chunks that have items of a box, the last axis first."""
    if not all(axes):
        return
    firsts = [axis.start // n for axis, n in zip(axes, array.chunks, strict=True)]
    counts = [
        (axis.stop - 1) // n - first + 1
        for axis, n, first in zip(axes, array.chunks, firsts, strict=True)
    ]
    for index in np.ndindex(*counts):
        yield tuple(i + first for i, first in zip(index, firsts, strict=True))


@dataclass(frozen=True)
class ChunkEncoder:
    """Encodes and writes chunks, whose items are given as unsigned integers of their width.

    Attributes
    ----------
    writer : ChunkWriter
        Writes them.
    bases : mapping
        By path, what arrays that have a base are coded against.
    is_base_optional : bool
        Whether chunks whose base is damaged are coded without it, of which a warning tells.
    memory, base_memory : ThreadBuffer
        For padded chunks, and for what they are coded against.
    """

    writer: ChunkWriter
    bases: Mapping[str, RangeReader]
    is_base_optional: bool
    memory: ThreadBuffer
    base_memory: ThreadBuffer

    @classmethod
    def of(
        cls, writer: ChunkWriter, bases: Mapping[str, RangeReader], is_base_optional: bool
    ) -> ChunkEncoder:
        """Return an encoder with memory of its own."""
        return cls(writer, bases, is_base_optional, ThreadBuffer(), ThreadBuffer())

    def put(self, array: ArrayPlan, index: Index, values: NDArray[Any]) -> int:
        """Write a chunk of an array, given without padding; return its stored size."""
        chunk, base = self._padded(array, values), self._base(array, index)
        return self.writer.write(Piece(array, index, 0, values.nbytes), chunk, base)

    def best_pays(self, array: ArrayPlan, index: Index, values: NDArray[Any]) -> bool:
        """Tell whether level best pays for an array, by one of its chunks."""
        if array.dtype not in _core.DTYPES:
            return False
        chunk, base = self._padded(array, values), self._base(array, index)
        fast, best = (
            len(self.writer.encode(replace(array, level=level), chunk, base))
            for level in ("fast", "best")
        )
        return best <= (1 - _LEAST_GAIN) * fast

    def _base(self, array: ArrayPlan, index: Index) -> Bytes | None:
        if not array.has_base:
            return None
        base = self.base_memory.get(array.chunk_nbytes)
        # Of the array alone, not of the file.
        bases = ChunkBase(self.bases[array.path], replace(array, offset=0))
        try:
            bases.read(index, 0, base.size, base)
        except BF16CodecsError as e:
            if not self.is_base_optional:
                raise
            text = f"not stored as a difference, since the checkpoint before is damaged: {e}"
            warnings.warn(text, CheckpointWarning, stacklevel=2)
            return None
        return base

    def _padded(self, array: ArrayPlan, values: NDArray[Any]) -> Bytes:
        if values.shape == array.chunks and values.flags.c_contiguous:
            return values.reshape(-1).view(np.uint8)
        chunk = self.memory.get(array.chunk_nbytes)
        fill = np.array(array.fill_value, array.dtype).view(f"u{array.item_size}")
        padded = chunk.view(fill.dtype).reshape(array.chunks)
        if values.shape != array.chunks:
            padded[...] = fill
        padded[tuple(map(slice, values.shape))] = values
        return chunk


def chunk_file(folder: Path, array: ArrayPlan, index: Index) -> str:
    """Return the file of a chunk in a store."""
    return os.path.join(folder, array.path, chunk_key(ZARR_FORMAT)(index))
