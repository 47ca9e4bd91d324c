"""Where stored chunks lie: in a folder, or in parts of a file.

Local files are read without zarr, whose event loop costs more than decoding a block does. What
is read may be a buffer of the thread: it is valid until that thread reads again.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from bf16codecs import _core
from bf16codecs._arrays.stored import (
    AtMost,
    KeySource,
    Request,
    Source,
    StoredChunk,
)
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.limits import MAX_METADATA_BYTES, check_metadata
from bf16codecs._base.messages import advised, named_errors
from bf16codecs._files.folders import Folder
from bf16codecs._files.reading import SharedFile, read_at
from bf16codecs.errors import StoreError

__all__ = [
    "PIECE_BYTES",
    "FilePart",
    "FileSource",
    "FolderSource",
    "LocalChunk",
    "LocalKeys",
    "OpenPart",
]

#: What is read from a file at a time is decoded while it is in the processor's cache: 4 MiB were
# 15 % slower than 2 with two threads. But every thread gets a block of it.
PIECE_BYTES = 1 << 21


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
        return max(PIECE_BYTES, _core.DEFAULT_BLOCK_BYTES * _core.get_num_threads())

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
    """Base of folders and ZIP files as sources."""

    def __init__(self) -> None:
        self._buffer = ThreadBuffer()

    @abstractmethod
    def find(self, key: str) -> LocalChunk | None:
        """Open a chunk, or return None if there is none."""

    def open(self, key: str) -> LocalChunk:
        """Open a chunk."""
        chunk = self.find(key)
        if chunk is None:
            raise StoreError(advised("it is missing"))
        return chunk

    def close(self) -> None:
        """Release the memory."""
        self._buffer = ThreadBuffer()


class FolderSource(LocalKeys):
    """Keys as files in a folder, which is held open."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._folder = Folder(root, follow=True)

    def find(self, key: str) -> LocalChunk | None:
        """Open a file, or return None if there is none."""
        descriptor = self._folder.find(key)
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
        with named_errors(str(self._folder.path), OSError):  # whose own names are those below it
            return self._folder.size_below(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return FolderSource, (self._folder.path,)
