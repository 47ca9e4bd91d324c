"""Grids: what the format forbids is refused by both decoders."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from both_decoders import both_refuse_to_base
from grid_frames import (
    GridParts,
    block_of_payload,
    check_grid,
    expected_of,
    float32_bytes,
    grid_block,
    grid_frame,
    grid_parts,
    grid_payload,
    nested_block,
    pack_low_bits,
    payload_frame,
    plane_payload,
)
from looping import for_each
from makers import frames as build
from reference_decoder import WIDTHS
from reference_grids import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOATS,
    NESTED,
    ROUNDINGS,
    TABLE,
    THROUGH_BFLOAT16,
    THROUGH_BINARY16,
)
from reference_planes import (
    CONSTANT,
    DIFFERENCE,
    GRID,
    HUFFMAN,
    JOINED,
    RANS_WIDE,
    SAME,
    SCALE,
    STORED,
    TILES,
    ZSTANDARD,
)
from tiers import by_tier

N = 90
SHAPE: dict[str, Any] = {"row": 9, "height": 2, "width": 5}  # 10 groups
INTEGER = grid_parts(N, b=3, plain_every=4, **SHAPE)
FLOAT = grid_parts(N, family=FLOATS, b=4, bias=7, plain_every=3, **SHAPE)
LEVELS = float32_bytes([-1.0, -0.5, -0.0, 0.0, 0.25, 1.5])
TABLES = grid_parts(
    N, family=TABLE, levels=[x for (x,) in struct.iter_unpack("<I", LEVELS)], **SHAPE
)
OTHER_MODES = (SCALE, JOINED, TILES, SAME, DIFFERENCE, 11, GRID, 13, 255)


def refused(parts: GridParts, match: str | None = None, **options) -> None:
    both_refuse_to_base(grid_frame(parts, **options), match=match)


def refused_payload(payload: bytes, parts: GridParts, match: str | None = None) -> None:
    both_refuse_to_base(payload_frame(payload, parts), match=match)


def bits_of(number: float) -> int:
    return int.from_bytes(float32_bytes([number]), "little")


def next_to(number: float, towards: float) -> float:
    return float(np.nextafter(np.float32(number), np.float32(towards)))


@for_each("parts", [INTEGER, FLOAT, TABLES], ids=["integers", "floats", "table"])
def test_the_parts_that_the_others_damage(parts):
    for dtype in ROUNDINGS:
        for rounding in ROUNDINGS[dtype]:
            check_grid(replace(parts, dtype=dtype, rounding=rounding))
    assert bool(parts.plain) == (parts is not TABLES)


# --- fields --------------------------------------------------------------------------------------

FIELDS: dict[str, tuple[GridParts, dict[str, Any], str]] = {
    "family 3": (INTEGER, {"family": 3}, "family"),
    "family 3 without low bits": (TABLES, {"family": 3, "third": 0}, "family"),
    "family 255": (INTEGER, {"family": 255}, "family"),
    "5 low bits": (INTEGER, {"b": 5}, "above 4"),
    "5 low bits of floats": (FLOAT, {"b": 5}, "above 4"),
    "8 low bits": (INTEGER, {"b": 8}, "above 4"),
    "255 low bits": (FLOAT, {"b": 255}, "above 4"),
    "a low bit of a table": (TABLES, {"b": 1}, "of a table"),
    "4 low bits of a table": (TABLES, {"b": 4}, "of a table"),
    "bias 1 of integers": (INTEGER, {"third": 1}, "bias of integers"),
    "bias 255 of integers": (INTEGER, {"third": 255}, "bias of integers"),
    "bias 16": (FLOAT, {"third": 16}, "the bias"),
    "bias 255": (FLOAT, {"third": 255}, "the bias"),
    "rounding 3": (INTEGER, {"rounding": 3}, "rounding"),
    "rounding 255": (INTEGER, {"rounding": 255}, "rounding"),
    "a row of 0": (INTEGER, {"row": 0, "width": 0}, "a row of no items"),
    "a row of 0, width 1": (INTEGER, {"row": 0, "width": 1}, "a row of no items"),
    "a height of 0": (INTEGER, {"height": 0}, "a group of no rows"),
    "a width of 0": (INTEGER, {"width": 0}, "width"),
    "a width above the row": (INTEGER, {"width": 10}, "width"),
    "the largest width": (INTEGER, {"width": (1 << 32) - 1}, "width"),
}

#: Where the fields are in a payload, and their widths.
PLACES = {
    "family": (0, 1),
    "b": (1, 1),
    "third": (2, 1),
    "rounding": (3, 1),
    "row": (5, 4),
    "height": (9, 4),
    "width": (13, 4),
}


@for_each("name", FIELDS)
def test_fields_out_of_range(name):
    """All else of the payload is as it was."""
    parts, fields, match = FIELDS[name]
    payload = bytearray(grid_payload(parts))
    for field, value in fields.items():
        at, width = PLACES[field]
        payload[at : at + width] = value.to_bytes(width, "little")
    refused_payload(bytes(payload), parts, match)


def test_low_bits_that_a_family_does_not_have():
    """The payload has as many as the field says."""
    for bias in (0, 7):
        refused(replace(FLOAT, b=0, bias=bias, low_bits=b""), "without a sign")
    for b in range(1, 5):
        refused(replace(TABLES, b=b), "of a table")
        refused(replace(TABLES, b=b, codes=[(s, 1) for s, _ in TABLES.codes]), "of a table")


def test_shapes_of_one_group_with_a_field_out_of_range():
    """The number of groups is 1 whatever is made of the fields."""
    one = grid_parts(N, row=N, height=1, width=N)
    check_grid(one)
    for fields, match in (
        ({"row": 0, "width": 0}, "a row of no items"),
        ({"row": 0}, "a row of no items"),
        ({"height": 0}, "a group of no rows"),
        ({"width": 0}, "width"),
        ({"width": N + 1}, "width"),
        ({"row": N - 1, "height": 2}, "width"),
    ):
        own = {"scales_block": nested_block(float32_bytes(one.scales), 4), **fields}
        refused(replace(one, **own), match)


@for_each(
    "dtype, rounding",
    [
        (FLOAT16, THROUGH_BINARY16),
        (FLOAT16, THROUGH_BFLOAT16),
        (BFLOAT16, THROUGH_BFLOAT16),
    ],
)
def test_roundings_that_a_dtype_does_not_have(dtype, rounding):
    for parts in (INTEGER, FLOAT, TABLES):
        refused(replace(parts, dtype=dtype, rounding=rounding), "rounding")


# --- tables --------------------------------------------------------------------------------------


def with_levels(*numbers: float) -> GridParts:
    return replace(TABLES, levels=[bits_of(number) for number in numbers])


@for_each("n", [0, 1, 33, 64, 255])
def test_numbers_of_levels_out_of_range(n):
    levels = [bits_of(1 + k / 256) for k in range(n)]
    refused(replace(TABLES, levels=levels), "number of levels")


def test_levels_that_repeat():
    for numbers in (
        (1.0, 1.0),
        (0.0, 0.0),
        (-0.0, 1.0, -0.0),
        (-1.5, *range(1, 31), -1.5),
        (*range(1, 31), 7.0, 31.0),
    ):
        refused(with_levels(*numbers), "same bits")
    check_grid(with_levels(1.0, -1.0, 0.0, -0.0))


LIMITS = [2.0**-16, next_to(2.0**16, 0)]


@for_each("at", range(3))
@for_each("sign", [1, -1])
def test_levels_out_of_range(sign, at):
    def levels(number: float) -> list[float]:
        others = [1.0, 2.0, 3.0]
        others[at] = sign * number
        return others

    for number in LIMITS:
        check_grid(with_levels(*levels(number)))
    for number in (
        next_to(2.0**-16, 0), 2.0**-17, 2.0**-126, 2.0**-127, 2.0**-149, 2.0**16,
        next_to(2.0**16, 1e9), 3e38, np.inf, np.nan,
    ):  # fmt: skip
        refused(with_levels(*levels(number)), "a level outside")


def test_levels_that_no_code_has_are_checked():
    parts = GridParts(20, [1.0, 1.0], [(0, 0)] * 20, family=TABLE)
    check_grid(replace(parts, levels=[bits_of(1.0), bits_of(2.0)]))
    refused(replace(parts, levels=[bits_of(1.0), bits_of(1e9)]), "a level outside")
    refused(replace(parts, levels=[bits_of(1.0), bits_of(2.0)] * 2), "same bits")


def test_tables_that_are_cut_off():
    payload = grid_payload(TABLES)
    for length in range(25, 25 + 4 * len(TABLES.levels)):
        refused_payload(payload[:length], TABLES, "needs")


# --- groups and scales ---------------------------------------------------------------------------


def test_more_groups_than_items():
    for n, first, shape in (
        (20, 0, (21, 1, 1)),
        (20, 0, (1 << 20, 5, 1)),
        (20, 0, ((1 << 32) - 1, (1 << 32) - 1, 1)),
        (20, 0, ((1 << 32) - 1, 1, 1 << 27)),
        (19, 256, (10, 1, 1)),  # items 256 to 274 are in rows 25, 26 and 27
        (1, 256, (2, 1, 1)),
        (2, 256, (3, 1, 1)),
    ):
        row, height, width = shape
        parts = GridParts(n, [], [(17, 0)] * n, first=first, row=row, height=height, width=width)
        for n_scales in (1, n, n + 1):
            scales = nested_block(float32_bytes([1.0] * n_scales), 4)
            refused(replace(parts, scales_block=scales), "more groups than items")
    check_grid(grid_parts(20, row=20, width=1))
    check_grid(grid_parts(30, first=256, row=10, width=1, height=2))
    check_grid(grid_parts(2, first=256, row=2, width=1))


@for_each("parts", [INTEGER, TABLES], ids=["integers", "table"])
def test_more_or_fewer_scales_than_groups(parts):
    for scales in (parts.scales[:-1], [*parts.scales, 1.0], [1.0], list(parts.scales) * 2):
        block = nested_block(float32_bytes(scales), 4, [STORED] * 4)
        refused(replace(parts, scales_block=block), "needs|do not fill")


SCALES = [2.0**-100, next_to(2.0**90, 0)]


@for_each("at", [0, 5, 9])
@for_each("sign", [1, -1])
def test_scales_out_of_range(sign, at):
    def with_scale(number: float) -> GridParts:
        scales = list(TABLES.scales)
        scales[at] = sign * number
        return replace(TABLES, scales=scales)

    for number in SCALES:
        check_grid(with_scale(number))
    for number in (
        next_to(2.0**-100, 0), 2.0**-101, 2.0**-126, 2.0**-127, 2.0**-149, 2.0**90,
        next_to(2.0**90, 1e30), 3e38, np.inf, np.nan,
    ):  # fmt: skip
        refused(with_scale(number), "a scale outside")


def test_a_scale_of_minus_0():
    scales = [-0.0 if scale == 0 else scale for scale in INTEGER.scales]
    assert scales.count(0) == 2
    refused(replace(INTEGER, scales=scales), "a scale outside")
    scales = list(TABLES.scales)
    scales[3] = -0.0
    refused(replace(TABLES, scales=scales), "a scale outside")


def test_scales_of_groups_without_items_are_checked():
    """Item 256 is in column 56, in the third group of its row."""
    parts = grid_parts(44, first=256, row=100, width=25)
    check_grid(parts)
    for number in (-0.0, 2.0**-101, 2.0**90, np.nan):
        for at in (0, 1):
            scales = list(parts.scales)
            scales[at] = number
            refused(replace(parts, scales=scales), "a scale outside")


def test_no_coded_item():
    for dtype in ROUNDINGS:
        for n, row, width in ((1, 16, 16), (N, 9, 5), (N, 9, 9)):
            parts = grid_parts(n, dtype=dtype, row=row, width=width)
            zeros = [0.0] * len(parts.scales)
            none = replace(parts, scales=zeros, codes=[], plain=[1] * n)
            for own in (none, replace(none, b=4), replace(none, symbols_mode=ZSTANDARD)):
                refused(own, "no coded item")
    # The one scale that is not 0 is of a group without items.
    parts = GridParts(44, [1.0, 2.0, 0.0, 0.0], [], [7] * 44, first=256, row=100, width=25)
    refused(parts, "no coded item")


# --- the blocks in a payload ---------------------------------------------------------------------


@for_each("dtype", ROUNDINGS)
def test_plain_items_where_there_are_none_and_none_where_there_are_some(dtype):
    some = replace(INTEGER, dtype=dtype)
    refused(replace(some, plain_block=b""), "size of the plain items")
    none = replace(TABLES, dtype=dtype)
    for block in (b"\0", bytes(WIDTHS[dtype]), nested_block(b"\1" * WIDTHS[dtype], WIDTHS[dtype])):
        refused(replace(none, plain_block=block), "size of the plain items")


def test_more_or_fewer_plain_items_than_there_are():
    for dtype in ROUNDINGS:
        parts, width = replace(INTEGER, dtype=dtype), WIDTHS[dtype]
        n = len(parts.plain)
        for count in (1, n - 1, n + 1, 2 * n):
            block = nested_block(bytes(range(1, 1 + width)) * count, width, [STORED] * width)
            refused(replace(parts, plain_block=block), "needs|do not fill")


@for_each("mode", [*OTHER_MODES, ZSTANDARD])
@for_each("plane", range(4))
def test_modes_of_scales(plane, mode):
    parts = replace(TABLES, scales_modes=[STORED] * plane + [mode] + [STORED] * (3 - plane))
    refused(parts, "another mode of the scales")
    uncoded = bytearray(nested_block(float32_bytes(TABLES.scales), 4, [STORED] * 4))
    uncoded[plane] = mode
    refused(replace(TABLES, scales_block=bytes(uncoded)), "another mode of the scales")


@for_each("mode", [*OTHER_MODES, ZSTANDARD])
@for_each("dtype", ROUNDINGS)
def test_modes_of_plain_items(dtype, mode):
    width = WIDTHS[dtype]
    for plane in range(width):
        modes = [STORED] * plane + [mode] + [STORED] * (width - 1 - plane)
        parts = replace(INTEGER, dtype=dtype, plain_modes=modes)
        refused(parts, "another mode of the scales or the plain items")


@for_each("mode", OTHER_MODES)
def test_modes_of_symbols(mode):
    refused(replace(INTEGER, symbols_mode=mode), "another mode of the symbols")
    one = GridParts(N, [0.5], [(7, 0)] * N, row=N, width=N)
    for symbols in (b"", b"\7", bytes(N)):
        refused(replace(one, symbols_mode=mode, symbols=symbols), "another mode of the symbols")


def test_blocks_that_their_planes_do_not_fill():
    for field, items, width in (
        ("scales_block", float32_bytes(INTEGER.scales), 4),
        ("plain_block", struct.pack(f"<{len(INTEGER.plain)}H", *INTEGER.plain), 2),
    ):
        for mode in NESTED:
            if mode == CONSTANT:
                continue
            block = nested_block(items, width, [mode] * width)
            check_grid(replace(INTEGER, **{field: block}))
            for damaged in (block + b"\0", block + bytes(40)):
                refused(replace(INTEGER, **{field: damaged}), "do not fill")
            for length in {0, 1, width - 1, width, len(block) // 2, len(block) - 1}:
                match = "needs|the size of the plain" if length == 0 else "needs"
                refused(replace(INTEGER, **{field: block[:length]}), match)


def test_damaged_planes_of_scales_and_plain_items():
    """They are planes as those of any block: a few of their rules."""
    n = 500
    parts = grid_parts(
        n, row=2, width=1, plain_every=3, scales_modes=[HUFFMAN, RANS_WIDE] * 2,
        plain_modes=[RANS_WIDE, HUFFMAN],
    )  # fmt: skip
    check_grid(parts)
    scales = nested_block(float32_bytes(parts.scales), 4, parts.scales_modes)
    plain = struct.pack(f"<{len(parts.plain)}H", *parts.plain)
    plain = nested_block(plain, 2, parts.plain_modes)
    for field, block, width in (("scales_block", scales, 4), ("plain_block", plain, 2)):
        at = 0
        for plane in range(width):
            size = int.from_bytes(block[width + 4 * plane :][:4], "little")
            begin = len(block) - at - size
            cut = block[: width + 4 * plane] + (size - 1).to_bytes(4, "little")
            cut += block[width + 4 * plane + 4 : begin + size - 1] + block[begin + size :]
            refused(replace(parts, **{field: cut}))
            at += size


# --- codes ---------------------------------------------------------------------------------------


@for_each("b", range(1, 5))
def test_low_bits_that_no_code_has(b):
    n_checked = 0
    for m in range(1, by_tier(18, 40)):
        parts = grid_parts(m, b=b, row=64, width=64)
        packed, unused = pack_low_bits([0] * m, b), pack_low_bits([(1 << b) - 1] * m, b)
        sound = pack_low_bits([low for _, low in parts.codes], b)
        check_grid(replace(parts, low_bits=sound))
        for bit in range(8 * len(packed)):
            if not unused[bit // 8] >> bit % 8 & 1:
                damaged = bytearray(sound)
                damaged[bit // 8] |= 1 << bit % 8
                refused(replace(parts, low_bits=bytes(damaged)), "a bit that no code has")
                n_checked += 1
    assert n_checked > 10


def test_low_bits_without_symbols():
    one = GridParts(1, [1.0], [(3, 1)], b=1)
    refused(replace(one, low_bits=b"", symbols=b""), "needs")
    refused(replace(one, low_bits=b"\1", symbols=b""), "the symbols do not fill")
    payload = grid_payload(one)
    refused_payload(payload[:-2], one, "needs")


@for_each("parts", [INTEGER, FLOAT, TABLES], ids=["integers", "floats", "table"])
def test_stored_symbols_of_another_number(parts):
    symbols = bytes(symbol for symbol, _ in parts.codes)
    for other in (b"", symbols[:-1], symbols + b"\0", symbols * 2):
        refused(replace(parts, symbols=other), "the symbols do not fill")
    for other in (b"", b"\1\1", symbols):
        damaged = replace(parts, symbols_mode=CONSTANT, symbols=other)
        refused(damaged, "the symbols do not fill")


@for_each("mode", [HUFFMAN, RANS_WIDE, ZSTANDARD])
def test_coded_symbols_that_are_damaged(mode):
    parts = grid_parts(640, row=64, width=64, symbols_mode=mode)
    symbols = plane_payload(mode, bytes(symbol for symbol, _ in parts.codes))
    check_grid(replace(parts, symbols=symbols))
    for other in (b"", symbols[:-1], symbols[: len(symbols) // 2], symbols + b"\0"):
        refused(replace(parts, symbols=other))
    for count in (639, 641):
        plane = bytes(symbol for symbol, _ in (parts.codes * 2)[:count])
        refused(replace(parts, symbols=plane_payload(mode, plane)))


# --- sizes ---------------------------------------------------------------------------------------


@for_each("parts", [INTEGER, FLOAT, TABLES], ids=["integers", "floats", "table"])
def test_payloads_of_another_size(parts):
    payload = grid_payload(parts)
    for length in range(len(payload)):
        refused_payload(payload[:length], parts)
    for more in (b"\0", b"\1\2", bytes(64)):
        refused(replace(parts, more=more), "the symbols do not fill")


def test_sizes_that_exceed_the_payload():
    for field in ("scales_size", "plain_size"):
        for size in (1 << 12, 1 << 31, (1 << 32) - 1):
            refused(replace(INTEGER, **{field: size}), "needs")
    scales = len(nested_block(float32_bytes(INTEGER.scales), 4))
    for size in (0, scales - 1, scales + 1):
        refused(replace(INTEGER, scales_size=size))


# --- frames --------------------------------------------------------------------------------------


def test_grids_in_version_1():
    for parts in (INTEGER, FLOAT, TABLES):
        refused(parts, "version 1", version=1)


def test_grids_by_byte():
    for dtype in ROUNDINGS:
        refused(replace(INTEGER, dtype=dtype), "by byte", layout=dtype | 16)


@for_each("layout", [3, 4, 5])
def test_grids_of_other_dtypes(layout):
    """The payload is that of each dtype which has grids."""
    width = WIDTHS[layout]
    for dtype in ROUNDINGS:
        for parts in (INTEGER, TABLES):
            payload = grid_payload(replace(parts, dtype=dtype))
            block = block_of_payload(payload, width)
            frame = build.frame(N * width, [block], layout=layout, version=2)
            both_refuse_to_base(frame, match="another dtype")
    # What the payload would be, if grids were for it.
    parts = replace(INTEGER, plain_block=nested_block(bytes(width) * len(INTEGER.plain), width))
    block = block_of_payload(grid_payload(parts), width)
    frame = build.frame(N * width, [block], layout=layout, version=2)
    both_refuse_to_base(frame, match="another dtype")


def test_modes_out_of_place():
    payload = {dtype: grid_payload(replace(TABLES, dtype=dtype)) for dtype in ROUNDINGS}
    for planes, dtype, match in planes_out_of_place():
        parts = [
            (mode, {GRID: payload[dtype], STORED: bytes(N), CONSTANT: b"\0"}.get(mode, b""))
            for mode in planes
        ]
        frame = build.frame(N * len(planes), [build.block(*parts)], layout=dtype, version=2)
        both_refuse_to_base(frame, match=match)


def planes_out_of_place() -> Iterator[tuple[list[int], int, str]]:
    """Yield modes of planes, a dtype and a reason."""
    for dtype in (BFLOAT16, FLOAT16):
        yield [GRID, STORED], dtype, "joined"
        yield [GRID, CONSTANT], dtype, "joined"
        yield [GRID, GRID], dtype, "behind plane 0"
        yield [STORED, GRID], dtype, "behind plane 0"
        yield [CONSTANT, GRID], dtype, "behind plane 0"
        yield [JOINED, GRID], dtype, "behind plane 0"
        yield [JOINED, JOINED], dtype, "joined"
    for at in range(1, 4):
        modes = [GRID, JOINED, JOINED, JOINED]
        for mode in (STORED, CONSTANT):
            yield [*modes[:at], mode, *modes[at + 1 :]], FLOAT32, "joined"
        yield [*modes[:at], GRID, *modes[at + 1 :]], FLOAT32, "behind plane 0"
        yield [*[STORED] * at, GRID, *[STORED] * (3 - at)], FLOAT32, "behind plane 0"
    yield [GRID, JOINED, STORED, STORED], FLOAT32, "joined"
    yield [GRID, STORED, STORED, STORED], FLOAT32, "joined"


def test_payloads_that_do_not_fill_the_block():
    for dtype in ROUNDINGS:
        parts = replace(INTEGER, dtype=dtype)
        block = grid_block(parts)
        own = {"layout": dtype, "version": 2}
        size = N * WIDTHS[dtype]
        both_refuse_to_base(build.frame(size, [block + b"\0"], **own), match="do not fill")
        both_refuse_to_base(build.frame(size, [block[:-1]], **own), match="needs")


def test_another_checksum_of_a_block():
    [right] = build.sums_of(expected_of(INTEGER), BFLOAT16, 8)
    for bit in (0, 31):
        frame = build.frame(2 * N, [grid_block(INTEGER)], version=2, sums=[right ^ 1 << bit])
        both_refuse_to_base(frame, match="checksum of a block")
