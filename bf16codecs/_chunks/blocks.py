"""The blocks of frames: which ones are wanted, where they lie, and decoding them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bf16codecs import _core
from bf16codecs._buffers import Bytes, ThreadBuffer
from bf16codecs._chunks.stored import Range
from bf16codecs._messages import counted
from bf16codecs.errors import CorruptDataError, TruncatedDataError

__all__ = ["Head", "Wanted", "block_runs"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of a chunk that is wanted, and where it goes.

    Attributes
    ----------
    nbytes : int
        The chunk's size, padding included.
    ranges : sequence of (int, int)
        The chunk's bytes that are wanted: ascending, without overlap.
    out : uint8 ndarray
        The chunk's bytes from `base` on. What lies between the ranges is undefined.
    base : int
        The first byte of the chunk that `out` holds.
    """

    nbytes: int
    ranges: Sequence[Range]
    out: Bytes
    base: int = 0

    @classmethod
    def whole(cls, out: Bytes) -> Wanted:
        """Want all of a chunk."""
        return cls(out.size, [(0, out.size)], out)

    @property
    def is_whole(self) -> bool:
        """Whether `out` holds the whole chunk."""
        return self.out.size == self.nbytes

    def put(self, start: int, content: Bytes) -> None:
        """Copy what `out` holds of the chunk's bytes from `start` on."""
        first = max(start, self.base)
        last = min(start + content.size, self.base + self.out.size)
        self.out[first - self.base : last - self.base] = content[first - start : last - start]


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

    __slots__ = ("_index", "block_bytes", "n_blocks", "nbytes", "offsets")

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
        self.nbytes = nbytes
        self.offsets = tuple(index.offsets)
        self.block_bytes = index.block_items * index.item_size
        self.n_blocks = index.n_blocks

    def range_of(self, run: Range) -> Range:
        """Return where the frame has a run of blocks."""
        return self.offsets[run[0]], self.offsets[run[1]]

    def decode(self, payload: Bytes, run: Range, wanted: Wanted, scratch: ThreadBuffer) -> None:
        """Decode a run of blocks; those that `wanted.out` holds in part are decoded aside."""
        (first, last), size = run, self.block_bytes
        origin, stop = self.range_of(run)
        if payload.size != stop - origin:
            raise TruncatedDataError(
                f"{counted(payload.size, 'byte')} where {stop - origin} were expected, at {origin}"
            )
        reach = wanted.base + wanted.out.size
        inner = max(first, min(last, -(-wanted.base // size)))
        inner_last = last if reach >= self._end(last) else max(inner, min(last - 1, reach // size))
        for block in (*range(first, inner), *range(inner_last, last)):
            begin = block * size
            whole = scratch.get(self._end(block + 1) - begin)
            part = payload[self.offsets[block] - origin : self.offsets[block + 1] - origin]
            self._index.decode_block_range(part, block, block + 1, whole)
            wanted.put(begin, whole)
        if inner < inner_last:
            part = payload[self.offsets[inner] - origin : self.offsets[inner_last] - origin]
            out = wanted.out[inner * size - wanted.base : self._end(inner_last) - wanted.base]
            self._index.decode_block_range(part, inner, inner_last, out)

    def _end(self, block: int) -> int:
        """Return where the blocks before this one end in the chunk."""
        return self.nbytes if block == self.n_blocks else block * self.block_bytes
