"""The blocks of frames: which ones are wanted, and where they lie.

A frame holds versions, most frames one. A block of a version is coded alone, or against the block
in the same place of an earlier version. So what is wanted of a version takes the same places of
those that it comes from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from bf16codecs import _core
from bf16codecs._buffers import Bytes
from bf16codecs._chunks.stored import Range
from bf16codecs._chunks.wanted import Wanted
from bf16codecs._limits import check_ancestors
from bf16codecs._messages import counted
from bf16codecs.errors import CorruptDataError, TruncatedDataError

__all__ = ["Batch", "Head", "Task", "block_runs"]

# How many blocks of a version are decoded at a time where others need them, and threads for it.
_TOGETHER = 4
# And how many bytes, where blocks are small: each task reads the model of its version.
_TASK_BYTES = 1 << 20
# What a block counts at least among those that are decoded for others: it has a model to read.
_LEAST_COST = 1 << 16


def block_runs(ranges: Iterable[Range], block_bytes: int, n_blocks: int) -> list[Range]:
    """Return the runs of blocks that hold the ranges: ascending, with gaps between them."""
    runs: list[Range] = []
    for start, stop in ranges:
        # The bytes after the last whole item belong to the last block.
        first = min(start // block_bytes, n_blocks - 1)
        last = min(-(-stop // block_bytes), n_blocks)
        if runs and first <= runs[-1][1]:
            first = runs.pop()[0]
        runs.append((first, last))
    return runs


class Task(NamedTuple):
    """Blocks of one version that are decoded together."""

    version: int
    #: The first block, counted in the version, and the one after the last.
    places: Range
    #: How many others are coded against it, of those that will be decoded.
    children: int


class Batch(NamedTuple):
    """What is decoded in turn, and the runs of the frame's blocks that it takes."""

    tasks: Sequence[Task]
    runs: Sequence[Range]


