"""Where a store's keys and their bytes come from: a folder, a ZIP file, or a store of zarr's.

Local files are read without zarr, whose event loop costs more than decoding a block does. What
a reader gets may be a buffer of its thread: it is valid until that thread reads again.
"""

from __future__ import annotations

import asyncio
import os
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import ZipStore

from bf16codecs.errors import CorruptDataError, StoreError, TruncatedDataError

__all__ = [
    "Blobs",
    "FileBlobs",
    "FolderBlobs",
    "StoreBlobs",
    "ZipBlobs",
    "check_length",
    "check_range",
]

Bytes = NDArray[np.uint8]
#: First byte, and the one after the last.
Range = tuple[int, int]


class Blobs(Protocol):
    """Bytes by key; several threads may read."""

    #: How many reads at a time pay off.
    concurrency: int
    #: How much to read at a time; None if requests cost more than memory.
    piece: int | None

    def read(self, key: str, limit: int | None = None) -> Bytes | None:
        """Read all of a key, which may not exist; `limit` is the most that it can have."""

    def read_ranges(self, key: str, ranges: Sequence[Range]) -> Iterator[Bytes]:
        """Yield parts of a key, each of them shorter only where the key ends.

        Raises
        ------
        StoreError
            If the key does not exist.
        """

    def close(self) -> None:
        """Release what is open."""


class _LocalBlobs:
    """Keys that are runs of bytes in local files."""

    concurrency = 1
    # What is read is decoded while it is in the processor's cache.
    piece: int | None = 1 << 21

    def __init__(self) -> None:
        self._thread = threading.local()

    def _locate(self, key: str) -> tuple[str | Path, int, int | None]:
        """Return a key's file, its offset there, and its size if that is not the file's end."""
        raise NotImplementedError

    def read(self, key: str, limit: int | None = None) -> Bytes | None:
        path, offset, size = self._locate(key)
        try:
            with open(path, "rb", buffering=0) as file:
                if size is None:
                    size = os.fstat(file.fileno()).st_size
                if limit is not None and size > limit:
                    raise CorruptDataError(f"{size} bytes, more than the {limit} it can have")
                return self._fill(file, offset, size)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_ranges(self, key: str, ranges: Sequence[Range]) -> Iterator[Bytes]:
        path, offset, size = self._locate(key)
        if size is not None:
            ranges = [(min(a, size), min(b, size)) for a, b in ranges]
        try:
            with open(path, "rb", buffering=0) as file:
                for start, stop in ranges:
                    yield self._fill(file, offset + start, stop - start)
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError("it is missing") from None

    def _fill(self, file: FileIO, offset: int, size: int) -> Bytes:
        part = self._buffer(size)[:size]
        file.seek(offset)
        done = 0
        while done < size:
            count = file.readinto(part[done:].data)
            if not count:
                break
            done += count
        return part[:done]

    def _buffer(self, size: int) -> Bytes:
        # Fresh memory costs more than reading from the page cache into it.
        buffer = getattr(self._thread, "buffer", None)
        if buffer is None or buffer.size < size:
            buffer = self._thread.buffer = np.empty(size, np.uint8)
        return buffer

    def close(self) -> None:
        self._thread = threading.local()


