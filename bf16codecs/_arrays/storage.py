"""Storage of chunks: interfaces, folders and files.

Local files are read without zarr, whose event loop costs more than decoding a block does. Reads may
return a buffer of the thread, which is valid until that thread reads again.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from bf16codecs import _core
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.limits import MAX_METADATA_BYTES, check_metadata
from bf16codecs._base.messages import advised, counted, named_damage, named_errors
from bf16codecs._files.folders import Folder
from bf16codecs._files.reading import SharedFile, read_at
from bf16codecs.errors import ServerError, StoreError

__all__ = [
    "IGNORES_RANGES",
    "READ_BYTES",
    "AtMost",
    "BegunChunk",
    "ChunkInfo",
    "FileRange",
    "FileStorage",
    "FolderStorage",
    "InMemory",
    "KeyStorage",
    "LocalChunk",
    "LocalStorage",
    "OpenRange",
    "Range",
    "Reading",
    "Request",
    "Storage",
    "StoredChunk",
    "StoredRange",
    "check_range",
    "drive",
]

#: Advice about a server that answers a request for a part with the whole.
IGNORES_RANGES = "the server ignores ranges: download it, or use a server that sends parts of files"
#: The first byte of a range, and the one after the last.
Range = tuple[int, int]


class AtMost(NamedTuple):
    """Asks for all of a stored chunk, which has at most that many bytes."""

    nbytes: int


#: A request to a stored chunk.
Request = Sequence[Range] | AtMost
#: Yields requests to a stored chunk, and is sent the bytes.
Reading = Generator[Request, Sequence[Bytes], None]
Result = TypeVar("Result")


class ChunkInfo:
    """Key and size of a stored chunk, before it is read."""

    #: Identifies it among the chunks of its storage, if anything does.
    key: Hashable = None
    #: Its size in bytes, or None where asking for it would cost a request.
    size: int | None = None
    #: Whether reading a range of it costs less than reading all of it.
    reads_ranges = True
    #: Whether its parts lie apart, so that no request reads all of it.
    is_scattered = False
    #: What messages call its versions, if not by their numbers.
    version_names: Sequence[str] | None = None

    @property
    def read_nbytes(self) -> int | None:
        """Bytes to read at a time, or None where requests cost more than memory."""
        return None


class StoredChunk(ChunkInfo, ABC):
    """A stored chunk, open for reading."""

    @abstractmethod
    def read(self, request: Request) -> Sequence[Bytes]:
        """Read ranges of it, or all of it; each is shorter only where the chunk ends."""

    def read_into(self, start: int, out: Bytes) -> int:
        """Fill `out` from a byte on; return how many bytes there were until the chunk's end."""
        (part,) = self.read([(start, start + out.size)])
        out[: part.size] = part
        return part.size

    def close(self) -> None:
        """Close files and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Storage(ABC):
    """Where stored chunks lie, which are opened by key; several threads may read."""

    #: How many reads at a time pay off.
    concurrency = 1

    @abstractmethod
    def open(self, key: Any) -> StoredChunk:
        """Open a chunk; raise StoreError if it does not exist."""

    def close(self) -> None:  # noqa: B027
        """Close files and connections."""


class KeyStorage(Storage):
    """Storage whose keys are those of a Zarr store, metadata included."""

    @abstractmethod
    def read(self, key: str) -> Bytes | None:
        """Read a document, or return None; raise StoreError if it is larger than metadata are."""

    @abstractmethod
    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""

    def refusal(self, key: str) -> str:
        """Return how a server refused a key, which may exist; empty if it did not."""
        return ""

    def zip_names(self) -> Sequence[str]:
        """Return the names of all keys, if they are members of a ZIP file."""
        return ()

    @abstractmethod
    def folder_size(self, path: str) -> int | None:
        """Return the size of all keys below a path, or None if they cannot be listed."""


class InMemory(StoredChunk, Storage):
    """A stored chunk whose bytes are in memory; storage of this one alone."""

    def __init__(self, data: Any) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self.size = self._data.size

    def open(self, key: Any) -> InMemory:
        """Return the chunk itself."""
        return self

    def read(self, request: Request) -> Sequence[Bytes]:
        """Return ranges of it."""
        if isinstance(request, AtMost):
            return [self._data]
        return [self._data[start:stop] for start, stop in request]


class BegunChunk(StoredChunk):
    """A stored chunk whose first bytes were read: ranges within these take no further request."""

    def __init__(self, stored: StoredChunk, nbytes: int) -> None:
        self._stored, self.key, self.size = stored, stored.key, stored.size
        (begin,) = stored.read([(0, nbytes)])
        self._begin = begin.copy()  # its memory may be that of the next read
        self._is_whole = begin.size < nbytes and stored.size in (None, begin.size)
        self.version_names = stored.version_names

    @property
    def read_nbytes(self) -> int | None:
        """How many bytes to read at a time."""
        return self._stored.read_nbytes

    def read(self, request: Request) -> Sequence[Bytes]:
        """Read ranges of it, or all of it."""
        if isinstance(request, AtMost):
            return self._stored.read(request)
        if self._is_whole or all(stop <= self._begin.size for _, stop in request):
            return [self._begin[start:stop] for start, stop in request]
        return self._stored.read(request)


class StoredRange(StoredChunk, Storage):
    """A range of a stored chunk as a chunk of its own; storage of this one alone."""

    def __init__(self, whole: StoredChunk, offset: int, size: int) -> None:
        self._whole, self._offset, self._end, self.size = whole, offset, offset + size, size

    @property
    def read_nbytes(self) -> int | None:
        """How many bytes to read at a time."""
        return self._whole.read_nbytes

    def open(self, key: Any) -> StoredRange:
        """Return the chunk itself."""
        return self

    def read(self, request: Request) -> Sequence[Bytes]:
        """Read ranges of it, all at once."""
        offset, end = self._offset, self._end
        ranges = [(0, end - offset)] if isinstance(request, AtMost) else request
        return self._whole.read([(min(offset + a, end), min(offset + b, end)) for a, b in ranges])


def check_range(
    count: int, start: int, stop: int, where: str = "", error: type[ValueError] = ServerError
) -> None:
    """Refuse a reply that is longer than the range asked for: it holds other bytes."""
    if count > stop - start:
        raise error(
            f"{where}asked for {counted(stop - start, 'byte')} at {start}, got {count}:"
            f" {IGNORES_RANGES}"
        )


@named_damage()
def drive(reading: Generator[Request, Sequence[Bytes], Result], stored: StoredChunk) -> Result:
    """Serve all requests of a reading, wait for every reply, and return its result."""
    try:
        request = next(reading)
        while True:
            request = reading.send(stored.read(request))
    except StopIteration as e:
        result: Result = e.value
        return result


#: How much of a file is read at a time, to be decoded while it is in the processor's cache: 4 MiB
#: were 15 % slower than 2 with two threads. But every thread gets a block of it.
READ_BYTES = 1 << 21


class LocalChunk(StoredChunk):
    """A stored chunk whose size is known."""

    size: int


class OpenRange(LocalChunk):
    """A range of a file, open for reading."""

    def __init__(
        self,
        key: Hashable,
        descriptor: int,
        offset: int,
        size: int,
        buffer: ThreadBuffer,
        closes_file: bool = False,
    ) -> None:
        self.key, self.size = key, size
        self._descriptor, self._offset, self._buffer = descriptor, offset, buffer
        self._closes_file = closes_file

    @property
    def read_nbytes(self) -> int:
        """How much to read at a time."""
        return max(READ_BYTES, _core.DEFAULT_BLOCK_BYTES * _core.get_num_threads())

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

    def read_into(self, start: int, out: Bytes) -> int:
        """Fill `out` from a byte on, without this thread's buffer; return how many there were."""
        return read_at(self._descriptor, self._offset + start, out[: max(0, self.size - start)])

    def close(self) -> None:
        """Close the file that was opened for this."""
        if self._closes_file:
            os.close(self._descriptor)


