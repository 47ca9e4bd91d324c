"""What codes the chunks of HDF5 datasets, and where the stored bytes come from."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numcodecs import Shuffle, Zstd
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._chunks.blocks import touched_blocks
from bf16codecs._chunks.zstd import decode_zstd
from bf16codecs.codecs import FrameCodec
from bf16codecs.errors import CorruptDataError, TruncatedDataError

__all__ = [
    "Coder",
    "Frames",
    "InFile",
    "InMemory",
    "Memory",
    "Plain",
    "ShuffledZstd",
    "StoredBytes",
    "ThreadMemory",
]

Bytes = NDArray[np.uint8]
#: Of a chunk, on every axis.
Part = tuple[slice | NDArray[np.intp], ...]

# Read, and decoded while they are in the processor's cache, for each thread.
_PIECE_BYTES = 1 << 21
# Holds the block table of a chunk of 256 MiB.
_HEAD_BYTES = 1 << 12


class Memory:
    """Memory that is used for chunk after chunk: fresh pages cost more than decoding into them."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def get(self, size: int) -> Bytes:
        """Return memory whose content is undefined, until the next call."""
        if self._buffer.size < size:
            self._buffer = np.empty(size, np.uint8)
        return self._buffer[:size]


class ThreadMemory(threading.local):
    """Memory of each thread."""

    def __init__(self) -> None:
        self.memory = Memory()


class StoredBytes(Protocol):
    """A chunk as it is stored."""

    size: int

    def get(self, start: int, stop: int) -> Bytes:
        """Return a part of it, until the next call."""


class InMemory:
    """A stored chunk that HDF5 has read."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.size = data.size

    def get(self, start: int, stop: int) -> Bytes:
        """Return a part of it."""
        return self._data[start:stop]


class InFile:
    """A stored chunk that is read from the file part by part.

    Parameters
    ----------
    descriptor, offset, size
        Where it is.
    memory
        Where parts are read to.
    """

    def __init__(self, descriptor: int, offset: int, size: int, memory: Memory) -> None:
        self._descriptor, self._offset, self._memory = descriptor, offset, memory
        self.size = size

    def get(self, start: int, stop: int) -> Bytes:
        """Read a part of it."""
        part = self._memory.get(stop - start)
        done = 0
        while done < part.size:
            position = self._offset + start + done
            count = os.preadv(self._descriptor, [part[done:].data], position)
            if count == 0:
                raise TruncatedDataError(f"the file ends at byte {position}, inside of the chunk")
            done += count
        return part


class Coder(Protocol):
    """Codes the chunks of a dataset; several threads may call it."""

    def encode(self, chunk: Bytes) -> Any:
        """Return a chunk as it is to be stored."""

    def decode(self, stored: StoredBytes, out: Bytes) -> None:
        """Decode a whole chunk."""

    def decode_part(self, stored: StoredBytes, part: Part, out: Bytes) -> None:
        """Decode at least a part of a chunk to its place in the chunk."""


class _WholeChunks:
    """A coder that decodes whole chunks only."""

    def decode(self, stored: StoredBytes, out: Bytes) -> None:
        raise NotImplementedError

    def decode_part(self, stored: StoredBytes, part: Part, out: Bytes) -> None:
        self.decode(stored, out)


class Plain(_WholeChunks):
    """No filter: chunks as they are."""

    def encode(self, chunk: Bytes) -> Any:
        """Return the chunk itself."""
        return chunk

    def decode(self, stored: StoredBytes, out: Bytes) -> None:
        """Copy a chunk."""
        if stored.size != out.size:
            raise CorruptDataError(f"it has {stored.size} bytes, and a chunk {out.size}")
        for start in range(0, out.size, _PIECE_BYTES):
            stop = min(start + _PIECE_BYTES, out.size)
            out[start:stop] = stored.get(start, stop)


class ShuffledZstd(_WholeChunks):
    """HDF5's shuffle, unless items have one byte, and the Zstandard filter."""

    def __init__(self, level: int, item_size: int) -> None:
        self._zstd = Zstd(level)
        self._shuffle = Shuffle(item_size) if item_size > 1 else None

    def encode(self, chunk: Bytes) -> Any:
        """Shuffle and compress a chunk."""
        return self._zstd.encode(chunk if self._shuffle is None else self._shuffle.encode(chunk))

    def decode(self, stored: StoredBytes, out: Bytes) -> None:
        """Decode a whole chunk."""
        data = stored.get(0, stored.size)
        if self._shuffle is None:
            decode_zstd(data, out)
            return
        planes = np.empty_like(out)
        decode_zstd(data, planes)
        self._shuffle.decode(planes, out=out)


class Frames:
    """The filter of this package.

    Parameters
    ----------
    codec
        What encodes; any frame can be decoded.
    dtype, chunks
        Of the dataset.
    """

    def __init__(self, codec: FrameCodec, dtype: np.dtype[Any], chunks: tuple[int, ...]) -> None:
        self._codec, self._dtype, self._chunks = codec, dtype, chunks

    def encode(self, chunk: Bytes) -> Any:
        """Encode a chunk."""
        # As an array, since some codecs look at its rows.
        return self._codec.encode(chunk.view(self._dtype).reshape(self._chunks))

    def decode(self, stored: StoredBytes, out: Bytes) -> None:
        """Decode a whole chunk."""
        index = _parse(stored, out.size)
        self._decode_blocks(index, stored, [(0, index.n_blocks)], out)

    def decode_part(self, stored: StoredBytes, part: Part, out: Bytes) -> None:
        """Decode the blocks that hold a part of a chunk."""
        index = _parse(stored, out.size)
        block = index.block_items * index.item_size
        runs = touched_blocks(part, self._chunks, self._dtype.itemsize, block)
        self._decode_blocks(index, stored, runs, out)

    def _decode_blocks(
        self, index: _core.Index, stored: StoredBytes, runs: Iterable[tuple[int, int]], out: Bytes
    ) -> None:
        if index.n_blocks == 0:  # less than one item
            self._codec.decode(stored.get(0, stored.size), out=out)
            return
        block, count = index.block_items * index.item_size, index.n_blocks
        offsets = index.offsets
        step = max(1, _PIECE_BYTES * _core.get_num_threads() // block)
        for first, last in runs:
            # The bytes behind the last item belong to the last block.
            last = min(last, count)
            for a in range(min(first, last - 1), last, step):
                b = min(a + step, last)
                end = out.size if b == count else b * block
                payload = stored.get(offsets[a], offsets[b])
                index.decode_block_range(payload, a, b, out[a * block : end])


def _parse(stored: StoredBytes, nbytes: int) -> _core.Index:
    """Read the head of a frame that holds a chunk of `nbytes`."""
    head = stored.get(0, min(stored.size, _HEAD_BYTES))
    size = _core.header_size(head)
    if head.size < size <= stored.size:
        head = stored.get(0, size)
    index = _core.Index(head)
    if index.raw_size != nbytes:
        raise CorruptDataError(f"the frame holds {index.raw_size} bytes, and a chunk {nbytes}")
    if stored.size < index.frame_size:
        raise TruncatedDataError(f"the frame has {stored.size} bytes of {index.frame_size}")
    if stored.size > index.frame_size:
        raise CorruptDataError(f"{stored.size - index.frame_size} bytes behind the frame's end")
    return index
