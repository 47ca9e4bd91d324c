"""The part of a chunk that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bf16codecs._arrays.stored import Range
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.device_memory import Place

__all__ = ["Base", "Wanted", "base_advice"]

#: Reads a range of a base, given by its first byte and the one after the last, into memory.
Base = Callable[[int, int, Any], None]

# Gaps between wanted ranges that cost more to leave out than to read.
_GAP = 1 << 16


def base_advice() -> str:
    """Return what to do about a base that is not there, or is another one."""
    in_python = "base=..., as bf16codecs.open_model takes it"
    return f"name its base with {for_caller(in_python, '--base')}"


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
    out : uint8 ndarray or DeviceMemory
        The chunk's bytes from `offset` on. What lies between the ranges is undefined.
    offset : int
        The first byte of the chunk that `out` holds.
    base : Base or None
        What the chunk may be coded against: reads ranges of `nbytes` other bytes.
    pads : bool
        Whether versions that are not there yet are bytes of 255. Otherwise asking for one is an
        error.
    """

    nbytes: int
    touched: Callable[[int], Sequence[Range]]
    out: Place
    offset: int = 0
    base: Base | None = None
    pads: bool = False

    @classmethod
    def run(cls, nbytes: int, out: Place, offset: int) -> Wanted:
        """Want all that `out` holds."""
        return cls(nbytes, lambda gap: [(offset, offset + out.size)], out, offset)

    @classmethod
    def whole(cls, out: Place) -> Wanted:
        """Want all of a chunk."""
        return cls.run(out.size, out, 0)

    @property
    def whole_array(self) -> Bytes | None:
        """The memory that holds the whole chunk, if that is the host's and not only a part."""
        is_whole = self.out.size == self.nbytes and isinstance(self.out, np.ndarray)
        return self.out if is_whole else None  # type: ignore[return-value]

    def ranges(self, gap: int = _GAP) -> Sequence[Range]:
        """Return the ranges; those that are closer than `gap`, or than pays, may be one."""
        return self.touched(min(gap, _GAP))

    def place(self, start: int, stop: int) -> Any:
        """Return where `out` has some of the chunk's bytes, or None if it has not all of them."""
        if start < self.offset or stop > self.offset + self.out.size:
            return None
        return self.out[start - self.offset : stop - self.offset]

    def put(self, start: int, content: Any) -> None:
        """Copy what `out` holds of the chunk's bytes from `start` on."""
        first = max(start, self.offset)
        last = min(start + content.size, self.offset + self.out.size)
        if first < last:
            part = slice(first - self.offset, last - self.offset)
            self.out[part] = content[first - start : last - start]
