"""Where sources are: a folder, on a disk or at an address, or one file in it."""

from __future__ import annotations

import errno
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar, cast

from bf16codecs._arrays.storage import Range
from bf16codecs._base.limits import MAX_METADATA_BYTES, check_metadata
from bf16codecs._base.threads import run_ahead
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import Header, SourceFile, open_file, read_index
from bf16codecs.store.files import open_files, state_of
from bf16codecs.store.reader import ModelReader

if TYPE_CHECKING:
    from bf16codecs.store.remote.safetensors import RemoteFolder

__all__ = ["FileBytes", "LocalPlace", "Place", "RemotePlace"]

Result = TypeVar("Result")
#: The name and the content of an index.
Index = tuple[str, bytes]


class FileBytes(ABC):
    """The bytes of an open file, which is `size` bytes long."""

    size: int

    @abstractmethod
    def read(self, ranges: Sequence[Range]) -> list[bytes]:
        """Read ranges, whose order does not matter; each is shorter only where the file ends."""

    def prefetch(self, ranges: Iterable[Range]) -> None:  # noqa: B027
        """Read ranges together that are read one by one soon, where that saves requests."""

    def part(self, start: int, stop: int) -> bytes:
        """Read one range."""
        (part,) = self.read([(start, stop)])
        return part

    def as_file(self, begin: int, size: int) -> BinaryIO:
        """Return `size` bytes from `begin` on as a file of their own."""
        return cast(BinaryIO, _Part(self, begin, size))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027
        """Close the file."""


class Place(ABC):
    """A folder, or the file `name` in it; a name is empty if the folder itself was named.

    `where` is what messages call the place.
    """

    where: str
    name: str
    #: How many files to read at a time pays off.
    concurrency = 1

    def each(self, work: Callable[[str], Result], names: Iterable[str]) -> list[Result]:
        """Call a function for each of some files, and return the results in their order."""
        jobs = (partial(work, name) for name in names)
        with closing(run_ahead(jobs, self.concurrency)) as results:
            return list(results)

    @abstractmethod
    def names(self) -> list[str]:
        """Return what is in the folder, sorted; names of folders end in a slash."""

    @abstractmethod
    def label(self, name: str) -> str:
        """Return the path or the address of a file in the folder, for messages."""

    @abstractmethod
    def open(self, name: str) -> FileBytes:
        """Open a file in the folder; raise OSError if there is none, or it cannot be read."""

    @abstractmethod
    def begins(self, name: str, nbytes: int) -> bytes:
        """Return the first bytes of a file in the folder; none of anything else."""

    @abstractmethod
    def index(self, name: str) -> bytes:
        """Return the content of an index; raise SafetensorsError if it is too large."""

    @abstractmethod
    def reader(
        self,
        headers: Sequence[tuple[str, Header]],
        index: Index | None = None,
        left_out: Iterable[str] = (),
    ) -> ModelReader:
        """Return a reader of files in the folder, given by names and headers.

        `left_out` is what else is there, if the folder was named.
        """


class LocalPlace(Place):
    """A place on a disk."""

    def __init__(self, path: str) -> None:
        self.where, found = path, Path(path)
        is_folder = found.is_dir()
        self._folder = found if is_folder else found.parent
        self.name = "" if is_folder else found.name
        self._opened: dict[str, Any] = {}

    def names(self) -> list[str]:
        """Return what is in the folder."""
        with os.scandir(self._folder) as entries:  # which knows folders without asking for each
            return sorted(entry.name + "/" * entry.is_dir() for entry in entries)

    def label(self, name: str) -> str:
        """Return the path of a file."""
        return str(self._folder / name)

    def open(self, name: str) -> FileBytes:
        """Open a file, and note its state at first."""
        path = self._folder / name
        opened = _LocalBytes(path)
        if str(path) not in self._opened:
            self._opened |= state_of([path])
        return opened

    def begins(self, name: str, nbytes: int) -> bytes:
        """Return the first bytes of a file."""
        path = self._folder / name
        if not path.is_file():
            return b""
        with open(path, "rb") as file:
            return file.read(nbytes)

    def index(self, name: str) -> bytes:
        """Return the content of an index."""
        return read_index(self._folder / name)

    def reader(
        self,
        headers: Sequence[tuple[str, Header]],
        index: Index | None = None,
        left_out: Iterable[str] = (),
    ) -> ModelReader:
        """Return a reader of files, which are opened for each read."""
        files = [SourceFile(self._folder / name, header) for name, header in headers]
        paths = [file.path for file in files]
        if index is not None:
            paths.append(self._folder / index[0])
        return open_files(
            self.where,
            files,
            index=index,
            paths=paths,
            left_out=tuple(left_out),
            opened={str(file.path): self._opened[str(file.path)] for file in files},
        )


