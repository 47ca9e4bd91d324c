"""Writes the model store in Zarr.

Importing zarr takes longer than most of it, and writing with zarr 1 ms for each small array and
several copies of each chunk. The store is what zarr would have written; tests compare the two.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
from numcodecs.abc import Codec

from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex, Piece
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.half import to_half
from bf16codecs._base.threads import run_ahead
from bf16codecs.codecs.frames import FrameCodec
from bf16codecs.store.choice import CodecChoice, as_rows, encode_difference
from bf16codecs.store.delta import DeltaChain
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.zarr.documents import ZarrDocuments
from bf16codecs.store.zarr.metadata import DEFAULT_KEYS, OTHER_DIFFERENCES, chunk_key
from bf16codecs.store.zarr.sinks import Sink

__all__ = ["ChunkWriter", "ZarrWriter"]


class ChunkWriter:
    """Encodes and writes chunks; it may be sent to another process if its sink may."""

    def __init__(
        self, choice: CodecChoice, zarr_format: int, sink: Sink, encoding: str = DEFAULT_KEYS
    ) -> None:
        self._choice = choice
        self._format, self._encoding = zarr_format, encoding
        self._sink, self.concurrency = sink, sink.concurrency
        self._codecs: dict[tuple[str, str | None], Codec | DeltaChain | None] = {}
        # Memory for frames: new memory for each took 1.2 s of system time for 930 MB.
        self._memory = ThreadBuffer()

    def codec(self, array: ArrayPlan) -> Codec | DeltaChain | None:
        """Return the codec of an array."""
        key = array.dtype, array.level
        if key not in self._codecs:
            choice = self._choice.at(array.level)
            chain = choice.chain(array.dtype)
            self._codecs[key] = chain or choice.for_dtype(array.dtype, self._format)
        return self._codecs[key]

    def write(self, piece: Piece, chunk: Bytes, base: Bytes | None = None) -> int:
        """Encode and write a whole chunk, or its difference to `base`; return its stored size."""
        data = self.encode(piece.array, chunk, base)
        self._sink.put(self.key(piece.array, piece.index), data)
        return len(data)

    def key(self, array: ArrayPlan, index: ChunkIndex) -> str:
        """Return the key of a chunk."""
        # Differences have no document that states another encoding.
        encoding = DEFAULT_KEYS if array.has_base else self._encoding
        return f"{array.path}/{chunk_key(self._format, encoding)(index)}"

    def put(self, path: str, data: Any) -> str:
        """Write temporary bytes, below the path of no array; return their key."""
        # Like the key of a chunk, by which a writer of object stores knows what it may remove.
        name = chunk_key(self._format, self._encoding)((secrets.randbits(64),))
        self._sink.put(f"{path}/{name}", data)
        return f"{path}/{name}"

    def encode(self, array: ArrayPlan, chunk: Bytes, base: Bytes | None = None) -> Any:
        """Encode a whole chunk, or its difference to `base`; valid until this thread's next one."""
        if array.has_base:
            choice = self._choice.at(array.level)
            return encode_difference(choice, array, chunk, base, self._memory)
        if array.is_lossy:  # but not here: float16 has these numbers
            chunk = to_half(chunk.view(np.float32)).view(np.uint8)
        codec = self.codec(array.stored)
        if isinstance(codec, DeltaChain):
            return codec.encode(chunk, self._format)
        try:
            if isinstance(codec, FrameCodec):
                return codec.encode_to(self._memory.get, as_rows(array.stored, chunk))
            return chunk if codec is None else codec.encode(chunk)
        except RuntimeError as e:  # Zstandard's, which has no other reason to fail
            raise MemoryError(str(e)) from e


class ZarrWriter:
    """Writes a model store into a new folder, ZIP file or folder of an object store.

    `encoding` is that of the keys of chunks, in format 3.
    """

    def __init__(
        self, sink: Sink, choice: CodecChoice, zarr_format: int, encoding: str = DEFAULT_KEYS
    ) -> None:
        self._sink, self._choice = sink, choice
        self._format, self._encoding = zarr_format, encoding
        self.concurrency = sink.concurrency
        self.difference_folder = "" if encoding == DEFAULT_KEYS else OTHER_DIFFERENCES
        #: Written at the end.
        self._documents = ZarrDocuments(zarr_format, encoding)
        #: What writes the chunks, as long as no other process does.
        self.chunks = ChunkWriter(choice, zarr_format, sink, encoding)

    def create(self, array: ArrayPlan) -> None:
        """Prepare an array; differences have no metadata."""
        if not array.has_base:
            self._documents.add(array.stored, self.chunks.codec(array.stored))

    def drop(self, path: str) -> None:
        """Remove an array of a folder, with all its chunks, before `finish` or another one."""
        self._documents.drop(path)
        self._sink.remove(path)

    def share(self, path: str, owner: str) -> None:
        """Do nothing: in Zarr, an array has one path."""

    def write(self, piece: Piece, chunk: Bytes, base: Bytes | None = None) -> int:
        """Encode and write a whole chunk, or its difference to `base`; return its stored size."""
        return self.chunks.write(piece, chunk, base)

    def shared(self) -> ChunkWriter:
        """Return a writer of chunks for other processes, valid until the store is finished."""
        return ChunkWriter(self._choice, self._format, self._sink.shared(), self._encoding)

    def finish(self, info: StoreInfo) -> int:
        """Write all metadata, close the store, and return the metadata's size."""
        documents = self._documents.keys(info.to_attributes())
        jobs = (partial(self._put, key, document) for key, document in documents)
        with closing(run_ahead(jobs, self.concurrency)) as sizes:
            size = sum(sizes)
        self._sink.close()
        return size

    def _put(self, key: str, document: bytes) -> int:
        self._sink.put(key, document)
        return len(document)

    def close(self) -> None:
        """Close files and connections."""
        self._sink.close()
