"""Frames with differences, taken apart and put together again with sizes and checksums that agree.

Nothing is checked: whatever a test changes in between, all checksums of the head are right, so that
what lies behind them is reached.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

from native_core import core

HEADER = 24
BASE_FIELD = 16
ENTRY = struct.Struct("<HBI")  # of the table of versions: parent, kind, size
NO_PARENT = 65535
NONE, DIFFERENCE, TILES = range(3)  # kinds of models
STORED, CONSTANT, JOINED, TILED, SAME, DIFFERS = 0, 1, 7, 8, 9, 10  # modes

DIFFERENCES, MODEL, CHECKSUMS = 32, 64, 128  # in byte 7
WIDTHS = (2, 2, 4, 8, 1, 1)


@dataclass
class Parts:
    """The parts of a frame; `flags` is byte 7, and `sums` and `base_sums` are None or lists."""

    version: int = 2
    codec: int = 3
    layout: int = 0
    flags: int = DIFFERENCES | 8
    raw_size: int = 0
    model: bytes = b""
    n_versions: int = 1
    zero: int = 0
    digest: int = 0
    sums: list[int] | None = None
    base_sums: list[int] | None = None
    tail: bytes = b""
    blocks: list[bytes] = field(default_factory=list)

    @classmethod
    def of(cls, frame: bytes) -> Self:
        """Take a sound frame with differences apart."""
        index, flags, at = core.Index(frame), frame[7], HEADER
        parts = cls(frame[4], frame[5], frame[6], flags, int.from_bytes(frame[8:16], "little"))
        model_size = 0
        if flags & MODEL:
            model_size = int.from_bytes(frame[at : at + 4], "little")
            at += 8
        parts.n_versions, parts.zero, parts.digest = struct.unpack_from("<HHQ", frame, at)
        at += BASE_FIELD
        columns = 1 + bool(flags & CHECKSUMS) + (parts.n_versions == 1)
        fields = struct.unpack_from(f"<{columns * index.n_blocks}I", frame, at)
        at += 4 * len(fields)
        if flags & CHECKSUMS:
            parts.sums = list(fields[1::columns])
        if parts.n_versions == 1:
            parts.base_sums = list(fields[columns - 1 :: columns])
        end = index.header_size
        parts.tail, parts.model = frame[at : end - model_size], frame[end - model_size : end]
        parts.blocks = [frame[a:b] for a, b in pairwise(index.offsets)]
        return parts

    def joined(self) -> bytes:
        """Put the parts together."""
        sizes = [len(block) for block in self.blocks]
        columns = [column for column in (sizes, self.sums, self.base_sums) if column is not None]
        head = struct.pack("<HHQ", self.n_versions, self.zero, self.digest)
        head += core.checksum(head).to_bytes(4, "little")
        for entry in zip(*columns, strict=True):
            head += struct.pack(f"<{len(entry)}I", *entry)
        head += self.tail
        if self.flags & MODEL:
            size = len(self.model).to_bytes(4, "little")
            head = size + core.checksum(size).to_bytes(4, "little") + head + self.model
        start = b"\xbf\x16\xc0\xde" + bytes([self.version, self.codec, self.layout, self.flags])
        start += self.raw_size.to_bytes(8, "little")
        sums = struct.pack("<II", core.checksum(start), core.checksum(head))
        return start + sums + head + b"".join(self.blocks)

    def table(self) -> list[tuple[int, int, bytes]]:
        """Return parent, kind and model of each of several versions."""
        at, found = ENTRY.size * self.n_versions, []
        for v in range(self.n_versions):
            parent, kind, size = ENTRY.unpack_from(self.model, ENTRY.size * v)
            found.append((parent, kind, self.model[at : at + size]))
            at += size
        return found

    def set_table(self, versions: list[tuple[int, int, bytes]]) -> None:
        """Write the table of versions, and their models after it."""
        entries = [ENTRY.pack(parent, kind, len(model)) for parent, kind, model in versions]
        self.model = b"".join([*entries, *(model for _, _, model in versions)])
        self.flags |= MODEL


def same_block(width: int) -> bytes:
    return bytes([SAME] + [JOINED] * (width - 1))


def stored_block(items: bytes, width: int) -> bytes:
    """Return a block of stored planes: those of items whose bytes are alike, or of one byte."""
    return bytes(width) + items
