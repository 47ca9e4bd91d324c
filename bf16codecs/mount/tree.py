"""The folders of a mount, and its files, which are read by ranges."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from io import FileIO
from typing import NamedTuple

from bf16codecs import _core
from bf16codecs._arrays.array import UnitArray
from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cached import cached_property
from bf16codecs._base.forks import make_lock
from bf16codecs.convert.restored import RestoredFiles, restored_files
from bf16codecs.errors import StoreError
from bf16codecs.mount.cache import Cache, CachedFile
from bf16codecs.safetensors import Header
from bf16codecs.store.reader import ModelReader, stored_arrays

__all__ = [
    "CopiedFile",
    "DecodedFile",
    "Directory",
    "File",
    "IndexFile",
    "KeptFile",
    "LazyModel",
    "RangesFile",
    "Status",
]

#: Rights of files and folders whose store has none.
FILE_RIGHTS, FOLDER_RIGHTS = 0o444, 0o555
# Nobody may write.
_READ_ONLY = 0o555


class Status(NamedTuple):
    """The rights of a file or folder, when it changed last, in nanoseconds since 1970, its size."""

    rights: int
    mtime_ns: int
    size: int = 0

    @classmethod
    def of(cls, mode: int, mtime_ns: int, size: int = 0) -> Status:
        """Return the status of what has a mode: nobody may write."""
        return cls(mode & _READ_ONLY, mtime_ns, size)


@dataclass(frozen=True)
class Directory:
    """A folder, with files and folders by name."""

    status: Status
    members: dict[str, Directory | File] = field(default_factory=dict)

    def find(self, path: str) -> Directory | File | None:
        """Return what is at a path with slashes; empty for this folder."""
        found: Directory | File | None = self
        for name in filter(None, path.split("/")):
            found = found.members.get(name) if isinstance(found, Directory) else None
        return found

    def add(self, path: str, member: Directory | File) -> None:
        """Add a file or a folder, whose parents are there."""
        parent, _, name = path.rpartition("/")
        folder = self.find(parent)
        if not isinstance(folder, Directory) or name in folder.members:
            raise StoreError(f"{path!r:.200} is there twice, or in a file")
        folder.members[name] = member

    def files(self, path: str = "") -> Iterator[tuple[str, File]]:
        """Yield all files below, with their paths."""
        for name, member in self.members.items():
            if isinstance(member, Directory):
                yield from member.files(f"{path}{name}/")
            else:
                yield path + name, member

    def total(self) -> tuple[int, int]:
        """Return the size of all files below, and how many files and folders there are."""
        nbytes = count = 0
        for member in self.members.values():
            below, members = (
                member.total() if isinstance(member, Directory) else (member.status.size, 0)
            )
            nbytes, count = nbytes + below, count + members + 1
        return nbytes, count


class File(ABC):
    """A file; several threads may read.

    Attributes
    ----------
    content
        Equal for files, of trees of one source, that have the same content.
    """

    content: Hashable

    @property
    @abstractmethod
    def status(self) -> Status:
        """Its rights, when it changed last, and its size."""

    @abstractmethod
    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on, fewer only at the end of the file."""


class CopiedFile(File):
    """A file that lies in a packed folder as it is, and is opened for each use."""

    def __init__(self, name: str, open_file: Callable[[], FileIO]) -> None:
        self.content, self._open = name, open_file

    @property
    def status(self) -> Status:
        """Its status by now."""
        with self._open() as file:
            status = os.fstat(file.fileno())
        return Status.of(status.st_mode, status.st_mtime_ns, status.st_size)

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on."""
        with self._open() as file:
            return os.pread(file.fileno(), nbytes, start)


class KeptFile(File):
    """A file whose status is known when the tree is made."""

    def __init__(self, status: Status, content: Hashable) -> None:
        self._status, self.content = status, content

    @property
    def status(self) -> Status:
        """Its rights, when it changed last, and its size."""
        return self._status

    def allow(self, mode: int) -> None:
        """Give it the rights of a mode."""
        self._status = self._status._replace(rights=mode & _READ_ONLY)

    def changed_at(self, mtime_ns: int) -> None:
        """Set when it changed last."""
        self._status = self._status._replace(mtime_ns=mtime_ns)


class RangesFile(KeptFile):
    """A file that lies in a packed folder at an address."""

    def __init__(
        self, status: Status, content: Hashable, read_range: Callable[[int, int], bytes]
    ) -> None:
        super().__init__(status, content)
        self._read = read_range

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on."""
        stop = min(start + nbytes, self.status.size)
        return self._read(start, stop) if start < stop else b""


