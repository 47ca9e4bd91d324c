"""Blocks of a chunk that a read wants, and the ranges of its bytes that they take.

A chunk holds versions, most chunks one. A block of a version is coded alone, or against the block
of the same number in an earlier version. So a block takes the blocks of its number in all versions
that it comes from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, pairwise
from typing import NamedTuple

from bf16codecs import _core
from bf16codecs._arrays.parts import ChunkPart
from bf16codecs._arrays.storage import Range, Reading
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.device_memory import Memory, decode_blocks
from bf16codecs._base.limits import check_ancestors
from bf16codecs._base.messages import counted
from bf16codecs.errors import TruncatedDataError

__all__ = ["Batch", "Fetched", "Head", "Task", "block_ranges", "joined"]

# How many blocks of a version are decoded at a time where others need them, and threads for it.
_TOGETHER = 4
# And how many bytes, where blocks are small: each task reads the model of its version.
_TASK_BYTES = 1 << 20
# How many times as many where a log is kept: each block is decoded beside its base, in the cache
# however many there are. Tasks of 2 MiB took 0.14 ms of Python each, a tenth of an update.
_LOGGED = 8
# The least cost of a block that is decoded for others: it has a model to read.
_LEAST_COST = 1 << 16


def block_ranges(ranges: Iterable[Range], block_bytes: int, n_blocks: int) -> list[Range]:
    """Return the blocks that hold ranges of bytes, as ascending ranges with gaps between them."""
    found: list[Range] = []
    for start, stop in ranges:
        # The bytes after the last whole item belong to the last block.
        first = min(start // block_bytes, n_blocks - 1)
        last = min(-(-stop // block_bytes), n_blocks)
        if found and first <= found[-1][1]:
            first = found.pop()[0]
        found.append((first, last))
    return found


class Task(NamedTuple):
    """Blocks of one version that are decoded together."""

    version: int
    #: The first block, counted in the version, and the one after the last.
    blocks: Range
    #: How many of the versions to decode are coded against it.
    children: int


class Batch(NamedTuple):
    """A batch of blocks to decode, and the ranges of the stored chunk that it takes."""

    tasks: Sequence[Task]
    ranges: Sequence[Range]


class Fetched:
    """The ranges that were read of a stored chunk, ascending, and their bytes.

    TruncatedDataError is raised if one holds less than its range.
    """

    def __init__(self, ranges: Sequence[Range], contents: Sequence[Bytes]) -> None:
        for (start, stop), content in zip(ranges, contents, strict=True):
            if content.size != stop - start:
                raise TruncatedDataError(
                    f"{counted(content.size, 'byte')} where {stop - start} were expected,"
                    f" at {start}"
                )
        self._starts, self._contents = [start for start, _ in ranges], contents

    def get(self, start: int, stop: int) -> Bytes:
        """Return a range that lies within one that was read."""
        at = bisect_right(self._starts, start) - 1
        origin = self._starts[at]
        return self._contents[at][start - origin : stop - origin]


class Head(ABC):
    """Base of frames' heads, which locate the blocks of a chunk's versions.

    `parents` has the version that each version is coded against.
    """

    #: Whether blocks are coded against a base outside of the chunk.
    needs_base = False
    #: Gaps of at most this many bytes between blocks are read with them.
    gap = 0

    def __init__(
        self,
        nbytes: int,
        item_size: int,
        block_items: int,
        parents: Sequence[int | None],
        version_bytes: int,
    ) -> None:
        self.block_bytes = block_items * item_size
        #: Where the chunk's last whole item ends.
        self.items_end = nbytes - nbytes % item_size
        self.parents, self.version_bytes = parents, version_bytes
        #: Blocks of a version.
        self.version_blocks = -(-(version_bytes // item_size) // block_items)

    def lacks(self, part: ChunkPart) -> bool:
        """Return whether a part has a version that the head lacked when it was read."""
        return False

    def prepare(self, part: ChunkPart, read_nbytes: int | None) -> Reading:
        """Read the heads that `batches` needs for a part."""
        yield from ()

    @abstractmethod
    def stored_at(self, task: Task) -> Range:
        """Return where the stored chunk has a task's blocks."""

    @abstractmethod
    def _frame_of(self, task: Task) -> tuple[_core.Index, Range]:
        """Return the frame that has a task's blocks, and which these are in it."""

    def _named(self, version: int) -> AbstractContextManager[None]:
        """Let errors name a version, if it has a frame of its own."""
        return nullcontext()

    def name(self, version: int) -> str:
        """Return what messages call a version."""
        return f"version {version}"

    def grid(self, task: Task, prefix: Bytes, row: int) -> str | None:
        """Return what a task's first block was quantised to, from its first `GRID_BYTES`, if known.

        `row` is the number of values in a row of the array, 0 if it has none.
        """
        index, (first, _) = self._frame_of(task)
        return index.grid(first, prefix, row)

    def decode(
        self,
        task: Task,
        payload: Bytes,
        out: Memory,
        base: Memory | None,
        log: _core.UndoLog | None,
    ) -> None:
        """Decode a task's blocks from these bytes, against the same blocks of the base.

        With a log, nothing of `out` is lost where this fails.
        """
        index, blocks = self._frame_of(task)
        with self._named(task.version):
            decode_blocks(index, payload, *blocks, out, base, log)

    def check_base(self, task: Task, base: Bytes) -> None:
        """Raise BaseMismatchError unless these are the bytes that a task is coded against."""
        index, blocks = self._frame_of(task)
        with self._named(task.version):
            index.check_base(*blocks, base)

    def first_task(self, part: ChunkPart) -> Task | None:
        """Return the first block of a part; None if a version has less than an item."""
        if not self.version_blocks:
            return None
        version, ((first, _), *_) = next(iter(self._touched_blocks(part).items()))
        return Task(version, (first, first + 1), 0)

    def span(self, task: Task) -> Range:
        """Return where the chunk has a task's blocks, decoded."""
        begin, size = task.version * self.version_bytes, self.version_bytes
        first, last = task.blocks
        # The last block of a version has the remaining items.
        stop = size if last == self.version_blocks else last * self.block_bytes
        return begin + first * self.block_bytes, begin + stop

    def batches(self, part: ChunkPart, read_nbytes: int | None) -> Iterator[Batch]:
        """Yield the batches to decode for a part of the chunk, each after its ancestors'.

        `read_nbytes` is how many bytes to decode from one range of blocks, at least a block; None
        for all, from any number of ranges. StoreError is raised if the part needs far more decoded
        than it has.
        """
        if read_nbytes is None:
            # All is fetched at once, and decoded in parts if versions between have to be kept.
            few = max(_TOGETHER, _core.get_num_threads(), _TASK_BYTES // self.block_bytes)
            length = few if len(self.parents) > 1 else None
            tasks = list(self._tasks(part, length, length))
            yield Batch(tasks, joined(map(self.stored_at, tasks), self.gap))
            return
        length = max(1, read_nbytes // self.block_bytes)
        alone = length if part.log is None else _LOGGED * length
        tasks, stored, size = [], (0, 0), 0
        for task in self._tasks(part, length, alone):
            begin, end = self.stored_at(task)
            start, stop = self.span(task)
            size += stop - start
            follows = stored[1] <= begin <= stored[1] + self.gap
            if tasks and (not follows or size > length * self.block_bytes):
                yield Batch(tasks, [stored])
                tasks, size = [], stop - start
            stored = (stored[0] if tasks else begin, end)
            tasks.append(task)
        if tasks:
            yield Batch(tasks, [stored])

    def _tasks(self, part: ChunkPart, length: int | None, alone: int | None) -> Iterator[Task]:
        """Yield tasks of at most `length` blocks, which `part.out` has all or none.

        Tasks of one version that comes from no others have at most `alone`.
        """
        edges = self._edges(part)
        touched_blocks = self._touched_blocks(part)
        block = max(_LEAST_COST, min(self.block_bytes, self.version_bytes))
        every = chain.from_iterable(touched_blocks.values())
        chosen = sum(last - first for first, last in every)
        count = 0
        for blocks, versions in _shared_blocks(touched_blocks):
            children = self._with_ancestors(versions, part.known)
            count += len(children) * (blocks[1] - blocks[0])
            check_ancestors(count * block, chosen * block)
            for cut in _cut(blocks, alone if len(children) == 1 else length, edges):
                for version in sorted(children):
                    yield Task(version, cut, children[version])

    def _touched_blocks(self, part: ChunkPart) -> dict[int, list[Range]]:
        """Return the ranges of blocks to read of each version, counted in it."""
        size = self.version_bytes
        ranges = defaultdict(list)
        for start, stop in part.ranges(min(self.block_bytes, size)):
            for version in range(start // size, -(-stop // size)):
                begin = version * size
                ranges[version].append((max(0, start - begin), min(size, stop - begin)))
        return {
            version: block_ranges(touched, self.block_bytes, self.version_blocks)
            for version, touched in ranges.items()
        }

    def _with_ancestors(self, versions: Iterable[int], known: int | None) -> dict[int, int]:
        """Return how many of the versions, and of those they come from, each is a parent of.

        What is `known` comes from no other.
        """
        children: dict[int, int] = {}
        for version in versions:
            child: int | None = version
            while child is not None and child not in children and child != known:
                children[child] = 0
                child = self.parents[child]
        for version in children:
            parent = self.parents[version]
            if parent is not None and parent != known:
                children[parent] += 1
        return children

    def _edges(self, part: ChunkPart) -> set[int]:
        """Return the blocks at which `part.out` begins, ends, or has a block in part."""
        edges = set()
        for byte in (part.offset, part.offset + part.out.size):
            block, rest = divmod(byte % self.version_bytes, self.block_bytes)
            block = min(block, self.version_blocks - 1)
            edges |= {block, block + 1} if rest else {block}
        return edges


def joined(ranges: Iterable[Range], gap: int) -> list[Range]:
    """Return ranges in order, with those joined between which there are at most `gap` bytes."""
    found: list[Range] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1] + gap:
            start = found.pop()[0]
        found.append((start, stop))
    return found


def _shared_blocks(touched: dict[int, list[Range]]) -> Iterator[tuple[Range, set[int]]]:
    """Yield ranges of blocks that are touched in the same versions, with these versions."""
    begins, ends = defaultdict(list), defaultdict(list)
    for version, ranges in touched.items():
        for first, last in ranges:
            begins[first].append(version)
            ends[last].append(version)
    active: set[int] = set()
    for first, last in pairwise(sorted(begins.keys() | ends.keys())):
        active.difference_update(ends.get(first, ()))
        active.update(begins.get(first, ()))
        if active:
            yield (first, last), active


def _cut(blocks: Range, length: int | None, edges: Iterable[int]) -> Iterator[Range]:
    """Cut a range of blocks into parts of at most `length` that do not go over an edge."""
    first, last = blocks
    cuts = {first, last, *(edge for edge in edges if first < edge < last)}
    if length is not None:
        cuts.update(range(first, last, length))
    yield from pairwise(sorted(cuts))
