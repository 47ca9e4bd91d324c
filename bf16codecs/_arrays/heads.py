"""Heads of stored chunks, as their bytes have them."""

from __future__ import annotations

from bf16codecs import _core
from bf16codecs._arrays.blocks import Head, Task
from bf16codecs._arrays.stored import Range
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.device_memory import Place, decode_blocks
from bf16codecs._base.messages import counted
from bf16codecs.errors import CorruptDataError, TruncatedDataError

__all__ = ["FrameHead", "head_bytes"]

# The first read. It holds the head of a frame, whose block table has 8 bytes for each block.
_PREFIX_BYTES = 4096
_PREFIX_SHIFT = 15


def head_bytes(nbytes: int) -> int:
    """Return how many bytes to read for the head of a frame, at first, that holds `nbytes`."""
    return max(_PREFIX_BYTES, nbytes >> _PREFIX_SHIFT)


class FrameHead(Head):
    """The head of a frame.

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
        first, last = self._run_of(task)
        return self._offsets[first], self._offsets[last]

    def decode(self, task: Task, payload: Bytes, out: Place, base: Place | None) -> None:
        """Decode a task's blocks from these bytes, against those of the same places."""
        decode_blocks(self._index, payload, *self._run_of(task), out, base)

    def _run_of(self, task: Task) -> Range:
        """Return the blocks of a task, counted in the frame."""
        begin, (first, last) = task.version * self.version_blocks, task.places
        return begin + first, begin + last