class IndexFile(KeptFile):
    """The index of shards, which is read whole at first."""

    def __init__(self, status: Status, content: Hashable, model: LazyModel) -> None:
        super().__init__(status, content)
        self._model = model

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on."""
        index = self._model.files.index or b""
        if len(index) != self.status.size:
            raise StoreError(f"an index of {len(index)} bytes, and not {self.status.size}")
        return index[start : start + nbytes]


class LazyModel:
    """A model that is opened when it is first read; several threads may ask for it."""

    def __init__(self, open_reader: Callable[[], ModelReader]) -> None:
        self._open, self._lock = open_reader, make_lock()
        self._files: RestoredFiles | None = None

    @property
    def files(self) -> RestoredFiles:
        """Its original files."""
        with self._lock:
            if self._files is None:
                self._files = restored_files(self._open(), None)
            return self._files


class _Region(NamedTuple):
    """Consecutive bytes of a file: those of a tensor, or others, which are in memory."""

    start: int
    stop: int
    content: bytes | None
    plan: ArrayPlan | None = None
    #: The smallest part worth decoding, counted from the start of a chunk; 0 for a whole chunk.
    unit_nbytes: int = 0


class DecodedFile(KeptFile):
    """A file of a model in a store, whose tensors are decoded as they are read."""

    def __init__(
        self, status: Status, content: Hashable, model: LazyModel, number: int, cache: Cache
    ) -> None:
        super().__init__(status, content)
        self._model, self._number = model, number
        self.cached = CachedFile(cache, status.size, self._unit_at, self._decode)

    @cached_property
    def _regions(self) -> list[_Region]:
        """The regions of the file, in order; none is empty."""
        files = self._model.files
        header = files.headers[self._number]
        if header.file_size != self.status.size:
            raise StoreError(f"a file of {header.file_size} bytes, and not {self.status.size}")
        return _regions(files.reader, header)

    @cached_property
    def _starts(self) -> list[int]:
        return [region.start for region in self._regions]

    def check(self) -> None:
        """Raise the errors of reading its metadata."""
        _ = self._starts

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on."""
        self.check()  # before the cache's lock is taken, under which units are asked for
        return self.cached.read(start, nbytes)

    def _unit_at(self, at: int) -> tuple[int, int]:
        region = self._region_at(at)
        if region.plan is None:
            return region.start, region.stop
        piece = region.plan.piece_at(at - region.start)
        start, size = region.start + piece.offset, region.unit_nbytes
        if size:
            stop = start + piece.nbytes
            start += (at - start) // size * size
            return start, min(start + size, stop)
        return start, start + piece.nbytes

    def _region_at(self, at: int) -> _Region:
        return self._regions[bisect_right(self._starts, at) - 1]

    def _decode(self, at: int, out: Bytes) -> None:
        done = 0
        while done < out.size:
            region = self._region_at(at + done)
            count = min(out.size - done, region.stop - at - done)
            part = out[done : done + count]
            if region.content is None:
                self._model.files.reader.read_range(self._number, at + done, part)
            else:
                begin = at + done - region.start
                part[:] = memoryview(region.content)[begin : begin + count]
            done += count


def _regions(reader: ModelReader, header: Header) -> list[_Region]:
    """Return the regions of a file, in order; none is empty.

    Errors are those of `stored_arrays`: an array is missing, or another than the header says.
    """
    contents = [(0, header.prefix), *header.gaps]
    regions = [_Region(at, at + len(part), part) for at, part in contents if part]
    for plan in stored_arrays(reader, [header]):
        if plan.nbytes:
            array = reader.array(plan.path)
            size = _unit_nbytes(array)
            stop = plan.offset + plan.nbytes
            regions.append(_Region(plan.offset, stop, None, _at_zero(plan), size))
    return sorted(regions, key=lambda region: region.start)


def _at_zero(plan: ArrayPlan) -> ArrayPlan:
    return ArrayPlan(plan.path, plan.dtype, plan.shape, plan.chunks)


def _unit_nbytes(array: UnitArray) -> int:
    """Return how much of a chunk to decode at least; 0 for all of it."""
    return _core.DEFAULT_BLOCK_BYTES if array.reads_ranges else 0