class FileRange(NamedTuple):
    """Key of a `FileStorage`: a range of a file."""

    file: SharedFile
    offset: int
    size: int


class FileStorage(Storage):
    """Chunks that are ranges of files."""

    def __init__(self) -> None:
        self._buffer = ThreadBuffer()

    def open(self, key: FileRange) -> StoredChunk:
        """Open a range of a file."""
        return OpenRange(key, key.file.descriptor, key.offset, key.size, self._buffer)

    def close(self) -> None:
        """Release the memory."""
        self._buffer = ThreadBuffer()


class LocalStorage(KeyStorage):
    """Base of storage in folders and ZIP files."""

    def __init__(self) -> None:
        self._buffer = ThreadBuffer()

    @abstractmethod
    def find(self, key: str) -> LocalChunk | None:
        """Open a chunk; return None if it does not exist."""

    def open(self, key: str) -> LocalChunk:
        """Open a chunk."""
        chunk = self.find(key)
        if chunk is None:
            raise StoreError(advised("it is missing"))
        return chunk

    def close(self) -> None:
        """Release the memory."""
        self._buffer = ThreadBuffer()


class FolderStorage(LocalStorage):
    """Keys as files in a folder, which is held open."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._folder = Folder(root, follow=True)

    def is_current(self) -> bool:
        """Tell whether the path is still that of the folder that was opened."""
        return self._folder.is_current()

    def find(self, key: str) -> LocalChunk | None:
        """Open a file; return None if it does not exist."""
        descriptor = self._folder.find(key)
        if descriptor is None:
            return None
        size = os.fstat(descriptor).st_size
        return OpenRange(key, descriptor, 0, size, self._buffer, closes_file=True)

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
        """Return the size of all files below a path; raise FileNotFoundError if it is missing."""
        with named_errors(str(self._folder.path), OSError):  # its names are relative to it
            try:
                return self._folder.size_below(path)
            except FileNotFoundError as e:
                missing = e
        missing.filename = str(self._folder.path / path)
        raise missing

    def __reduce__(self) -> tuple[Any, ...]:
        return FolderStorage, (self._folder.path,)
