"""Decoding the blocks of a part of a chunk, after those that they are coded against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bf16codecs._arrays.blocks import Batch, Fetched, Head, Task
from bf16codecs._arrays.stored import Range
from bf16codecs._arrays.wanted import Wanted
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.device_memory import DeviceMemory, Place, new_place
from bf16codecs.errors import BaseMismatchError

__all__ = ["Decoder"]


class _Decoded(NamedTuple):
    """Blocks of a version that others are coded against."""

    content: Place
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
        Of the chunk.
    wanted
        The part.
    scratch
        Memory for blocks that nothing else needs.
    """

    def __init__(self, head: Head, wanted: Wanted, scratch: ThreadBuffer) -> None:
        if head.needs_base and wanted.base is None:
            raise BaseMismatchError(
                "the frame has differences to a base outside of it"
                + for_caller(
                    ": open the store with bf16codecs.open_model, or decode the chunk with"
                    " bf16codecs.decode(frame, base=...)",
                    ", and the store does not say which: restore it from its source or a copy",
                )
            )
        self._head, self._wanted, self._scratch = head, wanted, scratch
        self._decoded: dict[int, _Decoded] = {}
        self._free: list[Place] = []
        #: Of places, the base outside of the chunk.
        self._outside: dict[Range, Place] = {}

    def read_base(self, batch: Batch) -> None:
        """Read what a batch needs of a base outside of the chunk, to where it will be decoded.

        To be called before the batch's own bytes are read: they may lie in memory that reading the
        base takes, as may what a thread keeps for blocks.
        """
        if not self._head.needs_base or self._wanted.base is None:
            return
        for task in batch.tasks:
            start, stop = self._head.span(task)
            place = self._wanted.place(start, stop)
            base = new_place(self._wanted.out, stop - start) if place is None else place
            base = base[: min(stop, self._head.items_end) - start]
            self._wanted.base(start, start + base.size, base)
            self._outside[task.places] = base

    def decode(self, batch: Batch, contents: Sequence[Bytes]) -> None:
        """Decode a batch from what its ranges hold."""
        fetched = Fetched(batch.ranges, contents)
        for task in batch.tasks:
            self._decode(task, fetched.part(*self._head.stored_at(task)))

    def _decode(self, task: Task, payload: Bytes) -> None:
        start, stop = self._head.span(task)
        base = self._base_of(task)
        out = self._wanted.place(start, stop)
        is_own = out is None
        if out is None:
            out = self._room(stop - start, task.children)
        self._head.decode(task, payload, out, base)
        if is_own:
            self._wanted.put(start, out)
        if task.children:
            self._decoded[task.version] = _Decoded(out, is_own, task.children)

    def _base_of(self, task: Task) -> Place | None:
        """Return what a task's blocks are coded against, which may be overwritten with them."""
        parent = self._head.parents[task.version]
        if parent is None:
            return self._outside.pop(task.places, None)
        base = self._decoded.pop(parent)
        if base.children > 1:
            self._decoded[parent] = base._replace(children=base.children - 1)
        elif base.is_own:
            self._free.append(base.content)
        return base.content

    def _room(self, size: int, children: int) -> Place:
        """Return memory that was needed before, the base's too, or new one."""
        is_host = not isinstance(self._wanted.out, DeviceMemory)
        if is_host and not children:
            return self._scratch.get(size)
        content = self._free.pop() if self._free else new_place(self._wanted.out, size)
        return content[:size] if content.size >= size else new_place(self._wanted.out, size)