class Head:
    """The part of a frame that says where its blocks are.

    Parameters
    ----------
    prefix : buffer
        The frame's first bytes: at least its header and block table.
    nbytes : int
        Size of the chunk that it has to hold.
    size : int or None
        Size of the stored frame, if that is known.

    Raises
    ------
    CodecError
        If it is not such a frame.
    """

    __slots__ = (
        "block_bytes",
        "index",
        "items_end",
        "n_blocks",
        "offsets",
        "parents",
        "version_blocks",
        "version_bytes",
    )

    def __init__(self, prefix: Bytes, nbytes: int, size: int | None) -> None:
        index = self.index = _core.Index(prefix)
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
        self.offsets = tuple(index.offsets)
        self.block_bytes = index.block_items * index.item_size
        self.n_blocks = index.n_blocks
        #: Of each version, the one that it is coded against.
        self.parents: Sequence[int | None] = tuple(index.parents) or (None,)
        #: Where the chunk's last whole item ends.
        self.items_end = nbytes - nbytes % index.item_size
        #: Blocks, and bytes, of a version.
        self.version_blocks = index.n_blocks // len(self.parents)
        self.version_bytes = nbytes // len(self.parents)

    def range_of(self, run: Range) -> Range:
        """Return where the frame has a run of blocks."""
        return self.offsets[run[0]], self.offsets[run[1]]

    def span(self, version: int, places: Range) -> Range:
        """Return where the chunk has blocks of a version."""
        begin, size = version * self.version_bytes, self.version_bytes
        first, last = places
        # The last block of a version has what is left of it.
        stop = size if last == self.version_blocks else last * self.block_bytes
        return begin + first * self.block_bytes, begin + stop

    def batches(self, wanted: Wanted, piece: int | None) -> Iterator[Batch]:
        """Yield what to decode for a part of the chunk, after the versions that it comes from.

        Parameters
        ----------
        wanted
            The part.
        piece
            How many bytes to decode from one run of blocks, at least a block; None for all that
            there are, from any number of runs.

        Raises
        ------
        StoreError
            If there is far more to decode than is wanted.
        """
        if piece is None:
            # All is fetched at once, and decoded in parts if versions between have to be kept.
            few = max(_TOGETHER, _core.get_num_threads(), _TASK_BYTES // self.block_bytes)
            length = few if len(self.parents) > 1 else None
            tasks = list(self._tasks(wanted, length))
            yield Batch(tasks, _joined(sorted(map(self.run_of, tasks))))
            return
        length = max(1, piece // self.block_bytes)
        tasks, run, size = [], (0, 0), 0
        for task in self._tasks(wanted, length):
            (first, last), (start, stop) = self.run_of(task), self.span(task.version, task.places)
            size += stop - start
            if tasks and (first != run[1] or size > length * self.block_bytes):
                yield Batch(tasks, [run])
                tasks, size = [], stop - start
            run = (run[0] if tasks else first, last)
            tasks.append(task)
        if tasks:
            yield Batch(tasks, [run])

    def run_of(self, task: Task) -> Range:
        """Return the blocks of a task, counted in the frame."""
        begin, (first, last) = task.version * self.version_blocks, task.places
        return begin + first, begin + last

    def _tasks(self, wanted: Wanted, length: int | None) -> Iterator[Task]:
        """Yield tasks of at most `length` blocks, which `wanted.out` has all or none."""
        edges = self._edges(wanted)
        runs = self._wanted_runs(wanted)
        block = max(_LEAST_COST, min(self.block_bytes, self.version_bytes))
        chosen = sum(last - first for own in runs.values() for first, last in own)
        count = 0
        for places, versions in _sections(runs):
            children = self._with_ancestors(versions)
            count += len(children) * (places[1] - places[0])
            check_ancestors(count * block, chosen * block)
            for part in _parts(places, length, edges):
                for version in sorted(children):
                    yield Task(version, part, children[version])

    def _wanted_runs(self, wanted: Wanted) -> dict[int, list[Range]]:
        """Return the runs of wanted blocks of each version, counted in it."""
        size = self.version_bytes
        ranges = defaultdict(list)
        for start, stop in wanted.ranges(min(self.block_bytes, size)):
            for version in range(start // size, -(-stop // size)):
                begin = version * size
                ranges[version].append((max(0, start - begin), min(size, stop - begin)))
        return {
            version: block_runs(own, self.block_bytes, self.version_blocks)
            for version, own in ranges.items()
        }

    def _with_ancestors(self, versions: Iterable[int]) -> dict[int, int]:
        """Return how many of the versions, and of those they come from, each is a parent of."""
        children: dict[int, int] = {}
        for version in versions:
            child: int | None = version
            while child is not None and child not in children:
                children[child] = 0
                child = self.parents[child]
        for version in children:
            parent = self.parents[version]
            if parent is not None:
                children[parent] += 1
        return children

    def _edges(self, wanted: Wanted) -> set[int]:
        """Return the places at which `wanted.out` begins, ends, or has a block in part."""
        places = set()
        for byte in (wanted.offset, wanted.offset + wanted.out.size):
            place, rest = divmod(byte % self.version_bytes, self.block_bytes)
            place = min(place, self.version_blocks - 1)
            places |= {place, place + 1} if rest else {place}
        return places


def _joined(runs: Iterable[Range]) -> list[Range]:
    """Return ascending runs of blocks, with those joined that follow on each other."""
    joined: list[Range] = []
    for first, last in runs:
        if joined and first == joined[-1][1]:
            first = joined.pop()[0]
        joined.append((first, last))
    return joined


def _sections(runs: dict[int, list[Range]]) -> Iterator[tuple[Range, set[int]]]:
    """Yield runs of places of which the same versions are wanted, with these."""
    begins, ends = defaultdict(list), defaultdict(list)
    for version, own in runs.items():
        for first, last in own:
            begins[first].append(version)
            ends[last].append(version)
    active: set[int] = set()
    for places in pairwise(sorted(begins.keys() | ends.keys())):
        active.difference_update(ends.get(places[0], ()))
        active.update(begins.get(places[0], ()))
        if active:
            yield places, active


def _parts(places: Range, length: int | None, edges: Iterable[int]) -> Iterator[Range]:
    """Yield a run of places in parts of at most `length` that do not go over an edge."""
    first, last = places
    cuts = {first, last, *(edge for edge in edges if first < edge < last)}
    if length is not None:
        cuts.update(range(first, last, length))
    yield from pairwise(sorted(cuts))
