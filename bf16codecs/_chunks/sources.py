"""Where stored chunks lie: in a folder, a ZIP file, parts of a file, memory, a store of zarr's.

Local files are read without zarr, whose event loop costs more than decoding a block does. What
is read may be a buffer of the thread: it is valid until that thread reads again.
"""

from __future__ import annotations

import asyncio
import lzma
import os
import threading
import zipfile
import zlib
from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import ZipStore

from bf16codecs import _core
from bf16codecs._buffers import Bytes, ThreadBuffer
from bf16codecs._chunks.stored import (
    InMemory,
    KeySource,
    Range,
    Source,
    StoredChunk,
    check_range,
)
from bf16codecs._files import SharedFile, open_to_read, read_at
from bf16codecs._messages import one_line
from bf16codecs.errors import CorruptDataError, StoreError

__all__ = ["FilePart", "FileSource", "FolderSource", "StoreSource", "ZipSource"]

# What zipfile and the decompressors behind it raise.
_UNREADABLE = (
    zipfile.BadZipFile,
    NotImplementedError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
)

# What is read from a file at a time is decoded while it is in the processor's cache: 4 MiB were
# 15 % slower than 2 with two threads. But every thread gets a block of it.
_PIECE_BYTES = 1 << 21


class _OpenPart(StoredChunk):
    """A range of a file, open for reading."""

    size: int

    def __init__(
        self,
        key: Hashable,
        descriptor: int,
        offset: int,
        size: int,
        buffer: ThreadBuffer,
        own: bool = True,
    ) -> None:
        self.key, self.size = key, size
        self._descriptor, self._offset, self._buffer, self._own = descriptor, offset, buffer, own

    @property
    def piece(self) -> int:
        """How much to read at a time."""
        return max(_PIECE_BYTES, _core.DEFAULT_BLOCK_BYTES * _core.get_num_threads())

    def read(self, ranges: Sequence[Range] | None) -> Sequence[Bytes]:
        """Read ranges of it into this thread's buffer."""
        if ranges is None:
            ranges = [(0, self.size)]
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
    """Key of a `FileSource`: a range of a file, which is a path or open already."""

    file: str | SharedFile
    offset: int
    size: int


class FileSource(Source):
    """Chunks that are ranges of files."""

    def __init__(self) -> None:
        self._buffer = ThreadBuffer()

    def open(self, key: FilePart) -> StoredChunk:
        """Open a range of a file."""
        own = isinstance(key.file, str)
        descriptor = open_to_read(key.file) if isinstance(key.file, str) else key.file.descriptor
        return _OpenPart(key, descriptor, key.offset, key.size, self._buffer, own)

    def close(self) -> None:
        """Release the memory."""
        self._buffer = ThreadBuffer()


class _LocalKeys(KeySource):
    """What folders and ZIP files share as sources."""

    def __init__(self) -> None:
        self._buffer = ThreadBuffer()

    def _find(self, key: str) -> StoredChunk | None:
        raise NotImplementedError

    def open(self, key: str) -> StoredChunk:
        """Open a chunk."""
        chunk = self._find(key)
        if chunk is None:
            raise StoreError("it is missing")
        return chunk

    def read(self, key: str) -> Bytes | None:
        """Read all of a key, which may not exist."""
        chunk = self._find(key)
        if chunk is None:
            return None
        with chunk:
            return chunk.read(None)[0]

    def close(self) -> None:
        """Release the memory."""
        self._buffer = ThreadBuffer()


