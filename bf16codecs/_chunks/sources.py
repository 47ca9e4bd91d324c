"""Where stored chunks lie: in a folder, in parts of a file, in a store of zarr's.

Local files are read without zarr, whose event loop costs more than decoding a block does. What
is read may be a buffer of the thread: it is valid until that thread reads again.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import ZipStore

from bf16codecs import _core
from bf16codecs._buffers import Bytes, ThreadBuffer
from bf16codecs._chunks.http import largest_body
from bf16codecs._chunks.stored import (
    AtMost,
    KeySource,
    Request,
    Source,
    StoredChunk,
    check_range,
)
from bf16codecs._files import Folder, SharedFile, read_at
from bf16codecs._limits import MAX_METADATA_BYTES, check_metadata, check_parsed
from bf16codecs._messages import named_errors
from bf16codecs.errors import StoreError

__all__ = [
    "FilePart",
    "FileSource",
    "FolderSource",
    "LocalChunk",
    "LocalKeys",
    "OpenPart",
    "StoreSource",
]

# What is read from a file at a time is decoded while it is in the processor's cache: 4 MiB were
# 15 % slower than 2 with two threads. But every thread gets a block of it.
_PIECE_BYTES = 1 << 21


class LocalChunk(StoredChunk):
    """A stored chunk whose size is known."""

    size: int


class OpenPart(LocalChunk):
    """A range of a file, open for reading."""

    def __init__(
        self,
        key: Hashable,
        descriptor: int,
        offset: int,
        size: int,
        buffer: ThreadBuffer,
        own: bool = False,
    ) -> None:
        self.key, self.size = key, size
        self._descriptor, self._offset, self._buffer, self._own = descriptor, offset, buffer, own

    @property
    def piece(self) -> int:
        """How much to read at a time."""
        return max(_PIECE_BYTES, _core.DEFAULT_BLOCK_BYTES * _core.get_num_threads())

    def read(self, request: Request) -> Sequence[Bytes]:
        """Read ranges of it into this thread's buffer."""
        ranges = [(0, self.size)] if isinstance(request, AtMost) else request
        ranges = [(min(start, self.size), min(stop, self.size)) for start, stop in ranges]
        rest = self._buffer.get(sum(stop - start for start, stop in ranges))
        parts = []
        for start, stop in ranges:
            part, rest = rest[: stop - start], rest[stop - start :]
            parts.append(part[: read_at(self._descriptor, self._offset + start, part)])
        return parts

    def close(self) -> None:
        """Close the file that was opened for this."""
        if self._own:
            os.close(self._descriptor)


class FilePart(NamedTuple):
    """Key of a `FileSource`: a range of a file."""

    file: SharedFile
    offset: int
    size: int


class FileSource(Source):
    """Chunks that are ranges of files."""

    def __init__(self) -> None:
        self._buffer = ThreadBuffer()

    def open(self, key: FilePart) -> StoredChunk:
        """Open a range of a file."""
        return OpenPart(key, key.file.descriptor, key.offset, key.size, self._buffer)

    def close(self) -> None:
        """Release the memory."""
        self._buffer = ThreadBuffer()


class LocalKeys(KeySource):
    """What folders and ZIP files share as sources."""

    def __init__(self) -> None:
        self._buffer = ThreadBuffer()

    @abstractmethod
    def find(self, key: str) -> LocalChunk | None:
        """Open a chunk, or return None if there is none."""

    def open(self, key: str) -> LocalChunk:
        """Open a chunk."""
        chunk = self.find(key)
        if chunk is None:
            raise StoreError("it is missing")
        return chunk

    def close(self) -> None:
        """Release the memory."""
        self._buffer = ThreadBuffer()


