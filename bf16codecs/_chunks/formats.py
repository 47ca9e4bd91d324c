"""Forms in which chunks are stored: frames, which are read block by block, and others."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numcodecs import Zstd
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._chunks.sources import Blobs, Range, check_length
from bf16codecs.errors import CorruptDataError, StoreError

__all__ = ["FrameForm", "PlainForm", "StoredForm", "ZstdForm"]

Bytes = NDArray[np.uint8]

# A block of bfloat16 of the default size: smaller chunks are one block.
_BLOCK_BYTES = 1 << 19
# Where this share of a chunk is wanted, one request for all of it is the better one.
_WHOLE_SHARE = 0.75
# A first read of this size holds header and block table, of 8 bytes a block of the default size.
_PREFIX_BYTES = 4096
_PREFIX_SHIFT = 15
_MAX_HEADS = 1024


class StoredForm(Protocol):
    """How a chunk's bytes are stored."""

    def read(
        self, blobs: Blobs, key: str, nbytes: int, spans: Sequence[Range], out: Bytes, base: int
    ) -> None:
        """Read parts of a chunk.

        Parameters
        ----------
        blobs, key
            Where the chunk is stored.
        nbytes
            The chunk's size, padding included.
        spans
            Ranges of its bytes that are wanted, ascending, without overlap.
        out
            The chunk's bytes from `base` on, as many as there are. What lies between the spans is
            undefined.
        base
            The first byte of the chunk that `out` holds.
        """


class PlainForm:
    """Chunks stored as they are."""

    def read(
        self, blobs: Blobs, key: str, nbytes: int, spans: Sequence[Range], out: Bytes, base: int
    ) -> None:
        """Read parts of a chunk: see `StoredForm`."""
        spans = _pieces(spans, blobs.piece)
        for (start, stop), part in zip(spans, blobs.read_ranges(key, spans), strict=True):
            out[start - base : stop - base] = check_length(part, stop - start)


class ZstdForm:
    """Chunks that are Zstandard frames, which can be decoded whole only."""

    def read(
        self, blobs: Blobs, key: str, nbytes: int, spans: Sequence[Range], out: Bytes, base: int
    ) -> None:
        """Read parts of a chunk: see `StoredForm`."""
        stored = _present(blobs.read(key, _stored_limit(nbytes)))
        try:
            content = np.frombuffer(Zstd().decode(stored), np.uint8)
        except (RuntimeError, ValueError) as e:
            raise CorruptDataError(str(e)) from e
        _check_size(content.size, nbytes)
        out[:] = content[base : base + out.size]


@dataclass(frozen=True, slots=True)
class _Head:
    """The part of a frame that says where its blocks are."""

    index: _core.Index
    offsets: tuple[int, ...]
    block_bytes: int
    n_blocks: int


