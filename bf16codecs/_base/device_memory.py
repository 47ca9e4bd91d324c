"""Memory of devices, into which chunks are read and decoded as into the host's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core

__all__ = ["DeviceMemory", "Memory", "Rows", "decode_blocks", "new_memory"]

_Bytes = NDArray[np.uint8]


class Rows(NamedTuple):
    """Rows of bytes to copy between memories of different pitch."""

    nbytes: int
    number: int
    #: Bytes from the begin of a row to that of the next one.
    to_pitch: int
    from_pitch: int


class DeviceMemory(ABC):
    """Bytes on a device, whose parts are read and written by index, as those of an array.

    Operations are done in the order in which a thread asks for them, perhaps later.
    """

    size: int

    @abstractmethod
    def __getitem__(self, part: slice) -> DeviceMemory:
        """Return a part of it; steps are 1."""

    @abstractmethod
    def __setitem__(self, part: slice, content: _Bytes | DeviceMemory | int) -> None:
        """Copy bytes of the host or the device to a part, or one byte to all of it."""

    @abstractmethod
    def new(self, size: int) -> DeviceMemory:
        """Return other memory of the same device, of undefined content."""

    @abstractmethod
    def lent(self, size: int) -> DeviceMemory:
        """Return memory that the calling thread has until it asks for such memory again."""

    @abstractmethod
    def put_rows(self, source: DeviceMemory, rows: Rows) -> None:
        """Copy rows of other memory of the same device to the begin of this one."""

    @abstractmethod
    def decode(self, index: _core.Index, payload: _Bytes, first: int, last: int, base: Any) -> None:
        """Decode blocks of a frame to this memory: see `decode_blocks`."""


#: Memory of the host or of a device, into which a part of a chunk is decoded.
Memory = _Bytes | DeviceMemory


def decode_blocks(
    index: _core.Index,
    payload: _Bytes,
    first: int,
    last: int,
    out: Memory,
    base: Memory | None,
    log: _core.UndoLog | None,
) -> None:
    """Decode blocks from `first` to before `last` of one version of a frame, whose head is `index`.

    `payload` has the blocks' bytes, and `out` exactly room for what they decode to. `base` has the
    base's items with the same indices, on the host or device of `out`; it may be `out` itself.
    With a log, which the host has, nothing is lost where this fails.
    """
    if isinstance(out, DeviceMemory):
        out.decode(index, payload, first, last, base)
    else:
        index.decode_block_range(payload, first, last, out, base, log)  # type: ignore[arg-type]


def new_memory(like: Memory, size: int) -> Any:
    """Return memory of undefined content on the host or device of other memory."""
    return like.new(size) if isinstance(like, DeviceMemory) else np.empty(size, np.uint8)