class FolderSource(LocalKeys):
    """Keys as files in a folder, which is held open."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._folder = Folder(root)

    def find(self, key: str) -> LocalChunk | None:
        """Open a file, or return None if there is none."""
        descriptor = self._folder.open(key)
        if descriptor is None:
            return None
        size = os.fstat(descriptor).st_size
        return OpenPart(key, descriptor, 0, size, self._buffer, own=True)

    def read(self, key: str) -> Bytes | None:
        """Read a document, which may not exist."""
        chunk = self.find(key)
        if chunk is None:
            return None
        with chunk:
            check_metadata(chunk.size)
            return chunk.read(AtMost(MAX_METADATA_BYTES))[0]

    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""
        chunk = self.find(key)
        if chunk is None:
            return 0
        with chunk:
            return chunk.size

    def folder_size(self, path: str) -> int:
        """Return the size of all files below a path."""
        with named_errors(self._folder.path, OSError):  # whose own names are those below it
            return self._folder.size_below(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return FolderSource, (self._folder.path,)


class StoreSource(KeySource):
    """Keys of a store of zarr's, remote or in memory."""

    concurrency = 8

    def __init__(self, store: Store) -> None:
        self._store = store

    def open(self, key: str) -> StoredChunk:
        """Return the chunk, which is asked for when it is read."""
        return _RemoteChunk(self._store, key)

    def read(self, key: str) -> Bytes | None:
        """Read a document, which may not exist."""
        (reply,) = sync(_get(self._store, key, AtMost(MAX_METADATA_BYTES)))
        if reply is None:
            return None
        document = _as_bytes(reply)
        stored = partial(self._stored_size, key, document.size)
        check_metadata(document.size, stored)
        check_parsed(document, stored)
        return document

    def _stored_size(self, key: str, nbytes: int) -> int:
        """Return the size that so many bytes are stored in: less in a ZIP file."""
        store: Any = self._store
        if isinstance(store, ZipStore):
            return store._zf.getinfo(key).compress_size
        # Behind an address, fsspec's file system for ZIP files, wrapped.
        archive = getattr(getattr(store, "fs", None), "sync_fs", None)
        info = {} if archive is None else archive.info(f"{store.path}/{key}")
        return int(info.get("compress_size", nbytes))

    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""
        try:
            return sync(self._store.getsize(key))
        except FileNotFoundError:
            return 0

    def folder_size(self, path: str) -> None:
        """Return nothing: not every store can list its keys."""

    def close(self) -> None:
        """Close a ZIP file. A file system behind fsspec may be shared, and closes at exit."""
        if isinstance(self._store, ZipStore):
            self._store.close()


class _RemoteChunk(StoredChunk):
    """A key of a store of zarr's."""

    key: str

    def __init__(self, store: Store, key: str) -> None:
        self._store, self.key = store, key

    def read(self, request: Request) -> Sequence[Bytes]:
        """Ask for all ranges at once."""
        replies = sync(_get(self._store, self.key, request))
        if any(reply is None for reply in replies):
            raise StoreError("it is missing")
        return list(map(_as_bytes, replies))


async def _get(store: Store, key: str, request: Request) -> list[Any]:
    """Ask for all ranges at once; None where there is no such key."""
    prototype = default_buffer_prototype()
    if isinstance(request, AtMost) and _has_bounded_replies(store):
        with largest_body(request.nbytes):
            return [await store.get(key, prototype)]
    # Of others, one byte more than there can be is asked for, and never gets further than here.
    wanted = [(0, request.nbytes + 1)] if isinstance(request, AtMost) else request
    ranges = [RangeByteRequest(*r) for r in wanted]
    replies = await asyncio.gather(*(store.get(key, prototype, r) for r in ranges))
    for reply, asked in zip(replies, ranges, strict=True):
        if reply is not None:
            check_range(len(reply), asked.start, asked.end)
    return replies


def _has_bounded_replies(store: Store) -> bool:
    return "http" in getattr(getattr(store, "fs", None), "protocol", ())


def _as_bytes(buffer: Any) -> Bytes:
    return np.asarray(buffer.as_numpy_array()).view(np.uint8)