class FolderBlobs(_LocalBlobs):
    """Keys as files in a folder."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = os.fspath(root)

    def _locate(self, key: str) -> tuple[str | Path, int, int | None]:
        return os.path.join(self._root, key), 0, None


class FileBlobs(_LocalBlobs):
    """Keys as parts of files: path, offset and size of each."""

    def __init__(self, parts: Mapping[str, tuple[Path, int, int]]) -> None:
        super().__init__()
        self._parts = parts

    def _locate(self, key: str) -> tuple[str | Path, int, int | None]:
        return self._parts[key]


class ZipBlobs(_LocalBlobs):
    """Keys as members of a local ZIP file; uncompressed ones are read in parts."""

    _LOCAL_HEADER = 30

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except zipfile.BadZipFile as e:
            raise StoreError(f"{path}: not a ZIP file, or a damaged one: {e}") from e
        self._lock = threading.Lock()
        self._starts: dict[str, int] = {}

    def _member(self, key: str) -> zipfile.ZipInfo | None:
        return self._zip.NameToInfo.get(key)

    def read(self, key: str, limit: int | None = None) -> Bytes | None:
        member = self._member(key)
        if member is None:
            return None
        if member.compress_type == zipfile.ZIP_STORED:
            return super().read(key, limit)
        if limit is not None and member.file_size > limit:
            raise CorruptDataError(f"{member.file_size} bytes, more than the {limit} it can have")
        try:
            with self._lock:
                return np.frombuffer(self._zip.read(member), np.uint8)
        except (zipfile.BadZipFile, NotImplementedError) as e:
            raise CorruptDataError(str(e)) from e

    def read_ranges(self, key: str, ranges: Sequence[Range]) -> Iterator[Bytes]:
        member = self._member(key)
        if member is None:
            raise StoreError("it is missing")
        if member.compress_type == zipfile.ZIP_STORED:
            yield from super().read_ranges(key, ranges)
            return
        data = self.read(key)
        assert data is not None
        yield from (data[start:stop] for start, stop in ranges)

    def _locate(self, key: str) -> tuple[str | Path, int, int | None]:
        member = self._zip.NameToInfo[key]
        if key not in self._starts:
            self._starts[key] = self._data_start(member)
        return self._path, self._starts[key], member.file_size

    def _data_start(self, member: zipfile.ZipInfo) -> int:
        with open(self._path, "rb", buffering=0) as file:
            file.seek(member.header_offset)
            header = file.read(self._LOCAL_HEADER)
        if len(header) < self._LOCAL_HEADER or header[:4] != b"PK\x03\x04":
            raise CorruptDataError(f"{member.filename} has no header in the ZIP file")
        # The name and extra field here may be of another length than in the directory.
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return member.header_offset + self._LOCAL_HEADER + names

    def close(self) -> None:
        super().close()
        self._zip.close()


class StoreBlobs:
    """Keys of a zarr store, remote or in memory."""

    concurrency = 8
    piece: int | None = None

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, key: str, limit: int | None = None) -> Bytes | None:
        reply = sync(self._store.get(key, default_buffer_prototype()))
        return None if reply is None else _as_bytes(reply)

    def read_ranges(self, key: str, ranges: Sequence[Range]) -> Iterator[Bytes]:
        for reply, (start, stop) in zip(sync(self._get(key, ranges)), ranges, strict=True):
            if reply is None:
                raise StoreError("it is missing")
            check_range(len(reply), start, stop)
            yield _as_bytes(reply)

    async def _get(self, key: str, ranges: Sequence[Range]) -> list[Any]:
        prototype = default_buffer_prototype()
        requests = (self._store.get(key, prototype, RangeByteRequest(a, b)) for a, b in ranges)
        return await asyncio.gather(*requests)

    def close(self) -> None:
        # A file system behind fsspec may be shared with others, and closes with its process.
        if isinstance(self._store, ZipStore):
            self._store.close()


def check_length(part: Bytes, length: int) -> Bytes:
    """Return a part of a key that must be complete."""
    if part.size != length:
        raise TruncatedDataError(f"{part.size} bytes where {length} were expected")
    return part


def check_range(count: int, start: int, stop: int, where: str = "") -> None:
    """Refuse more bytes than were asked for: they are others than those."""
    if count > stop - start:
        raise StoreError(
            f"{where}asked for {stop - start} bytes at {start}, got {count}:"
            " the server ignores ranges"
        )


def _as_bytes(buffer: Any) -> Bytes:
    return np.asarray(buffer.as_numpy_array()).view(np.uint8)