class FolderSource(_LocalKeys):
    """Keys as files in a folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._root = os.fspath(root)

    def _find(self, key: str) -> StoredChunk | None:
        try:
            descriptor = open_to_read(os.path.join(self._root, key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            size = os.fstat(descriptor).st_size
            return _OpenPart(key, descriptor, 0, size, self._buffer)
        except BaseException:
            os.close(descriptor)
            raise

    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""
        try:
            return os.stat(os.path.join(self._root, key)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def folder_size(self, path: str) -> int:
        """Return the size of all files below a path."""
        return sum(p.stat().st_size for p in Path(self._root, path).rglob("*") if p.is_file())


class ZipSource(_LocalKeys):
    """Keys as members of a local ZIP file; uncompressed ones are read in ranges."""

    _LOCAL_HEADER = 30

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = os.fspath(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except zipfile.BadZipFile as e:
            raise StoreError(f"{path}: not a ZIP file, or damaged: {e}") from e
        self._lock = threading.Lock()
        self._starts: dict[str, int] = {}

    def _find(self, key: str) -> StoredChunk | None:
        member = self._zip.NameToInfo.get(key)
        if member is None:
            return None
        if member.compress_type != zipfile.ZIP_STORED:
            return _ZipMember(self._zip, member, self._lock)
        descriptor = open_to_read(self._path)
        try:
            if key not in self._starts:
                self._starts[key] = self._data_start(descriptor, member)
        except BaseException:
            os.close(descriptor)
            raise
        return _OpenPart(key, descriptor, self._starts[key], member.file_size, self._buffer)

    def _data_start(self, descriptor: int, member: zipfile.ZipInfo) -> int:
        header = np.empty(self._LOCAL_HEADER, np.uint8)
        count = read_at(descriptor, member.header_offset, header)
        raw = header.tobytes()
        if count < self._LOCAL_HEADER or raw[:4] != b"PK\x03\x04":
            raise CorruptDataError(f"{member.filename}: the ZIP file has no header for it")
        # Here, name and extra field may be longer or shorter than in the directory.
        names = int.from_bytes(raw[26:28], "little") + int.from_bytes(raw[28:30], "little")
        return member.header_offset + self._LOCAL_HEADER + names

    def read(self, key: str) -> Bytes | None:
        """Read all of a key, which may not exist, and check its CRC-32."""
        member = self._zip.NameToInfo.get(key)
        if member is None:
            return None
        return _ZipMember(self._zip, member, self._lock).read(None)[0]

    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""
        member = self._zip.NameToInfo.get(key)
        return 0 if member is None else member.compress_size

    def folder_size(self, path: str) -> int:
        """Return the size of all members below a path."""
        members, folder = self._zip.NameToInfo.values(), f"{path}/" if path else ""
        return sum(m.compress_size for m in members if m.filename.startswith(folder))

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._zip.close()


class _ZipMember(StoredChunk):
    """A member of a ZIP file that is read whole, and its CRC-32 checked."""

    def __init__(
        self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, lock: threading.Lock
    ) -> None:
        self._zip, self._member, self._lock = archive, member, lock
        self.key, self.size = member.filename, member.file_size

    @cached_property
    def _content(self) -> InMemory:
        try:
            with self._lock:
                return InMemory(self._zip.read(self._member))
        except (*_UNREADABLE, NotImplementedError) as e:
            raise CorruptDataError(f"in the ZIP file: {one_line(e)}") from e

    def read(self, ranges: Sequence[Range] | None) -> Sequence[Bytes]:
        """Read the member, and return ranges of it."""
        return self._content.read(ranges)


class StoreSource(KeySource):
    """Keys of a store of zarr's, remote or in memory."""

    concurrency = 8

    def __init__(self, store: Store) -> None:
        self._store = store

    def open(self, key: str) -> StoredChunk:
        """Return the chunk, which is asked for when it is read."""
        return _RemoteChunk(self._store, key)

    def read(self, key: str) -> Bytes | None:
        """Read all of a key, which may not exist."""
        reply = sync(self._store.get(key, default_buffer_prototype()))
        return None if reply is None else _as_bytes(reply)

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

    def read(self, ranges: Sequence[Range] | None) -> Sequence[Bytes]:
        """Ask for all ranges at once."""
        return [_as_bytes(reply) for reply in sync(self._get(ranges))]

    async def _get(self, ranges: Sequence[Range] | None) -> list[Any]:
        prototype = default_buffer_prototype()
        wanted = [None] if ranges is None else [RangeByteRequest(*r) for r in ranges]
        replies = await asyncio.gather(*(self._store.get(self.key, prototype, r) for r in wanted))
        for reply, request in zip(replies, wanted, strict=True):
            if reply is None:
                raise StoreError("it is missing")
            if request is not None:
                check_range(len(reply), request.start, request.end)
        return replies


def _as_bytes(buffer: Any) -> Bytes:
    return np.asarray(buffer.as_numpy_array()).view(np.uint8)
