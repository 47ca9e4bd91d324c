"""Chunks that are frames of this package, read and decoded block by block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.blocks import Batch, Fetched, Head, Task, block_ranges
from bf16codecs._arrays.formats import read_whole
from bf16codecs._arrays.heads import FrameHead, GrowingHead, head_bytes
from bf16codecs._arrays.parts import ChunkPart
from bf16codecs._arrays.storage import (
    READ_BYTES,
    BegunChunk,
    ChunkInfo,
    InMemory,
    Range,
    Reading,
    Request,
    StoredChunk,
    drive,
)
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.device_memory import DeviceMemory, Memory, new_memory
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import frame_limit
from bf16codecs.errors import BaseMismatchError, CorruptDataError

__all__ = ["Decoder", "FrameFormat"]

# If a read touches this share of a chunk's blocks, one request for the whole chunk is faster.
_WHOLE_SHARE = 0.75
_MAX_HEADS = 1024


class FrameFormat:
    """Chunks that are frames of this package, which are read block by block.

    With `keep_heads`, it remembers by a chunk's key where its blocks are.
    """

    in_blocks = True

    def __init__(self, keep_heads: bool = True) -> None:
        self._heads: OrderedDict[Hashable, Head] | None = OrderedDict() if keep_heads else None
        self._lock = make_lock()
        self._scratch = ThreadBuffer()

    def reading(self, stored: ChunkInfo, part: ChunkPart) -> Reading:
        """Read parts of a chunk: see `Format`."""
        head = self._known_head(stored)
        if head is None and _is_one_request(stored, part):
            whole = yield from read_whole(stored, frame_limit(part.chunk_nbytes))
            head = _head_of(whole, part.chunk_nbytes, InMemory(whole))
            if head.needs_base or part.known is not None:
                whole = whole.copy()  # its memory may be that in which the base is read
            if head.version_blocks == 0:
                part.put(0, _decoded_tail(whole, head, part))
            else:
                drive(self._decoding(head, part, None), InMemory(whole))
            return
        if head is None or head.lacks(part):
            head = yield from self._read_head(stored, part.chunk_nbytes)
        yield from self._decoding(head, part, stored.read_nbytes)

    def grid(self, stored: StoredChunk, part: ChunkPart, row: int) -> str | None:
        """Return what the first block of a part was quantised to, as far as a frame tells.

        Only heads are read, as a rule with one request; of a chunk that can only be read whole,
        nothing is. `row` is the number of values in a row of the array, 0 if it has none.
        """
        if not stored.reads_ranges:
            return None
        begun = BegunChunk(stored, head_bytes(part.chunk_nbytes))
        return drive(self._describing(begun, part, row), begun)

    def _describing(
        self, stored: ChunkInfo, part: ChunkPart, row: int
    ) -> Generator[Request, Sequence[Bytes], str | None]:
        head = self._known_head(stored)
        if head is None or head.lacks(part):
            head = yield from self._read_head(stored, part.chunk_nbytes)
        yield from head.prepare(part, stored.read_nbytes)
        task = head.first_task(part)
        if task is None:
            return None
        begin, end = head.stored_at(task)
        (prefix,) = yield [(begin, min(begin + _core.GRID_BYTES, end))]
        return head.grid(task, prefix, row)

    def _decoding(self, head: Head, part: ChunkPart, read_nbytes: int | None) -> Reading:
        """Read and decode the blocks of a part, given where they are."""
        decoder = Decoder(head, part, self._scratch)
        yield from head.prepare(part, read_nbytes)
        for batch in head.batches(part, read_nbytes):
            decoder.read_base(batch)
            decoder.decode(batch, (yield batch.ranges))

    def check_base(self, stored: StoredChunk, part: ChunkPart) -> None:
        """Compare the base of a part with what its blocks are coded against; decode nothing.

        Only heads are read, where that is possible. Raises BaseMismatchError.
        """
        if not stored.reads_ranges:
            whole = drive(read_whole(stored, frame_limit(part.chunk_nbytes)), stored)
            stored = InMemory(whole.copy())  # its memory may be that in which the base is read
        drive(self._comparing(stored, part), stored)

    def _comparing(self, stored: ChunkInfo, part: ChunkPart) -> Reading:
        head = self._known_head(stored)
        if head is None or head.lacks(part):
            head = yield from self._read_head(stored, part.chunk_nbytes)
        decoder = Decoder(head, part, self._scratch)
        yield from head.prepare(part, stored.read_nbytes)
        # Where all is one batch, it would be as large as the chunk.
        for batch in head.batches(part, stored.read_nbytes or READ_BYTES):
            decoder.check_base(batch)

    def _known_head(self, stored: ChunkInfo) -> Head | None:
        if self._heads is None or stored.key is None:
            return None
        with self._lock:
            head = self._heads.get(stored.key)
            if head is not None:
                self._heads.move_to_end(stored.key)
            return head

    def _read_head(
        self, stored: ChunkInfo, nbytes: int
    ) -> Generator[Sequence[Range], Sequence[Bytes], Head]:
        size, limit = head_bytes(nbytes), frame_limit(nbytes)
        (prefix,) = yield [(0, size)]
        header_size = _core.header_size(prefix)
        if header_size > limit:
            raise CorruptDataError(f"a head of {header_size} bytes for a chunk of {nbytes}")
        prefix = prefix.copy()  # its memory may be that of the next read
        if header_size > prefix.size == size:
            (rest,) = yield [(size, header_size)]
            prefix = np.concatenate([prefix, rest])
        head = _head_of(prefix, nbytes, stored)
        if head.stored_end > limit:
            raise CorruptDataError(f"it claims {head.stored_end} bytes for a chunk of {nbytes}")
        if self._heads is not None and stored.key is not None:
            with self._lock:
                self._heads[stored.key] = head
                if len(self._heads) > _MAX_HEADS:
                    self._heads.popitem(last=False)
        return head


def _head_of(prefix: Bytes, nbytes: int, stored: ChunkInfo) -> FrameHead | GrowingHead:
    if _core.is_growing(prefix):
        return GrowingHead(prefix, nbytes, stored.size, stored.version_names)
    return FrameHead(prefix, nbytes, stored.size)


def _decoded_tail(frame: Bytes, head: Head, part: ChunkPart) -> Bytes:
    """Decode a frame of less than one item."""
    base = None
    if part.base is not None and head.needs_base:
        base = np.empty(part.chunk_nbytes, np.uint8)
        part.base(0, base.size, base)
    return np.frombuffer(_core.decode(frame, base), np.uint8)


def _is_one_request(stored: ChunkInfo, part: ChunkPart) -> bool:
    """Tell whether to read a whole frame before its head is known."""
    block = _core.DEFAULT_BLOCK_BYTES
    if stored.is_scattered:
        return False
    if part.chunk_nbytes <= block:
        return True
    if stored.read_nbytes is not None:
        return False
    blocks = block_ranges(part.ranges(), block, -(-part.chunk_nbytes // block))
    touched = sum(last - first for first, last in blocks) * block
    return touched >= _WHOLE_SHARE * part.chunk_nbytes


class _Decoded(NamedTuple):
    """Decoded blocks of a version that others are coded against."""

    content: Memory
    #: Whether the memory is not that of `part.out`.
    is_reusable: bool
    #: How many of these others are not decoded yet.
    children: int


class Decoder:
    """Decodes the batches of one part of a chunk, and keeps blocks that later ones refer to.

    Versions that `part.out` does not hold take other memory, which a version takes over from its
    parent where no other needs that. So this memory never exceeds that of the versions to read that
    are not yet decoded, and one more. Blocks that no other needs are decoded to `scratch`.
    """

    def __init__(self, head: Head, part: ChunkPart, scratch: ThreadBuffer) -> None:
        if head.needs_base and part.base is None:
            raise BaseMismatchError(
                "the frame has differences to a base outside of it"
                + for_caller(
                    ": open the store with bf16codecs.open_model, or decode the chunk with"
                    " bf16codecs.decode(frame, base=...)",
                    ", and the store does not say which: restore it from its source or a copy",
                )
            )
        self._head, self._part, self._scratch = head, part, scratch
        self._decoded: dict[int, _Decoded] = {}
        self._free: list[Memory] = []
        #: The base that the part has, by tasks.
        self._outside: dict[Task, Memory] = {}

    def read_base(self, batch: Batch) -> None:
        """Read a batch's part of the base that the part has, to where the batch will be decoded.

        Call this before the bytes of the batch are read: they, and a thread's memory for blocks,
        may lie in memory that reading the base overwrites.
        """
        if self._part.base is None:
            return
        for task in filter(self._is_against_base, batch.tasks):
            start, stop = self._head.span(task)
            view = self._part.view(start, stop)
            if view is None:
                base = new_memory(self._part.out, stop - start)
            else:
                base = view
            base = base[: min(stop, self._head.items_end) - start]
            first = start - task.version * self._head.version_bytes
            self._part.base(first, first + base.size, base)
            self._outside[task] = base

    def _is_against_base(self, task: Task) -> bool:
        """Tell whether a task's blocks are coded against the base that the part has."""
        parent = self._head.parents[task.version]
        return self._head.needs_base if parent is None else parent == self._part.known

    def check_base(self, batch: Batch) -> None:
        """Compare the part's base with what the blocks of a batch are coded against."""
        assert self._part.base is not None
        for task in filter(self._is_against_base, batch.tasks):
            start, stop = self._head.span(task)
            first = start - task.version * self._head.version_bytes
            last = first + min(stop, self._head.items_end) - start
            base = self._part.base_view(first, last)
            if base is None:
                base = self._scratch.get(last - first)
                self._part.base(first, last, base)
            self._head.check_base(task, base)

    def decode(self, batch: Batch, contents: Sequence[Bytes]) -> None:
        """Decode a batch from the bytes of its ranges."""
        fetched = Fetched(batch.ranges, contents)
        for task in batch.tasks:
            self._decode(task, fetched.get(*self._head.stored_at(task)))

    def _decode(self, task: Task, payload: Bytes) -> None:
        start, stop = self._head.span(task)
        base = self._base_of(task)
        out = self._part.view(start, stop)
        is_reusable = out is None
        log = None if is_reusable else self._part.log
        if out is None:
            out = self._room(stop - start, task.children)
        try:
            self._head.decode(task, payload, out, base, log)
        except BaseMismatchError as e:
            if self._is_against_base(task):
                raise
            raise CorruptDataError(
                f"{self._head.name(task.version)}: its parent is not what it was encoded against"
            ) from e
        if is_reusable:
            self._part.put(start, out)
        if task.children:
            self._decoded[task.version] = _Decoded(out, is_reusable, task.children)

    def _base_of(self, task: Task) -> Memory | None:
        """Return the blocks that a task's are coded against, which may be overwritten with them."""
        parent = self._head.parents[task.version]
        if parent is None or parent == self._part.known:
            return self._outside.pop(task, None)
        base = self._decoded.pop(parent)
        if base.children > 1:
            self._decoded[parent] = base._replace(children=base.children - 1)
        elif base.is_reusable:
            self._free.append(base.content)
        return base.content

    def _room(self, size: int, children: int) -> Memory:
        """Return memory that is free again, perhaps the base's, or new memory."""
        is_host = not isinstance(self._part.out, DeviceMemory)
        if is_host and not children:
            return self._scratch.get(size)
        content = self._free.pop() if self._free else new_memory(self._part.out, size)
        return content[:size] if content.size >= size else new_memory(self._part.out, size)
