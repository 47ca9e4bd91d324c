"""Chunks that are frames of this package, read block by block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Hashable, Sequence

import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.blocks import Head, block_runs
from bf16codecs._arrays.decoder import Decoder
from bf16codecs._arrays.formats import read_whole
from bf16codecs._arrays.growing import GrowingHead
from bf16codecs._arrays.heads import FrameHead, head_bytes
from bf16codecs._arrays.stored import InMemory, Known, Range, Reading, drive
from bf16codecs._arrays.wanted import Wanted
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import frame_limit
from bf16codecs.errors import CorruptDataError

__all__ = ["FrameFormat"]

# Where this share of a chunk's blocks is touched, one request for all of it is the better one.
_WHOLE_SHARE = 0.75
_MAX_HEADS = 1024


class FrameFormat:
    """Chunks that are frames of this package, which are read block by block.

    Parameters
    ----------
    keep_heads
        Remember where the blocks of stored chunks are, by their keys.
    """

    in_blocks = True

    def __init__(self, keep_heads: bool = True) -> None:
        self._heads: OrderedDict[Hashable, Head] | None = OrderedDict() if keep_heads else None
        self._lock = make_lock()
        self._scratch = ThreadBuffer()

    def reading(self, stored: Known, wanted: Wanted) -> Reading:
        """Read parts of a chunk: see `Format`."""
        head = self._known_head(stored)
        if head is None and _is_one_request(stored, wanted):
            whole = yield from read_whole(stored, frame_limit(wanted.nbytes))
            head = _head_of(whole, wanted.nbytes, whole.size)
            if head.needs_base:
                whole = whole.copy()  # its memory may be that in which the base is read
            if head.version_blocks == 0:
                wanted.put(0, _decoded_tail(whole, head, wanted))
            else:
                drive(self._decoding(head, wanted, None), InMemory(whole))
            return
        if head is None or head.lacks(wanted):
            head = yield from self._read_head(stored, wanted.nbytes)
        yield from self._decoding(head, wanted, stored.piece)

    def _decoding(self, head: Head, wanted: Wanted, piece: int | None) -> Reading:
        """Read and decode the blocks of a part, given where they are."""
        decoder = Decoder(head, wanted, self._scratch)
        yield from head.prepare(wanted, piece)
        for batch in head.batches(wanted, piece):
            decoder.read_base(batch)
            decoder.decode(batch, (yield batch.ranges))

    def _known_head(self, stored: Known) -> Head | None:
        if self._heads is None or stored.key is None:
            return None
        with self._lock:
            head = self._heads.get(stored.key)
            if head is not None:
                self._heads.move_to_end(stored.key)
            return head

    def _read_head(
        self, stored: Known, nbytes: int
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
        head = _head_of(prefix, nbytes, stored.size)
        if head.stored_end > limit:
            raise CorruptDataError(f"it claims {head.stored_end} bytes for a chunk of {nbytes}")
        if self._heads is not None and stored.key is not None:
            with self._lock:
                self._heads[stored.key] = head
                if len(self._heads) > _MAX_HEADS:
                    self._heads.popitem(last=False)
        return head


def _head_of(prefix: Bytes, nbytes: int, size: int | None) -> FrameHead | GrowingHead:
    if _core.is_growing(prefix):
        return GrowingHead(prefix, nbytes, size)
    return FrameHead(prefix, nbytes, size)


def _decoded_tail(frame: Bytes, head: Head, wanted: Wanted) -> Bytes:
    """Decode a frame of less than one item."""
    base = None
    if wanted.base is not None and head.needs_base:
        base = np.empty(wanted.nbytes, np.uint8)
        wanted.base(0, base.size, base)
    return np.frombuffer(_core.decode(frame, base), np.uint8)


def _is_one_request(stored: Known, wanted: Wanted) -> bool:
    """Tell whether to read all of a frame without a look at where its blocks are."""
    block = _core.DEFAULT_BLOCK_BYTES
    if wanted.nbytes <= block:
        return True
    if stored.piece is not None:
        return False
    runs = block_runs(wanted.ranges(), block, -(-wanted.nbytes // block))
    touched = sum(last - first for first, last in runs) * block
    return touched >= _WHOLE_SHARE * wanted.nbytes
