"""A second decoder in plain Python, written from docs/format.md alone.

It is the document as a program: one function a section, in the document's order, nothing made
fast. The modes of planes are in reference_planes.py, those of differences in
reference_differences.py, those of grids in reference_grids.py. Every rule that the document says a
decoder must hold raises `FormatError` here, so the tests can compare both what is decoded and what
is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from reference_checksum import checksum
from reference_difference_model import WIDTHS, DifferenceSection
from reference_differences import (
    BaseField,
    Version,
    blocks_of,
    check_base,
    check_base_block,
    decode_difference,
    read_base_field,
    read_versions,
)
from reference_grid import SECTION
from reference_grids import decode_grid
from reference_model import decode_scale, read_model
from reference_planes import (
    CONSTANT,
    DECODERS,
    DIFFERENCE,
    GRID,
    JOINED,
    SAME,
    SCALE,
    SPARSE,
    STORED,
    TILES,
    Reader,
    TruncatedFrame,
    UnknownVersion,
    decode_sparse,
    join_planes,
    must,
)
from reference_tiles import decode_tiles, read_tile_model

MAGIC = bytes.fromhex("BF16C0DE")
VERSION = 1  # of frames without tiles, differences and sparse planes
VERSION_OF_TILES = 2


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
    versions: list[Version]  # one, with the frame's model, in a frame without differences
    base: BaseField | None
    base_checksums: list[int] | None  # of the blocks of a base that is not in the frame
    size: int  # of all up to the first block

    @property
    def width(self) -> int:
        return WIDTHS[self.dtype]

    @property
    def n_items(self) -> int:
        """The number of items of a version."""
        return self.raw_size // self.width // len(self.versions)

    @property
    def n_blocks(self) -> int:
        """The number of blocks of a version."""
        return blocks_for(self.n_items, self.block_items)

    def version_of(self, block: int) -> Version:
        return self.versions[block // self.n_blocks]

    def first_of(self, block: int) -> int:
        """Return the number that a block's first item has in its version."""
        return block % self.n_blocks * self.block_items

    def items_of(self, block: int) -> int:
        return min(self.block_items, self.n_items - self.first_of(block))

    def difference_section_of(self, block: int) -> DifferenceSection:
        model = self.version_of(block).differences
        must(model is not None, "a difference without a model of differences")
        return model[self.first_of(block) // SECTION]

    @property
    def offsets(self) -> list[int]:
        return list(accumulate(self.sizes, initial=self.size))


def blocks_for(items: int, block_items: int) -> int:
    return -(-items // block_items)


def read_head(data: bytes) -> Head:
    reader = Reader(data, too_short=TruncatedFrame)
    version, codec, layout, blocks, raw_size = read_header(reader)
    head_checksum = reader.number(4)
    check_layout(version, codec, layout, blocks)
    has_sums, has_model, has_base = (bool(blocks >> bit & 1) for bit in (7, 6, 5))
    width, block_items = WIDTHS[layout & 15], 1 << (blocks & 31)

    model_size = 0
    if has_model:
        model_size = reader.number(4)
        must(reader.number(4) == checksum(data[24:28]), "checksum of the model's size")
    base = read_base_field(reader) if has_base else None
    is_outside = base is not None and base.is_outside
    n_versions = 1 if base is None else base.versions
    must(n_versions == 1 or raw_size % (n_versions * width) == 0, "versions with a tail")
    n_items = raw_size // width // n_versions
    n_blocks = n_versions * blocks_for(n_items, block_items)
    entry = 4 * (1 + has_sums + is_outside)
    table = reader.take(n_blocks * entry)
    tail = reader.take(raw_size % width)
    model = reader.take(model_size) if has_model else None
    must(head_checksum == checksum(data[24 : reader.at]), "checksum of the head")
    fields = np.frombuffer(table, "<u4").reshape(n_blocks, entry // 4)
    must((fields[:, 0] > 0).all(), "a block of size 0")
    return Head(
        version=version,
        codec=codec,
        dtype=layout & 15,
        by_byte=bool(layout >> 4),
        block_items=block_items,
        raw_size=raw_size,
        sizes=fields[:, 0].tolist(),
        checksums=fields[:, 1].tolist() if has_sums else None,
        tail=tail,
        versions=read_models(version, base, model, layout & 15, n_items),
        base=base,
        base_checksums=fields[:, -1].tolist() if is_outside else None,
        size=reader.at,
    )


def read_header(reader: Reader) -> tuple[int, int, int, int, int]:
    """Return version, codec, layout, byte 7 and raw size."""
    must(MAGIC.startswith(reader.data[:4]), "another magic")
    reader.take(4)
    version = reader.number(1)
    must(version > 0, "version 0")
    if version not in (VERSION, VERSION_OF_TILES):
        raise UnknownVersion(f"version {version} is unknown: upgrade")
    codec, layout, blocks, raw_size = (reader.number(w) for w in (1, 1, 1, 8))
    must(reader.number(4) == checksum(reader.data[:16]), "checksum of the header")
    return version, codec, layout, blocks, raw_size


def check_layout(version: int, codec: int, layout: int, blocks: int) -> None:
    must(1 <= codec <= 4, "unknown codec")
    must(layout & 15 < len(WIDTHS), "unknown dtype")
    must(layout >> 5 == 0, "bits 5-7 of the layout are set")
    has_model, has_base = blocks >> 6 & 1, blocks >> 5 & 1
    must(not has_base or version == VERSION_OF_TILES, "bit 5 of byte 7 is set")
    must(not (has_model and layout >> 4), "a model and by byte")
    must(not (has_base and layout >> 4), "differences and by byte")
    k = blocks & 31
    must(8 <= k and WIDTHS[layout & 15] << k <= 1 << 22, "k is outside its limits")


def read_models(
    version: int, base: BaseField | None, model: bytes | None, dtype: int, n_items: int
) -> list[Version]:
    if base is not None:
        return read_versions(base.versions, model, dtype, n_items)
    if model is None:
        return [Version()]
    if version == VERSION:
        return [Version(scale=read_model(model, dtype, n_items))]
    return [Version(tiles=read_tile_model(model, dtype, n_items))]


def decode(data: bytes, base: bytes | None = None) -> bytes:
    """Decode a frame; the base is for those of one version, if they are coded against it."""
    data = bytes(data)
    head = read_head(data)
    below: list[bytes] = []
    if head.base is not None and head.base.is_outside:
        base = check_base(base, head.raw_size, head.base.digest)
        below = blocks_of(base, head.block_items * head.width, head.width)
    if len(data) < head.offsets[-1]:
        raise TruncatedFrame("ends before its last block does")
    must(len(data) == head.offsets[-1], "is longer than its last block's end")
    decoded: list[bytes] = []
    for b in range(len(head.sizes)):
        parent = head.version_of(b).parent
        if parent is None:
            decoded.append(decode_block(data, head, b))
        else:
            place = b % head.n_blocks
            own = below[b] if below else decoded[parent * head.n_blocks + place]
            decoded.append(decode_block(data, head, b, own))
    return b"".join(decoded) + head.tail


def decode_block(data: bytes, head: Head, index: int, base: bytes | None = None) -> bytes:
    """Decode one block of a frame, given the bytes of its base's if it has a base."""
    if head.base_checksums is not None:
        check_base_block(base, head.base_checksums[index])
    planes = split_block(data, head, index)
    mode, coded = planes[0]
    if mode == SAME:
        raw = base
    elif mode == DIFFERENCE:
        section, n = head.difference_section_of(index), head.items_of(index)
        low = [DECODERS[m](payload, n) for m, payload in planes[head.width - section.low :]]
        raw = decode_difference(coded, low, section, head.first_of(index), base)
    elif mode == GRID:
        raw = decode_grid(coded, head.dtype, head.first_of(index), head.items_of(index))
    else:
        raw = join_planes(decode_planes(head, index, planes), head.by_byte)
    if head.checksums is not None:
        must(checksum(raw) == head.checksums[index], "checksum of a block")
    return raw


def decode_planes(head: Head, index: int, planes: list[tuple[int, bytes]]) -> list[bytes]:
    """Decode the planes of a block that is coded without a base."""
    version, n = head.version_of(index), head.items_of(index)
    decoded: list[bytes] = []
    for mode, coded in planes:
        if mode == SCALE:
            must(version.scale is not None, "the scale mode without its model")
            decoded += decode_scale(coded, version.scale, head.first_of(index), n)
        elif mode == TILES:
            must(version.tiles is not None, "tiles without their model")
            decoded += decode_tiles(coded, version.tiles, head.first_of(index), n)
        elif mode == SPARSE:
            decoded.append(decode_sparse(coded, decoded[0]))
        elif mode != JOINED:
            decoded.append(DECODERS[mode](coded, n))
    return decoded


# --- Block ---------------------------------------------------------------------------------------


def split_block(data: bytes, head: Head, index: int) -> list[tuple[int, bytes]]:
    """Return mode and payload of every plane, the most significant first."""
    reader = Reader(data[head.offsets[index] : head.offsets[index + 1]])
    modes = list(reader.take(head.width))
    known = (*DECODERS, SCALE, JOINED, TILES, SAME, DIFFERENCE, SPARSE, GRID)
    must(all(mode in known for mode in modes), "unknown mode")
    for mode in (SCALE, TILES, SAME, DIFFERENCE, GRID):
        must(mode not in modes[1:], f"mode {mode} behind plane 0")
    if SPARSE in modes:
        must(head.version > VERSION and not head.by_byte, "sparse in version 1, or by byte")
        must(modes[0] in (*DECODERS, TILES), "sparse over another plane 0")
    if modes[0] in (SAME, DIFFERENCE):
        must(head.version_of(index).has_base, "the same as no base, or a difference to it")
    if modes[0] == GRID:
        must(head.version == VERSION_OF_TILES, "a grid in version 1")
        must(not head.by_byte, "a grid by byte")
    joined = [p for p, mode in enumerate(modes) if mode == JOINED]
    must(joined == joined_planes(modes[0], head, index), "the joined mode")
    uncoded = {STORED: head.items_of(index), CONSTANT: 1, JOINED: 0, SAME: 0}
    sizes = [uncoded[mode] if mode in uncoded else reader.number(4) for mode in modes]
    payloads = [reader.take(size) for size in reversed(sizes)][::-1]
    must(reader.left == 0, "payloads do not fill the block")
    return list(zip(modes, payloads, strict=True))


def joined_planes(mode: int, head: Head, index: int) -> list[int]:
    """Return the planes that are joined to a plane 0 of this mode."""
    if mode in (SAME, GRID):
        return list(range(1, head.width))
    if mode == DIFFERENCE:
        return list(range(1, head.width - head.difference_section_of(index).low))
    return [1] if mode in (SCALE, TILES) and head.width > 1 else []
