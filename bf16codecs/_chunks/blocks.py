"""The blocks of frames: which ones are wanted, where they lie, and decoding them.

A frame holds versions, most frames one. A block of a version is coded alone, or against the block
in the same place of an earlier version. So what is wanted of a version takes the same places of
those that it comes from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bf16codecs import _core
from bf16codecs._buffers import Bytes, ThreadBuffer
from bf16codecs._chunks.stored import Range
from bf16codecs._limits import check_ancestors
from bf16codecs._messages import counted
from bf16codecs.errors import BaseMismatchError, CorruptDataError, TruncatedDataError

__all__ = ["Batch", "Decoder", "Head", "Wanted", "block_runs"]

# Gaps between wanted ranges that cost more to leave out than to read.
_GAP = 1 << 16
# How many blocks of a version are decoded at a time where others need them, and threads for it.
_TOGETHER = 4
# And how many bytes, where blocks are small: each task reads the model of its version.
_TASK_BYTES = 1 << 20
# What a block counts at least among those that are decoded for others: it has a model to read.
_LEAST_COST = 1 << 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of a chunk that is wanted, and where it goes.

    Attributes
    ----------
    nbytes : int
        The chunk's size, padding included.
    touched : callable
        Returns the chunk's bytes that are wanted: ranges, ascending, without overlap. Those that
        are closer than its argument may be one.
    out : uint8 ndarray
        The chunk's bytes from `offset` on. What lies between the ranges is undefined.
    offset : int
        The first byte of the chunk that `out` holds.
    """

    nbytes: int
    touched: Callable[[int], Sequence[Range]]
    out: Bytes
    offset: int = 0

    @classmethod
    def run(cls, nbytes: int, out: Bytes, offset: int) -> Wanted:
        """Want all that `out` holds."""
        return cls(nbytes, lambda gap: [(offset, offset + out.size)], out, offset)

    @classmethod
    def whole(cls, out: Bytes) -> Wanted:
        """Want all of a chunk."""
        return cls.run(out.size, out, 0)

    @property
    def is_whole(self) -> bool:
        """Whether `out` holds the whole chunk."""
        return self.out.size == self.nbytes

    def ranges(self, gap: int = _GAP) -> Sequence[Range]:
        """Return the ranges; those that are closer than `gap`, or than pays, may be one."""
        return self.touched(min(gap, _GAP))

    def place(self, start: int, stop: int) -> Bytes | None:
        """Return where `out` has some of the chunk's bytes, or None if it has not all of them."""
        if start < self.offset or stop > self.offset + self.out.size:
            return None
        return self.out[start - self.offset : stop - self.offset]

    def put(self, start: int, content: Bytes) -> None:
        """Copy what `out` holds of the chunk's bytes from `start` on."""
        first = max(start, self.offset)
        last = min(start + content.size, self.offset + self.out.size)
        if first < last:
            place = self.out[first - self.offset : last - self.offset]
            place[:] = content[first - start : last - start]


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
        if index.needs_base:
            raise BaseMismatchError(
                "the frame has differences to a base outside of it, which arrays do not have:"
                " decode the stored chunk with bf16codecs.decode(frame, base=...)"
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


class _Decoded(NamedTuple):
    """Blocks of a version that others are coded against."""

    content: Bytes
    is_own: bool
    #: How many others there still are.
    children: int


class Decoder:
    """Decodes the batches of one part of a chunk, and keeps what later ones are coded against.

    Versions that `wanted.out` does not hold take memory of their own, which a version takes over
    from its parent where no other needs that. So there are never more of them than versions that
    are wanted and not yet decoded, and one.

    Parameters
    ----------
    head
        Of the frame.
    wanted
        The part.
    scratch
        Memory for blocks that nothing else needs.
    """

    def __init__(self, head: Head, wanted: Wanted, scratch: ThreadBuffer) -> None:
        self._head, self._wanted, self._scratch = head, wanted, scratch
        self._decoded: dict[int, _Decoded] = {}
        self._free: list[Bytes] = []

    def decode(self, batch: Batch, payloads: Sequence[Bytes]) -> None:
        """Decode a batch from the bytes of its runs of blocks."""
        head = self._head
        for run, payload in zip(batch.runs, payloads, strict=True):
            start, stop = head.range_of(run)
            if payload.size != stop - start:
                raise TruncatedDataError(
                    f"{counted(payload.size, 'byte')} where {stop - start} were expected,"
                    f" at {start}"
                )
        firsts = [first for first, _ in batch.runs]
        for task in batch.tasks:
            blocks = head.run_of(task)
            at = bisect_right(firsts, blocks[0]) - 1
            origin = head.offsets[firsts[at]]
            start, stop = head.range_of(blocks)
            self._decode(task, blocks, payloads[at][start - origin : stop - origin])

    def _decode(self, task: Task, run: Range, payload: Bytes) -> None:
        start, stop = self._head.span(task.version, task.places)
        base = self._base_of(task)
        out = self._wanted.place(start, stop)
        is_own = out is None
        if out is None:
            out = self._room(stop - start) if task.children else self._scratch.get(stop - start)
        self._head.index.decode_block_range(payload, *run, out, base)
        if is_own:
            self._wanted.put(start, out)
        if task.children:
            self._decoded[task.version] = _Decoded(out, is_own, task.children)

    def _base_of(self, task: Task) -> Bytes | None:
        """Return what a task's blocks are coded against, which may be overwritten with them."""
        parent = self._head.parents[task.version]
        if parent is None:
            return None
        base = self._decoded.pop(parent)
        if base.children > 1:
            self._decoded[parent] = base._replace(children=base.children - 1)
        elif base.is_own:
            self._free.append(base.content)
        return base.content

    def _room(self, size: int) -> Bytes:
        """Return memory that was needed before, the base's too, or new one."""
        content = self._free.pop() if self._free else np.empty(size, np.uint8)
        return content[:size] if content.size >= size else np.empty(size, np.uint8)