class _LocalBytes(FileBytes):
    """A file on a disk."""

    def __init__(self, path: Path) -> None:
        self._file = open_file(path)
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, ranges: Sequence[Range]) -> list[bytes]:
        """Read ranges."""
        return list(map(self._read, ranges))

    def _read(self, ends: Range) -> bytes:
        start, stop = ends
        self._file.seek(start)
        return self._file.read(max(0, min(stop, self.size) - start))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RemotePlace(Place):
    """A place at an address."""

    def __init__(self, folder: RemoteFolder) -> None:
        self._folder, self.concurrency = folder, folder.concurrency
        self.where, self.name = folder.where, folder.named[0]
        self._opened: dict[str, FileBytes] = {}
        self._states: dict[str, str] = {}

    def names(self) -> list[str]:
        """Return what is in the folder, as far as its server lists it."""
        return sorted((*(self._folder.sizes or ()), *self._folder.folders))

    def label(self, name: str) -> str:
        """Return the address of a file."""
        return self._folder.url_of(name)

    def open(self, name: str) -> FileBytes:
        """Open a file, and note its state at first; what was read of it is kept."""
        if name not in self._opened:
            file = self._folder.file(name)
            size = file.size
            self._states |= self._folder.state([file])
            self._opened[name] = _RemoteBytes(file.read, size)
        return self._opened[name]

    def begins(self, name: str, nbytes: int) -> bytes:
        """Return the first bytes of a file."""
        if (self._folder.sizes or {}).get(name) == 0:
            return b""
        return self.open(name).part(0, nbytes)

    def index(self, name: str) -> bytes:
        """Return the content of an index."""
        file = self.open(name)
        check_metadata(file.size)
        return file.part(0, file.size)

    def reader(
        self,
        headers: Sequence[tuple[str, Header]],
        index: Index | None = None,
        left_out: Iterable[str] = (),
    ) -> ModelReader:
        """Return a reader of files, by requests."""
        urls = {self.label(name) for name, _ in headers}
        opened = {url: state for url, state in self._states.items() if url in urls}
        reader = self._folder.reader(headers, index, opened)
        reader.left_out = tuple(left_out)
        return reader


# Blocks are read whole.
_BLOCK_BYTES = 1 << 12


class _RemoteBytes(FileBytes):
    """A file at an address. It keeps the blocks that it has read, since many are read again."""

    def __init__(self, read: Callable[[Sequence[Range]], Sequence[bytes]], size: int) -> None:
        self._read, self.size = read, size
        self._blocks: dict[int, bytes] = {}

    def read(self, ranges: Sequence[Range]) -> list[bytes]:
        """Read ranges."""
        self.prefetch(ranges)
        return [self._joined(*ends) for ends in map(self._clipped, ranges)]

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Read all blocks that are missing."""
        ends = map(self._clipped, ranges)
        needed = {block for part in ends for block in _blocks_of(*part)}
        missing = sorted(needed - self._blocks.keys())
        self._blocks.update(
            zip(missing, self._read(list(map(self._bytes_of, missing))), strict=True)
        )

    def _clipped(self, ends: Range) -> Range:
        start, stop = ends
        return start, max(start, min(stop, self.size))

    def _bytes_of(self, block: int) -> Range:
        return block * _BLOCK_BYTES, min((block + 1) * _BLOCK_BYTES, self.size)

    def _joined(self, start: int, stop: int) -> bytes:
        blocks = _blocks_of(start, stop)
        data = b"".join(self._blocks[block] for block in blocks)
        return data[start - blocks.start * _BLOCK_BYTES :][: stop - start]


def _blocks_of(start: int, stop: int) -> range:
    return range(start // _BLOCK_BYTES, -(-stop // _BLOCK_BYTES) if stop > start else 0)


class _Part(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, file: FileBytes, begin: int, size: int) -> None:
        super().__init__()
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that reading may begin anywhere."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "a position before the start")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def read(self, n: int = -1) -> bytes:
        """Return the next bytes, fewer at the end."""
        left = max(0, self._size - self._at)
        count = left if n is None or n < 0 else min(n, left)
        if count > MAX_METADATA_BYTES:
            raise SafetensorsError(
                f"{count} bytes beside tensors, and the limit is {MAX_METADATA_BYTES}"
            )
        start = self._begin + self._at
        part = self._file.part(start, start + count)
        self._at += len(part)
        return part
