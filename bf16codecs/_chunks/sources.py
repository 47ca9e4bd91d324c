"""Where stored chunks lie: in a folder, a ZIP file, parts of a file, memory, a store of zarr's.

Local files are read without zarr, whose event loop costs more than decoding a block does. What
is read may be a buffer of the thread: it is valid until that thread reads again.
"""

from __future__ import annotations

import asyncio
import bisect
import io
import lzma
import os
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Hashable, Sequence
from functools import cached_property, partial
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
    InMemory,
    KeySource,
    Request,
    Source,
    StoredChunk,
    check_range,
)
from bf16codecs._files import Folder, SharedFile, read_at
from bf16codecs._limits import MAX_METADATA_BYTES, check_metadata
from bf16codecs._messages import one_line
from bf16codecs.errors import CorruptDataError, StoreError

__all__ = ["FilePart", "FileSource", "FolderSource", "StoreSource", "ZipSource"]

# What zipfile and the decompressors behind it raise.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,  # encrypted; and NotImplementedError, of other versions
    ValueError,
    struct.error,
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
        return _OpenPart(key, key.file.descriptor, key.offset, key.size, self._buffer)

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
        """Read a document, which may not exist."""
        chunk = self._find(key)
        if chunk is None:
            return None
        with chunk:
            check_metadata(chunk.size or 0, partial(self.size, key), key)
            return chunk.read(AtMost(MAX_METADATA_BYTES))[0]

    def close(self) -> None:
        """Release the memory."""
        self._buffer = ThreadBuffer()


class FolderSource(_LocalKeys):
    """Keys as files in a folder, which is held open."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._folder = Folder(root)

    def _find(self, key: str) -> StoredChunk | None:
        descriptor = self._folder.open(key)
        if descriptor is None:
            return None
        size = os.fstat(descriptor).st_size
        return _OpenPart(key, descriptor, 0, size, self._buffer, own=True)

    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""
        chunk = self._find(key)
        if chunk is None:
            return 0
        with chunk:
            return chunk.size or 0

    def folder_size(self, path: str) -> int:
        """Return the size of all files below a path."""
        return self._folder.size_below(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return FolderSource, (self._folder.path,)


class ZipSource(_LocalKeys):
    """Keys as members of a local ZIP file, which is held open; stored ones are read in ranges."""

    _LOCAL_HEADER = 30

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = os.path.abspath(path)
        self._file = SharedFile(path)
        self._nbytes = os.fstat(self._file.descriptor).st_size
        try:
            self._zip = zipfile.ZipFile(_Reader(self._file, self._nbytes))
        except _UNREADABLE as e:
            raise StoreError(f"{path}: not a ZIP file, or damaged: {one_line(e)}") from e
        #: Where members end at the latest: at the next one's header, or the directory.
        self._ends = sorted([self._zip.start_dir, *(m.header_offset for m in self._zip.infolist())])
        self._ends.append(self._nbytes + 1)  # for a header behind the directory
        self._lock = threading.Lock()  # zipfile counts its open members without one
        self._starts: dict[str, int] = {}

    def _find(self, key: str) -> StoredChunk | None:
        member = self._zip.NameToInfo.get(key)
        if member is None:
            return None
        mode = member.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise StoreError(f"{key}: in the ZIP file, it is not a regular file")
        # A claim that the file refutes, before anything is allocated for it.
        if member.header_offset + member.compress_size > self._nbytes:
            raise CorruptDataError(f"{key}: the ZIP file ends before it does")
        if member.compress_type != zipfile.ZIP_STORED:
            return _ZipMember(self._zip, member, self._lock)
        if member.file_size != member.compress_size:
            raise CorruptDataError(f"{key}: the ZIP file gives two sizes for it")
        if key not in self._starts:
            self._starts[key] = self._data_start(member)
        return _OpenPart(
            key, self._file.descriptor, self._starts[key], member.file_size, self._buffer
        )

    def _data_start(self, member: zipfile.ZipInfo) -> int:
        header = np.empty(self._LOCAL_HEADER, np.uint8)
        count = read_at(self._file.descriptor, member.header_offset, header)
        raw = header.tobytes()
        if count < self._LOCAL_HEADER or raw[:4] != b"PK\x03\x04":
            raise CorruptDataError(f"{member.filename}: the ZIP file has no header for it")
        # Here, name and extra field may be longer or shorter than in the directory.
        names = int.from_bytes(raw[26:28], "little") + int.from_bytes(raw[28:30], "little")
        start = member.header_offset + self._LOCAL_HEADER + names
        # Uncompressed members have no checksum that a range of them could be compared with.
        at = bisect.bisect_right(self._ends, member.header_offset)
        if start + member.compress_size > self._ends[at]:
            raise CorruptDataError(f"{member.filename}: in the ZIP file, it overlaps the next")
        return start

    def read(self, key: str) -> Bytes | None:
        """Read a document, which may not exist, and check its CRC-32."""
        if self._find(key) is None:
            return None
        member = self._zip.NameToInfo[key]
        check_metadata(member.file_size, lambda: member.compress_size, key)
        return _ZipMember(self._zip, member, self._lock).read(AtMost(member.file_size))[0]

    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""
        member = self._zip.NameToInfo.get(key)
        return 0 if member is None else member.compress_size

    def folder_size(self, path: str) -> int:
        """Return the size of all members below a path."""
        if not path:
            return self._nbytes
        members = self._zip.NameToInfo.values()
        return sum(m.compress_size for m in members if m.filename.startswith(f"{path}/"))

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._zip.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ZipSource, (self._path,)


class _Reader(io.RawIOBase):
    """A file for `zipfile`, with a position of its own."""

    def __init__(self, file: SharedFile, size: int) -> None:
        self._file, self._size, self._at = file, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if self._at < 0:
            raise OSError("before the beginning of the file")
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = read_at(self._file.descriptor, self._at, np.frombuffer(buffer, np.uint8))
        self._at += count
        return count


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
        except _UNREADABLE as e:
            raise CorruptDataError(f"in the ZIP file: {one_line(e)}") from e

    def read(self, request: Request) -> Sequence[Bytes]:
        """Read the member, and return ranges of it."""
        return self._content.read(request)


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
        check_metadata(len(reply), lambda: len(reply), key)  # it was not compressed
        return _as_bytes(reply)

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
