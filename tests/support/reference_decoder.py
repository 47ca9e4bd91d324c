"""A second decoder in plain Python, written from docs/format.md alone.

It is the document as a program: one function a section, in the document's order, nothing made
fast. The modes of planes are in reference_planes.py. Every rule that the document says a decoder
must hold raises `FormatError` here, so the tests can compare both what is decoded and what is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from reference_model import Section, decode_scale, read_model
from reference_planes import (
    CONSTANT,
    DECODERS,
    JOINED,
    SCALE,
    STORED,
    TILES,
    Reader,
    TruncatedFrame,
    UnknownVersion,
    must,
)
from reference_tiles import TileSection, decode_tiles, read_tile_model

MAGIC = bytes.fromhex("BF16C0DE")
VERSION = 1  # of frames without tiles
VERSION_OF_TILES = 2
WIDTHS = [2, 2, 4, 8, 1, 1]  # of dtype 0 ... 5


# --- Frame ---------------------------------------------------------------------------------------


@dataclass
class Head:
    version: int
    codec: int
    dtype: int
    by_byte: bool
    block_items: int
    raw_size: int
    sizes: list[int]
    checksums: list[int] | None
    tail: bytes
    model: list[Section] | list[TileSection] | None
    size: int  # of all up to the first block

    @property
    def width(self) -> int:
        return WIDTHS[self.dtype]

    @property
    def n_items(self) -> int:
        return self.raw_size // self.width

    def first_of(self, block: int) -> int:
        return block * self.block_items

    def items_of(self, block: int) -> int:
        return min(self.block_items, self.n_items - self.first_of(block))

    @property
    def offsets(self) -> list[int]:
        return list(accumulate(self.sizes, initial=self.size))


def read_head(data: bytes) -> Head:
    reader = Reader(data, too_short=TruncatedFrame)
    must(MAGIC.startswith(data[:4]), "another magic")
    reader.take(4)
    version = reader.number(1)
    must(version > 0, "version 0")
    if version not in (VERSION, VERSION_OF_TILES):
        raise UnknownVersion(f"version {version} is unknown: upgrade")
    codec, layout, blocks, raw_size = (reader.number(w) for w in (1, 1, 1, 8))
    must(reader.number(4) == checksum(data[:16]), "checksum of the header")
    head_checksum = reader.number(4)
    must(1 <= codec <= 4, "unknown codec")
    must(layout & 15 < len(WIDTHS), "unknown dtype")
    must(layout >> 5 == 0, "bits 5-7 of the layout are set")
    has_sums, has_model = bool(blocks >> 7), bool(blocks >> 6 & 1)
    must(blocks >> 5 & 1 == 0, "bit 5 of byte 7 is set")
    must(not (has_model and layout >> 4), "a model and by byte")
    width, k = WIDTHS[layout & 15], blocks & 31
    must(8 <= k and width << k <= 1 << 22, "k is outside its limits")

    model_size = 0
    if has_model:
        model_size = reader.number(4)
        must(reader.number(4) == checksum(data[24:28]), "checksum of the model's size")
    n_blocks = -(-(raw_size // width) >> k)
    entry = 8 if has_sums else 4
    table = reader.take(n_blocks * entry)
    tail = reader.take(raw_size % width)
    model = reader.take(model_size)
    must(head_checksum == checksum(data[24 : reader.at]), "checksum of the head")
    fields = np.frombuffer(table, "<u4").reshape(n_blocks, entry // 4)
    must((fields[:, 0] > 0).all(), "a block of size 0")
    n_items = raw_size // width
    read = read_model if version == VERSION else read_tile_model
    return Head(
        version=version,
        codec=codec,
        dtype=layout & 15,
        by_byte=bool(layout >> 4),
        block_items=1 << k,
        raw_size=raw_size,
        sizes=fields[:, 0].tolist(),
        checksums=fields[:, 1].tolist() if has_sums else None,
        tail=tail,
        model=read(model, layout & 15, n_items) if has_model else None,
        size=reader.at,
    )


def decode(data: bytes) -> bytes:
    """Decode a frame."""
    data = bytes(data)
    head = read_head(data)
    if len(data) < head.offsets[-1]:
        raise TruncatedFrame("ends before its last block does")
    must(len(data) == head.offsets[-1], "is longer than its last block's end")
    return b"".join(decode_block(data, head, b) for b in range(len(head.sizes))) + head.tail


def decode_block(data: bytes, head: Head, index: int) -> bytes:
    """Decode one block of a frame, the tail not included."""
    n = head.items_of(index)
    payload = data[head.offsets[index] : head.offsets[index + 1]]
    planes: list[bytes] = []
    for mode, coded in split_block(payload, n, head.width):
        if mode == SCALE:
            must(head.version == VERSION, "the scale mode in a frame of version 2")
            must(head.model is not None, "the scale mode without a model")
            planes += decode_scale(coded, head.model, head.first_of(index), n)
        elif mode == TILES:
            must(head.version == VERSION_OF_TILES, "tiles in a frame of version 1")
            must(head.model is not None, "tiles without a model")
            planes += decode_tiles(coded, head.model, head.first_of(index), n)
        elif mode != JOINED:
            planes.append(DECODERS[mode](coded, n))
    raw = join_planes(planes, head.by_byte)
    if head.checksums is not None:
        must(checksum(raw) == head.checksums[index], "checksum of a block")
    return raw


# --- Element layout ------------------------------------------------------------------------------


def join_planes(planes: list[bytes], by_byte: bool) -> bytes:
    bits = 8 * len(planes)
    items = np.zeros(len(planes[0]), np.uint64)
    for plane in planes:  # the most significant first
        items = items << np.uint64(8) | np.frombuffer(plane, np.uint8)
    if not by_byte:
        items = items >> np.uint64(1) | (items & np.uint64(1)) << np.uint64(bits - 1)
    return items.astype(f"<u{len(planes)}").tobytes()


# --- Block ---------------------------------------------------------------------------------------


def split_block(block: bytes, n: int, width: int) -> list[tuple[int, bytes]]:
    """Return mode and payload of every plane, the most significant first."""
    reader = Reader(block)
    modes = list(reader.take(width))
    must(all(mode in (*DECODERS, SCALE, JOINED, TILES) for mode in modes), "unknown mode")
    must(SCALE not in modes[1:], "the scale mode behind plane 0")
    must(TILES not in modes[1:], "tiles behind plane 0")
    joined = [p for p, mode in enumerate(modes) if mode == JOINED]
    must(joined == ([1] if modes[0] in (SCALE, TILES) and width > 1 else []), "the joined mode")
    uncoded = {STORED: n, CONSTANT: 1, JOINED: 0}
    sizes = [uncoded[mode] if mode in uncoded else reader.number(4) for mode in modes]
    payloads = [reader.take(size) for size in reversed(sizes)][::-1]
    must(reader.left == 0, "payloads do not fill the block")
    return list(zip(modes, payloads, strict=True))


# --- Checksum ------------------------------------------------------------------------------------

M64 = (1 << 64) - 1


def rotate_left(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & M64


def checksum(data: bytes) -> int:
    padded = data + bytes(-len(data) % 128)
    a, c = np.zeros((2, 16), np.uint64)
    for v in np.frombuffer(padded, "<u8").reshape(-1, 16):
        a = a + v
        c = (c << np.uint64(23) | c >> np.uint64(41)) + a
    h = len(data)
    for z in np.stack([a, c], axis=1).ravel().tolist():
        h = rotate_left(h ^ z, 29) * 0x9E3779B97F4A7C15 & M64
    return (h ^ h >> 32) & 0xFFFFFFFF