class FrameForm:
    """Chunks that are frames of this package; what says where their blocks are is kept."""

    def __init__(self) -> None:
        self._heads: OrderedDict[str, _Head] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = threading.local()

    def read(
        self, blobs: Blobs, key: str, nbytes: int, spans: Sequence[Range], out: Bytes, base: int
    ) -> None:
        """Read parts of a chunk: see `StoredForm`."""
        most = sum(b - a for a, b in spans) >= _WHOLE_SHARE * nbytes
        if nbytes <= _BLOCK_BYTES or (most and blobs.piece is None):
            frame = _present(blobs.read(key, _stored_limit(nbytes)))
            head = _parse(frame, nbytes)
            if head.n_blocks == 0:  # less than one item
                out[:] = np.frombuffer(_core.decode(frame), np.uint8)[base : base + out.size]
                return
            for run in _block_runs(spans, head):
                payload = frame[head.offsets[run[0]] : head.offsets[run[1]]]
                self._decode(head, payload, run, nbytes, out, base)
            return
        head = self._head(blobs, key, nbytes)
        runs = _pieces(_block_runs(spans, head), blobs.piece and blobs.piece // head.block_bytes)
        ranges = [(head.offsets[a], head.offsets[b]) for a, b in runs]
        for run, payload in zip(runs, blobs.read_ranges(key, ranges), strict=True):
            self._decode(head, payload, run, nbytes, out, base)

    def _head(self, blobs: Blobs, key: str, nbytes: int) -> _Head:
        with self._lock:
            head = self._heads.get(key)
            if head is not None:
                self._heads.move_to_end(key)
                return head
        size = max(_PREFIX_BYTES, nbytes >> _PREFIX_SHIFT)
        (prefix,) = blobs.read_ranges(key, [(0, size)])
        header_size = _core.header_size(prefix)
        if header_size > _stored_limit(nbytes):
            raise CorruptDataError(f"a block table of {header_size} bytes")
        if header_size > prefix.size:
            # The reader's buffer is about to be used again.
            prefix = prefix.copy()
            if prefix.size == size:
                (rest,) = blobs.read_ranges(key, [(size, header_size)])
                prefix = np.concatenate([prefix, rest])
        head = _parse(prefix, nbytes)
        with self._lock:
            self._heads[key] = head
            if len(self._heads) > _MAX_HEADS:
                self._heads.popitem(last=False)
        return head

    def _decode(
        self, head: _Head, payload: Bytes, run: Range, nbytes: int, out: Bytes, base: int
    ) -> None:
        """Decode a run of blocks; those that `out` holds in part are decoded aside."""
        size, (first, last) = head.block_bytes, run
        check_length(payload, head.offsets[last] - head.offsets[first])
        stop = nbytes if last == head.n_blocks else last * size
        inner = max(first, min(last, -(-base // size)))
        reach = base + out.size
        inner_stop = last if reach >= stop else max(inner, min(last - 1, reach // size))
        origin = head.offsets[first]
        for block in (*range(first, inner), *range(inner_stop, last)):
            begin = block * size
            end = nbytes if block + 1 == head.n_blocks else begin + size
            whole = self._scratch(end - begin)
            part = payload[head.offsets[block] - origin : head.offsets[block + 1] - origin]
            head.index.decode_block_range(part, block, block + 1, whole)
            a, b = max(begin, base), min(end, reach)
            out[a - base : b - base] = whole[a - begin : b - begin]
        if inner < inner_stop:
            end = nbytes if inner_stop == head.n_blocks else inner_stop * size
            part = payload[head.offsets[inner] - origin : head.offsets[inner_stop] - origin]
            target = out[inner * size - base : end - base]
            head.index.decode_block_range(part, inner, inner_stop, target)

    def _scratch(self, size: int) -> Bytes:
        scratch = getattr(self._thread, "scratch", None)
        if scratch is None or scratch.size < size:
            scratch = self._thread.scratch = np.empty(size, np.uint8)
        return scratch[:size]


def _parse(prefix: Bytes, nbytes: int) -> _Head:
    index = _core.Index(prefix)
    _check_size(index.raw_size, nbytes)
    offsets = tuple(index.offsets)
    if offsets[-1] > _stored_limit(nbytes):
        raise CorruptDataError(f"it claims {offsets[-1]} bytes for a chunk of {nbytes}")
    return _Head(index, offsets, index.block_items * index.item_size, index.n_blocks)


def _block_runs(spans: Sequence[Range], head: _Head) -> list[Range]:
    """Return the runs of blocks that hold the spans, ascending, with gaps between them."""
    runs: list[Range] = []
    for start, stop in spans:
        # The bytes after the last whole item belong to the last block.
        first = min(start // head.block_bytes, head.n_blocks - 1)
        last = min(-(-stop // head.block_bytes), head.n_blocks)
        if runs and first <= runs[-1][1]:
            first = runs.pop()[0]
        runs.append((first, last))
    return runs


def _pieces(runs: Sequence[Range], size: int | None) -> Sequence[Range]:
    """Cut runs into pieces of at most this size."""
    if size is None:
        return runs
    size = max(1, size)
    return [(a, min(a + size, stop)) for start, stop in runs for a in range(start, stop, size)]


def _stored_limit(nbytes: int) -> int:
    # No codec grows a chunk by more than some bytes in a thousand.
    return 2 * nbytes + 4096


def _check_size(size: int, nbytes: int) -> None:
    if size != nbytes:
        raise CorruptDataError(f"it holds {size} bytes, and a chunk of this array {nbytes}")


def _present(reply: Any) -> Any:
    if reply is None:
        raise StoreError("it is missing")
    return reply
