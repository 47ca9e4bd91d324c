"""Heads of frames and of growing frames: where the blocks of their versions are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager

from bf16codecs import _core
from bf16codecs._arrays.blocks import Fetched, Head, Task, joined
from bf16codecs._arrays.parts import ChunkPart
from bf16codecs._arrays.storage import Range, Reading
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.messages import counted, named_errors
from bf16codecs.errors import CorruptDataError, TruncatedDataError

__all__ = ["FrameHead", "GrowingHead", "head_bytes"]

# Size of the first read, which holds the head of a frame: 8 bytes for each block, and a few more.
_PREFIX_BYTES = 4096
_PREFIX_SHIFT = 15
# The part of a frame that says how long its head is: header, size of the model, base field.
_HEADER_BYTES = 48
_NOT_THERE = 255


def head_bytes(nbytes: int) -> int:
    """Return how many bytes to read first for the head of a frame that holds `nbytes`."""
    return max(_PREFIX_BYTES, nbytes >> _PREFIX_SHIFT)


class FrameHead(Head):
    """The head of a frame that has to hold a chunk of `nbytes`; CodecError if it does not.

    `prefix` has at least the header and the block table, and `size` is that of the stored frame, if
    it is known.
    """

    def __init__(self, prefix: Bytes, nbytes: int, size: int | None) -> None:
        index = self._index = _core.Index(prefix)
        if index.raw_size != nbytes:
            raise CorruptDataError(
                f"the frame holds {counted(index.raw_size, 'byte')},"
                f" a chunk of this array has {nbytes}"
            )
        if size is not None and size < index.frame_size:
            raise TruncatedDataError(f"the frame has {counted(size, 'byte')} of {index.frame_size}")
        if size is not None and size > index.frame_size:
            raise CorruptDataError(
                f"{counted(size - index.frame_size, 'byte')} after the frame's end"
            )
        parents = tuple(index.parents) or (None,)
        super().__init__(
            nbytes, index.item_size, index.block_items, parents, nbytes // len(parents)
        )
        self.needs_base, self.stored_end = index.needs_base, index.frame_size
        self._offsets = tuple(index.offsets)

    def stored_at(self, task: Task) -> Range:
        """Return where the frame has a task's blocks."""
        first, last = self._blocks_of(task)
        return self._offsets[first], self._offsets[last]

    def _frame_of(self, task: Task) -> tuple[_core.Index, Range]:
        return self._index, self._blocks_of(task)

    def _blocks_of(self, task: Task) -> Range:
        """Return the blocks of a task, counted in the frame."""
        begin, (first, last) = task.version * self.version_blocks, task.blocks
        return begin + first, begin + last


