"""Chunks that are frames of this package, read block by block."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator, Hashable, Sequence

import numpy as np

from bf16codecs import _core
from bf16codecs._buffers import Bytes, ThreadBuffer
from bf16codecs._chunks.blocks import block_runs
from bf16codecs._chunks.decoder import Decoder
from bf16codecs._chunks.formats import Reading, read_whole
from bf16codecs._chunks.heads import FrameHead
from bf16codecs._chunks.stored import Known, Range
from bf16codecs._chunks.wanted import Wanted
from bf16codecs._limits import stored_limit
from bf16codecs.errors import CorruptDataError

__all__ = ["FrameFormat"]

# Where this share of a chunk's blocks is touched, one request for all of it is the better one.
_WHOLE_SHARE = 0.75
# The first read. It holds the head of a frame, whose block table has 8 bytes for each block.
_PREFIX_BYTES = 4096
_PREFIX_SHIFT = 15
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
        self._heads: OrderedDict[Hashable, FrameHead] | None = OrderedDict() if keep_heads else None
        self._lock = threading.Lock()
        self._scratch = ThreadBuffer()

    def reading(self, stored: Known, wanted: Wanted) -> Reading:
        """Read parts of a chunk: see `Format`."""
        head = self._known_head(stored)
        if head is None and _is_one_request(stored, wanted):
            frame = yield from read_whole(stored, wanted.nbytes)
            head = FrameHead(frame, wanted.nbytes, frame.size)
            decoder = Decoder(head, wanted, self._scratch)
            if head.needs_base:
                frame = frame.copy()  # its memory may be that in which the base is read
            if head.version_blocks == 0:
                wanted.put(0, _decoded_tail(frame, head, wanted))
                return
            for batch in head.batches(wanted, None):
                decoder.read_base(batch)
                decoder.decode(batch, [frame[slice(*r)] for r in batch.ranges])
            return
        if head is None:
            head = yield from self._read_head(stored, wanted.nbytes)
        decoder = Decoder(head, wanted, self._scratch)
        for batch in head.batches(wanted, stored.piece):
            decoder.read_base(batch)
            decoder.decode(batch, (yield batch.ranges))

    def _known_head(self, stored: Known) -> FrameHead | None:
        if self._heads is None or stored.key is None:
            return None
        with self._lock:
            head = self._heads.get(stored.key)
            if head is not None:
                self._heads.move_to_end(stored.key)
            return head

    def _read_head(
        self, stored: Known, nbytes: int
    ) -> Generator[Sequence[Range], Sequence[Bytes], FrameHead]:
        size = max(_PREFIX_BYTES, nbytes >> _PREFIX_SHIFT)
        (prefix,) = yield [(0, size)]
        header_size = _core.header_size(prefix)
        if header_size > stored_limit(nbytes):
            raise CorruptDataError(f"a block table of {header_size} bytes for a chunk of {nbytes}")
        if header_size > prefix.size == size:
            prefix = prefix.copy()  # its memory may be that of the next read
            (rest,) = yield [(size, header_size)]
            prefix = np.concatenate([prefix, rest])
        head = FrameHead(prefix, nbytes, stored.size)
        if head.stored_end > stored_limit(nbytes):
            raise CorruptDataError(f"it claims {head.stored_end} bytes for a chunk of {nbytes}")
        if self._heads is not None and stored.key is not None:
            with self._lock:
                self._heads[stored.key] = head
                if len(self._heads) > _MAX_HEADS:
                    self._heads.popitem(last=False)
        return head


def _decoded_tail(frame: Bytes, head: FrameHead, wanted: Wanted) -> Bytes:
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
