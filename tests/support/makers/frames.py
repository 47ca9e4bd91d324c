"""Makes frames of any modes and headers that a test gives, broken ones included.

Like the reference decoder this follows docs/format.md and not the native core. It chooses nothing:
callers give modes and payloads. All checksums are right unless a test sets them otherwise, so that
what lies behind them is reached.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

from native_core import core
from reference_checksum import checksum
from reference_decoder import MAGIC, VERSION, WIDTHS
from reference_differences import (
    DIFFERENCE_MODEL,
    NO_MODEL,
    NO_PARENT,
    TILE_MODEL,
    blocks_of,
    digest_of_base,
    items_from,
)
from reference_planes import CONSTANT, JOINED, SAME, STORED

DIFFERENCES, MODEL, CHECKSUMS = 32, 64, 128  # in byte 7
ENTRY = struct.Struct("<HBI")  # of the table of versions: parent, kind, size
BASE_FIELD = 16  # bytes


def frame(
    raw_size: int,
    blocks: Sequence[bytes],
    *,
    codec: int = 3,
    layout: int = 0,
    k: int = 8,
    sums: Sequence[int] | None = None,
    tail: bytes = b"",
    sizes: Sequence[int] | None = None,
    model: bytes | None = None,
    version: int = VERSION,
    base: bytes | None = None,
    base_sums: Sequence[int] | None = None,
    flags: int | None = None,
) -> bytes:
    """Put blocks into a frame; `sums` are the checksums of the decoded blocks.

    `base` is the base field, and `base_sums` are the checksums of the base's blocks. `flags`
    replaces byte 7, which says what the frame has, and k.
    """
    if sizes is None:
        sizes = [len(block) for block in blocks]
    columns = [column for column in (sizes, sums, base_sums) if column is not None]
    table = b"".join(struct.pack(f"<{len(entry)}I", *entry) for entry in zip(*columns, strict=True))
    head = table + tail
    if sums is not None:
        k |= 128
    if base is not None:
        head = base + head
        k |= 32
    if model is not None:
        size = len(model).to_bytes(4, "little")
        head = size + checksum(size).to_bytes(4, "little") + head + model
        k |= 64
    fields = [version, codec, layout, k if flags is None else flags]
    start = MAGIC + bytes(fields) + raw_size.to_bytes(8, "little")
    both = struct.pack("<II", checksum(start), checksum(head))
    return start + both + head + b"".join(blocks)


def one_block(block: bytes, n: int, layout: int = 0, k: int = 8) -> bytes:
    """Return a frame without checksums of one block of `n` items."""
    return frame(n * WIDTHS[layout & 15], [block], layout=layout, k=k)


def block(*planes: tuple[int, bytes]) -> bytes:
    """Put planes, the most significant first, each a mode and a payload, into a block."""
    modes = bytes(mode for mode, _ in planes)
    uncoded = (STORED, CONSTANT, JOINED, SAME)
    coded = [len(payload) for mode, payload in planes if mode not in uncoded]
    sizes = struct.pack(f"<{len(coded)}I", *coded)
    return modes + sizes + b"".join(payload for _, payload in reversed(planes))


def head_sizes(data: bytes) -> tuple[int, int, int, int]:
    """Return the offset of the block table, its entries' size and number, and the head's size.

    For frames that may be damaged: no field is checked.
    """
    width = WIDTHS[min(data[6] & 15, len(WIDTHS) - 1)]
    raw_size = int.from_bytes(data[8:16], "little")
    at, model = (32, int.from_bytes(data[24:28], "little")) if data[7] & 64 else (24, 0)
    versions, has_base = 1, bool(data[7] & 32)
    if has_base:
        versions = max(1, int.from_bytes(data[at : at + 2], "little"))
        at += BASE_FIELD
    n_blocks = versions * -(-(raw_size // width // versions) >> (data[7] & 31))
    entry = 4 * (1 + (data[7] >> 7) + (has_base and versions == 1))
    return at, entry, n_blocks, at + n_blocks * entry + raw_size % width + model


def repaired(data: bytes) -> bytes:
    """Return a damaged frame with valid checksums of header and head, if it is long enough."""
    data = bytearray(data)
    if len(data) < 24:
        return bytes(data)
    data[16:20] = checksum(bytes(data[:16])).to_bytes(4, "little")
    if data[7] & 64 and len(data) >= 32:
        data[28:32] = checksum(bytes(data[24:28])).to_bytes(4, "little")
    table, _, _, size = head_sizes(data)
    if data[7] & 32 and len(data) >= table:
        own = bytes(data[table - BASE_FIELD : table - 4])
        data[table - 4 : table] = checksum(own).to_bytes(4, "little")
    if len(data) >= size:
        data[20:24] = checksum(bytes(data[24:size])).to_bytes(4, "little")
    return bytes(data)


# --- Blocks --------------------------------------------------------------------------------------


def low_planes(lows: Sequence[int], low: int) -> list[bytes]:
    """Return the planes of low bytes, the most significant first."""
    return [bytes(value >> 8 * p & 255 for value in lows) for p in reversed(range(low))]


def same_block(width: int) -> bytes:
    return block((SAME, b""), *[(JOINED, b"")] * (width - 1))


def whole_block(raw: bytes, width: int) -> bytes:
    """Return a block that is coded without its base: all planes are stored."""
    bits = 8 * width
    rotated = [(x << 1 | x >> bits - 1) % (1 << bits) for x in items_from(raw, width)]
    planes = low_planes(rotated, width)
    return block(*((STORED, plane) for plane in planes))


def stored_block(items: bytes, width: int) -> bytes:
    """Return a block of stored planes for items whose bytes are all the same."""
    return bytes(width) + items


# --- Differences ---------------------------------------------------------------------------------


def base_field(versions: int = 1, digest: int = 0, zero: int = 0) -> bytes:
    numbers = struct.pack("<HHQ", versions, zero, digest)
    return numbers + checksum(numbers).to_bytes(4, "little")


def sums_of(raw: bytes, dtype: int, k: int) -> list[int]:
    return [checksum(block) for block in blocks_of(raw, WIDTHS[dtype] << k, WIDTHS[dtype])]


def frame_to_base(
    raw: bytes,
    below: bytes,
    blocks: Sequence[bytes],
    dtype: int = 0,
    *,
    k: int = 8,
    sums: bool | list[int] = True,
    model: bytes | None = None,
    kind: int = DIFFERENCE_MODEL,
    **options,
) -> bytes:
    """Return a frame of blocks that are coded against a base.

    `sums` may be the checksums themselves. The model has its kind put in front of it.
    """
    width = WIDTHS[dtype]
    if model is not None:
        model = bytes([kind]) + model
    given = {
        "layout": dtype,
        "k": k,
        "sums": sums_of(raw, dtype, k) if sums is True else sums or None,
        "tail": raw[len(raw) - len(raw) % width :],
        "model": model,
        "version": 2,
        "base": base_field(1, digest_of_base(below)),
        "base_sums": sums_of(below, dtype, k),
    }
    return frame(len(raw), blocks, **{**given, **options})


def model_of_versions(
    parents: Sequence[int | None],
    models: Sequence[bytes],
    sizes: Sequence[int] | None = None,
    kinds: Sequence[int] | None = None,
) -> bytes:
    """Put the models of versions together.

    Those that have bytes are of differences if there is a parent, and of tiles if there is none.
    `sizes` and `kinds` replace what they are said to have and to be.
    """
    sizes = [len(model) for model in models] if sizes is None else sizes
    if kinds is None:
        kinds = [kind_of(*both) for both in zip(parents, models, strict=True)]
    entries = b"".join(
        ENTRY.pack(NO_PARENT if parent is None else parent, kind, size)
        for parent, kind, size in zip(parents, kinds, sizes, strict=True)
    )
    return entries + b"".join(models)


def kind_of(parent: int | None, model: bytes) -> int:
    if not model:
        return NO_MODEL
    return TILE_MODEL if parent is None else DIFFERENCE_MODEL


def frame_of_versions(
    versions: Sequence[bytes],
    blocks: Sequence[Sequence[bytes]],
    model: bytes,
    dtype: int = 0,
    *,
    k: int = 8,
    sums: bool = True,
    **options,
) -> bytes:
    """Return a frame of versions and the blocks of each."""
    given = {
        "layout": dtype,
        "k": k,
        "sums": [own for raw in versions for own in sums_of(raw, dtype, k)] if sums else None,
        "model": model,
        "version": 2,
        "base": base_field(len(versions)),
    }
    raw_size = sum(len(raw) for raw in versions)
    return frame(raw_size, [b for own in blocks for b in own], **{**given, **options})


@dataclass
class Parts:
    """A frame with differences in parts, to be changed; nothing is checked.

    `flags` is byte 7, and `sums` and `base_sums` are None or lists.
    """

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
        index, flags, at = core.Index(frame), frame[7], 24
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
        return frame(
            self.raw_size,
            self.blocks,
            codec=self.codec,
            layout=self.layout,
            flags=self.flags,
            sums=self.sums,
            tail=self.tail,
            model=self.model if self.flags & MODEL else None,
            version=self.version,
            base=base_field(self.n_versions, self.digest, self.zero),
            base_sums=self.base_sums,
        )

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
        parents, kinds, models = zip(*versions, strict=True)
        self.model = model_of_versions(parents, models, kinds=kinds)
        self.flags |= MODEL