class GrowingHead(Head):
    """The known parts of a growing frame: its directory, and the frames needed so far.

    `prefix`, which is kept, has at least the directory. `nbytes`, `size` and errors are as for
    `FrameHead`; `names` are what errors call the versions.
    """

    # Size of the frames' heads between blocks, unless versions are large.
    gap = 4096

    def __init__(
        self, prefix: Bytes, nbytes: int, size: int | None, names: Sequence[str] | None = None
    ) -> None:
        index = self._index = _core.GrowingIndex(prefix)
        self._names = names
        if index.raw_size != nbytes:
            raise CorruptDataError(
                f"the growing frame has room for {counted(index.raw_size, 'byte')},"
                f" a chunk of this array has {nbytes}"
            )
        self._bounds, self._size = (index.directory_size, *index.ends), size
        self.stored_end = self._bounds[-1]
        # This reader does not see versions that were appended after the chunk was opened.
        there = len(index.ends) if size is None else bisect_right(index.ends, size)
        parents = tuple(index.parents[:there])
        super().__init__(nbytes, index.item_size, index.block_items, parents, index.version_size)
        self._prefix = prefix
        self._head_bytes = max(_HEADER_BYTES, head_bytes(index.version_size))
        #: By version that was needed: its frame, and the offsets of its blocks.
        self._frames: dict[int, tuple[_core.Index, list[int]]] = {}

    def name(self, version: int) -> str:
        """Return what messages call a version."""
        return super().name(version) if self._names is None else self._names[version]

    def lacks(self, part: ChunkPart) -> bool:
        """Return whether a part has a version that the directory lacked when it was read."""
        return self._last_version(part) >= len(self.parents)

    def prepare(self, part: ChunkPart, read_nbytes: int | None) -> Reading:
        """Read the heads of the frames that a part takes; pad missing versions if allowed.

        CodecError is raised if a version of the part is missing, or a head is damaged.
        """
        if self.lacks(part):
            self._pad(part)
        ranges = {}
        for version in sorted(self._with_ancestors(self._touched_blocks(part), part.known)):
            size = 0 if version in self._frames else self._find_head(version)
            if size:
                ranges[version] = self._head_at(version, size)
        while ranges:
            ranges = yield from self._read_heads(ranges, read_nbytes)

    def stored_at(self, task: Task) -> Range:
        """Return where a version's frame has a task's blocks."""
        begin, offsets = self._bounds[task.version], self._frames[task.version][1]
        first, last = task.blocks
        return begin + offsets[first], begin + offsets[last]

    def _frame_of(self, task: Task) -> tuple[_core.Index, Range]:
        return self._frames[task.version][0], task.blocks

    def _named(self, version: int) -> AbstractContextManager[None]:
        return named_errors(self.name(version))

    def _pad(self, part: ChunkPart) -> None:
        """Pad missing versions, if `part` allows it."""
        last, there = self._last_version(part), len(self.parents)
        if there + 1 < len(self._bounds) and (part.pads or last + 1 < len(self._bounds)):
            raise TruncatedDataError(
                f"the growing frame has {self._size} bytes of {self.stored_end}"
            )
        if not part.pads:
            raise CorruptDataError(
                f"the chunk has {there} of {counted(self._index.room, 'version')},"
                f" and version {last} was asked for"
            )
        part.out[max(0, there * self.version_bytes - part.offset) :] = _NOT_THERE

    def _touched_blocks(self, part: ChunkPart) -> dict[int, list[Range]]:
        """Return the ranges of blocks to read of each existing version."""
        found = super()._touched_blocks(part).items()
        return {version: ranges for version, ranges in found if version < len(self.parents)}

    def _last_version(self, part: ChunkPart) -> int:
        """Return the last version of a part; -1 if the part is empty."""
        ranges = part.ranges()
        return (ranges[-1][1] - 1) // self.version_bytes if ranges else -1

    def _head_at(self, version: int, size: int) -> Range:
        """Return the range of the first `size` bytes of a version's frame, or of all of it."""
        begin, end = self._bounds[version : version + 2]
        return begin, min(begin + size, end)

    def _find_head(self, version: int) -> int:
        """Parse a head if the directory came with it; else return how many bytes to read."""
        begin, end = self._bounds[version : version + 2]
        part = self._prefix[begin:end]
        if part.size < min(_HEADER_BYTES, end - begin):
            return self._head_bytes
        return self._take_head(version, part)

    def _take_head(self, version: int, part: Bytes) -> int:
        """Parse the head of a frame from its first bytes; return its size if it is longer."""
        with self._named(version):
            size = self._index.head_size(version, part)
            if size > part.size:
                return size
            frame = self._index.frame(version, part)
        self._frames[version] = frame, frame.offsets
        return 0

    def _read_heads(
        self, ranges: Mapping[int, Range], read_nbytes: int | None
    ) -> Generator[Sequence[Range], Sequence[Bytes], dict[int, Range]]:
        """Read heads, and return the ranges of those that are longer than requested."""
        longer = {}
        # Where requests cost nothing, one after the other, in memory for one.
        for group in [list(ranges)] if read_nbytes is None else [[version] for version in ranges]:
            asked = joined((ranges[version] for version in group), self.gap)
            fetched = Fetched(asked, (yield asked))
            for version in group:
                size = self._take_head(version, fetched.get(*ranges[version]))
                if size:
                    longer[version] = self._head_at(version, size)
        return longer
