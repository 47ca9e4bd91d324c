"""The folders of a mount, and its files, which are read by ranges."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from typing import NamedTuple

from bf16codecs import _core
from bf16codecs._arrays.array import UnitArray
from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._base.buffers import Bytes
from bf16codecs.mount.cache import Cache, CachedFile
from bf16codecs.safetensors import Header
from bf16codecs.store.reader import ModelReader, stored_arrays

__all__ = ["BytesFile", "CopiedFile", "File", "Folder", "RangesFile", "Status", "StoredFile"]

#: Rights of files and folders whose store has none.
FILE_RIGHTS, FOLDER_RIGHTS = 0o444, 0o555
# Nobody may write.
_READ_ONLY = 0o555


@dataclass(frozen=True)
class Status:
    """The rights of a file or folder, and when it changed last, in nanoseconds since 1970."""

    rights: int
    mtime_ns: int

    @classmethod
    def of(cls, mode: int, mtime_ns: int) -> Status:
        """Return the status of what has a mode: nobody may write."""
        return cls(mode & _READ_ONLY, mtime_ns)


@dataclass(frozen=True)
class Folder:
    """A folder, with files and folders by name."""

    status: Status
    members: dict[str, Folder | File] = field(default_factory=dict)

    def find(self, path: str) -> Folder | File | None:
        """Return what is at a path with slashes; empty for this folder."""
        found: Folder | File | None = self
        for name in filter(None, path.split("/")):
            found = found.members.get(name) if isinstance(found, Folder) else None
        return found

    def add(self, path: str, member: Folder | File) -> None:
        """Add a file or a folder, whose parents are there."""
        parent, _, name = path.rpartition("/")
        folder = self.find(parent)
        assert isinstance(folder, Folder)
        folder.members[name] = member

    def total(self) -> tuple[int, int]:
        """Return the size of all files below, and how many files and folders there are."""
        nbytes = count = 0
        for member in self.members.values():
            below, members = member.total() if isinstance(member, Folder) else (member.size, 0)
            nbytes, count = nbytes + below, count + members + 1
        return nbytes, count


class File(ABC):
    """A file of `size` bytes; several threads may read."""

    def __init__(self, status: Status, size: int) -> None:
        self.status, self.size = status, size

    @abstractmethod
    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on, fewer only at the end of the file."""


class BytesFile(File):
    """A file whose content is in memory: an index."""

    def __init__(self, status: Status, content: bytes) -> None:
        super().__init__(status, len(content))
        self._content = content

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on."""
        return self._content[start : start + nbytes]


class CopiedFile(File):
    """A file that lies in a packed folder as it is, opened for each read."""

    def __init__(self, status: Status, size: int, open_file: Callable[[], FileIO]) -> None:
        super().__init__(status, size)
        self._open = open_file

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on."""
        with self._open() as file:
            return os.pread(file.fileno(), nbytes, start)


class RangesFile(File):
    """A file that lies in a packed folder at an address."""

    def __init__(self, status: Status, size: int, read_range: Callable[[int, int], bytes]) -> None:
        super().__init__(status, size)
        self._read = read_range

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on."""
        stop = min(start + nbytes, self.size)
        return self._read(start, stop) if start < stop else b""


class _Region(NamedTuple):
    """Consecutive bytes of a file: those of a tensor, or others, which are in memory."""

    start: int
    stop: int
    content: bytes | None
    plan: ArrayPlan | None = None
    #: The smallest part worth decoding, counted from the start of a chunk; 0 for a whole chunk.
    unit_nbytes: int = 0


class StoredFile(File):
    """A file of a model in a store, whose tensors are decoded as they are read."""

    def __init__(self, status: Status, reader: ModelReader, number: int, cache: Cache) -> None:
        header = reader.headers[number]
        super().__init__(status, header.file_size)
        self._reader, self._number = reader, number
        self._regions = _regions(reader, header, number)
        self._starts = [region.start for region in self._regions]
        self._cached = CachedFile(cache, self.size, self._unit_at, self._decode)

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from an offset on."""
        return self._cached.read(start, nbytes)

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
                self._reader.read_range(self._number, at + done, part)
            else:
                begin = at + done - region.start
                part[:] = memoryview(region.content)[begin : begin + count]
            done += count


def _regions(reader: ModelReader, header: Header, number: int) -> list[_Region]:
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
