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
    floats_of,
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
    DIFFERENCE,
    FLOAT16,
    FLOAT32,
    FLOATS,
    NESTED,
    OFFSETS,
    ROUNDED_SUM,
    ROUNDINGS,
    SUM,
    TABLE,
    THROUGH_BFLOAT16,
    THROUGH_BINARY16,
)
from reference_planes import (
    CONSTANT,
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
from reference_planes import DIFFERENCE as DIFFERENCE_MODE
from tiers import by_tier

N = 90
SHAPE: dict[str, Any] = {"row": 9, "height": 2, "width": 5}  # 10 groups
INTEGER = grid_parts(N, b=3, plain_every=4, **SHAPE)
FLOAT = grid_parts(N, family=FLOATS, b=4, bias=7, plain_every=3, **SHAPE)
LEVELS = float32_bytes([-1.0, -0.5, -0.0, 0.0, 0.25, 1.5])
TABLES = grid_parts(
    N, family=TABLE, levels=[x for (x,) in struct.iter_unpack("<I", LEVELS)], **SHAPE
)
SUMS = grid_parts(N, family=OFFSETS, b=3, plain_every=4, **SHAPE)
DIFFERENCES = grid_parts(N, family=OFFSETS, formula=DIFFERENCE, plain_every=4, **SHAPE)
ANY_FORMULA = {
    "sums": SUMS, "rounded sums": replace(SUMS, formula=ROUNDED_SUM), "differences": DIFFERENCES,
}  # fmt: skip
ALL = {"integers": INTEGER, "floats": FLOAT, "table": TABLES, **ANY_FORMULA}
OTHER_MODES = (SCALE, JOINED, TILES, SAME, DIFFERENCE_MODE, 11, GRID, 13, 255)


def refused(parts: GridParts, match: str | None = None, **options) -> None:
    both_refuse_to_base(grid_frame(parts, **options), match=match)


def refused_payload(payload: bytes, parts: GridParts, match: str | None = None) -> None:
    both_refuse_to_base(payload_frame(payload, parts), match=match)


def bits_of(number: float) -> int:
    return int.from_bytes(float32_bytes([number]), "little")


def next_to(number: float, towards: float) -> float:
    return float(np.nextafter(np.float32(number), np.float32(towards)))


@for_each("parts", list(ALL.values()), ids=list(ALL))
def test_the_parts_that_the_others_damage(parts):
    for dtype in ROUNDINGS:
        for rounding in ROUNDINGS[dtype]:
            check_grid(replace(parts, dtype=dtype, rounding=rounding))
    assert bool(parts.plain) == (parts is not TABLES)
    assert any(parts.offsets) == (parts.family == OFFSETS)


# --- fields --------------------------------------------------------------------------------------

FIELDS: dict[str, tuple[GridParts, dict[str, Any], str]] = {
    "family 4": (INTEGER, {"family": 4}, "family"),
    "family 4 without low bits": (TABLES, {"family": 4, "third": 0}, "family"),
    "family 4 with offsets": (SUMS, {"family": 4}, "family"),
    "family 255": (INTEGER, {"family": 255}, "family"),
    "5 low bits": (INTEGER, {"b": 5}, "above 4"),
    "5 low bits of floats": (FLOAT, {"b": 5}, "above 4"),
    "5 low bits of integers with offsets": (SUMS, {"b": 5}, "above 4"),
    "255 low bits of integers with offsets": (DIFFERENCES, {"b": 255}, "above 4"),
    "8 low bits": (INTEGER, {"b": 8}, "above 4"),
    "255 low bits": (FLOAT, {"b": 255}, "above 4"),
    "a low bit of a table": (TABLES, {"b": 1}, "of a table"),
    "4 low bits of a table": (TABLES, {"b": 4}, "of a table"),
    "bias 1 of integers": (INTEGER, {"third": 1}, "bias of integers"),
    "bias 255 of integers": (INTEGER, {"third": 255}, "bias of integers"),
    "bias 16": (FLOAT, {"third": 16}, "the bias"),
    "bias 255": (FLOAT, {"third": 255}, "the bias"),
    "formula 3": (SUMS, {"third": 3}, "the formula"),
    "formula 4": (DIFFERENCES, {"third": 4}, "the formula"),
    "formula 255": (SUMS, {"third": 255}, "the formula"),
    "rounding 3 with offsets": (SUMS, {"rounding": 3}, "rounding"),
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


@for_each("dtype, rounding", [(FLOAT16, THROUGH_BINARY16), (BFLOAT16, THROUGH_BFLOAT16)])
def test_roundings_that_a_dtype_does_not_have(dtype, rounding):
    for parts in ALL.values():
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


# --- offsets -------------------------------------------------------------------------------------

#: The least magnitude of an offset that is not 0, and what magnitudes are below.
RANGES = {SUM: (2.0**-100, 2.0**90), DIFFERENCE: (2.0**-20, 2.0**20)}
RANGES[ROUNDED_SUM] = RANGES[SUM]


def with_number(parts: GridParts, field: str, at: int, number: float) -> GridParts:
    numbers = list(getattr(parts, field))
    numbers[at] = number
    return replace(parts, **{field: numbers})


@for_each("at", [0, 5, 8])
@for_each("sign", [1, -1])
@for_each("parts", list(ANY_FORMULA.values()), ids=list(ANY_FORMULA))
def test_offsets_out_of_range(parts, sign, at):
    least, limit = RANGES[parts.formula]
    for number in (0.0, sign * least, sign * next_to(limit, 0)):
        check_grid(with_number(parts, "offsets", at, number))
    for number in (
        next_to(least, 0), least / 2, 2.0**-126, 2.0**-127, 2.0**-149, limit,
        next_to(limit, 1e30), 2.0**90, 3e38, np.inf, np.nan,
    ):  # fmt: skip
        refused(with_number(parts, "offsets", at, sign * number), "an offset outside")


@for_each("parts", list(ANY_FORMULA.values()), ids=list(ANY_FORMULA))
def test_an_offset_of_minus_0(parts):
    for at in range(len(parts.offsets)):  # of a group whose scale is 0, too
        refused(with_number(parts, "offsets", at, -0.0), "an offset outside")


@for_each("parts", list(ANY_FORMULA.values()), ids=list(ANY_FORMULA))
@for_each("at", [0, 5, 8])
@for_each("sign", [1, -1])
def test_scales_out_of_range_where_there_are_offsets(parts, at, sign):
    least = 2.0**-80 if parts.formula == DIFFERENCE else 2.0**-100
    for number in (least, next_to(2.0**90, 0)):
        check_grid(with_number(parts, "scales", at, sign * number))
    for number in (next_to(least, 0), 2.0**-101, 2.0**-149, 2.0**90, np.inf, np.nan):
        refused(with_number(parts, "scales", at, sign * number), "a scale outside")
    scales = [-0.0 if scale == 0 else scale for scale in parts.scales]
    refused(replace(parts, scales=scales), "a scale outside")


@for_each("parts", list(ANY_FORMULA.values()), ids=list(ANY_FORMULA))
def test_an_offset_of_a_group_whose_scale_is_0(parts):
    places = [k for k, scale in enumerate(parts.scales) if scale == 0]
    assert len(places) == 2
    for at in places:
        for number in (1.0, -1.0, RANGES[parts.formula][0]):
            refused(with_number(parts, "offsets", at, number), "a group without a scale")


def test_offsets_of_groups_without_items_are_checked():
    """Item 256 is in column 56, in the third group of its row."""
    for formula in RANGES:
        parts = grid_parts(44, first=256, row=100, width=25, family=OFFSETS, formula=formula)
        check_grid(parts)
        for at in (0, 1):
            for number in (-0.0, 2.0**-101, 2.0**90, np.nan):
                refused(with_number(parts, "offsets", at, number), "an offset outside")
            without = with_number(with_number(parts, "scales", at, 0.0), "offsets", at, 0.0)
            check_grid(without)
            refused(with_number(without, "offsets", at, 2.0), "a group without a scale")


@for_each("parts", list(ANY_FORMULA.values()), ids=list(ANY_FORMULA))
def test_more_or_fewer_offsets_than_groups(parts):
    offsets = list(parts.offsets)
    for other in (offsets[:-1], [*offsets, 0.0], [1.0], offsets * 2):
        block = nested_block(float32_bytes(other), 4, [STORED] * 4)
        refused(replace(parts, offsets_block=block), "needs|do not fill")
    refused(replace(parts, offsets_block=b""), "needs")


@for_each("mode", [*OTHER_MODES, ZSTANDARD])
@for_each("plane", range(4))
def test_modes_of_offsets(plane, mode):
    modes = [STORED] * plane + [mode] + [STORED] * (3 - plane)
    for parts in ANY_FORMULA.values():
        refused(replace(parts, offsets_modes=modes), "another mode of scales, offsets")
    uncoded = bytearray(nested_block(float32_bytes(SUMS.offsets), 4, [STORED] * 4))
    uncoded[plane] = mode
    refused(replace(SUMS, offsets_block=bytes(uncoded)), "another mode of scales, offsets")


def test_sizes_of_the_offsets():
    for parts in ANY_FORMULA.values():
        size = len(nested_block(float32_bytes(parts.offsets), 4))
        for other in (1 << 12, 1 << 31, (1 << 32) - 1):
            refused(replace(parts, offsets_size=other), "needs")
        for other in (0, 1, size - 1, size + 1):
            refused(replace(parts, offsets_size=other))
        payload = grid_payload(parts)
        for length in range(25, 29):
            refused_payload(payload[:length], parts, "needs")


def test_payloads_of_another_family():
    """Parts that are sound with offsets are not without them, and the other way round."""
    payload = bytearray(grid_payload(replace(SUMS, offsets=[0.0] * 10)))
    payload[0] = 0
    refused_payload(bytes(payload), SUMS)
    payload = bytearray(grid_payload(INTEGER))
    payload[0] = OFFSETS
    refused_payload(bytes(payload), INTEGER)


# --- inner grids ---------------------------------------------------------------------------------

#: 10 groups, as many as the others have.
INNER = grid_parts(10, dtype=FLOAT32, row=10, width=5, b=1, largest_symbol=14)
WITH_OFFSETS = grid_parts(10, dtype=FLOAT32, row=10, width=5, family=OFFSETS, b=4)


def with_inner(field: str, inner: GridParts) -> GridParts:
    """Return sums whose scales or offsets are a grid."""
    own = grid_parts(N, family=OFFSETS, b=3, **SHAPE)
    numbers = field.partition("_")[0]
    return replace(own, **{numbers: floats_of(inner), field: grid_block(inner)})


FIELDS_OF_NUMBERS = ["scales_block", "offsets_block"]
both_fields = for_each("field", FIELDS_OF_NUMBERS)


@both_fields
def test_the_inner_grids_that_the_others_damage(field):
    check_grid(with_inner(field, INNER))
    check_grid(with_inner(field, WITH_OFFSETS))


@both_fields
def test_inner_grids_of_inner_grids(field):
    """All that they give is sound: only that they are grids is not."""
    one = GridParts(2, [1.0], [(17, 0), (18, 0)], dtype=FLOAT32, row=2, width=2)
    inner = replace(INNER, scales=[1.0, 2.0])
    check_grid(with_inner(field, inner))
    of_scales = with_inner(field, replace(inner, scales_block=grid_block(one)))
    refused(of_scales, "another mode of scales, offsets")
    inner = replace(WITH_OFFSETS, offsets=[1.0, 2.0])
    check_grid(with_inner(field, inner))
    of_offsets = with_inner(field, replace(inner, offsets_block=grid_block(one)))
    refused(of_offsets, "another mode of scales, offsets")


def test_plain_items_that_are_a_grid():
    for dtype in ROUNDINGS:
        own = replace(INTEGER, dtype=dtype)
        n = len(own.plain)
        plain = grid_parts(n, dtype=dtype, row=n, width=n)
        for parts in (own, replace(SUMS, dtype=dtype)):
            refused(replace(parts, plain_block=grid_block(plain)), "another mode of scales")


@both_fields
def test_inner_grids_of_other_dtypes(field):
    """The width of the block is that of float32 items."""
    for dtype in (BFLOAT16, FLOAT16):
        payload = grid_payload(replace(INNER, dtype=dtype, plain=[]))
        parts = with_inner(field, INNER)
        refused(replace(parts, **{field: block_of_payload(payload, WIDTHS[dtype])}))


@both_fields
@for_each("at", range(1, 4))
def test_other_modes_behind_an_inner_grid(field, at):
    payload = grid_payload(INNER)
    for mode, coded in ((STORED, bytes(10)), (CONSTANT, b"\0"), (GRID, payload)):
        planes = [(GRID, payload)] + [(JOINED, b"")] * 3
        planes[at] = mode, coded
        refused(replace(with_inner(field, INNER), **{field: build.block(*planes)}))
        planes = [(STORED, bytes(10))] * 4
        planes[at] = GRID, payload
        refused(replace(with_inner(field, INNER), **{field: build.block(*planes)}))


@both_fields
def test_numbers_of_inner_grids_out_of_range(field):
    parts = with_inner(field, INNER)
    reason = "a scale outside" if field == "scales_block" else "an offset outside"
    for at in (0, 9):
        for code in ((0, 0), (15, 1)):
            codes = list(INNER.codes)
            codes[at] = code
            # 0, -0 and the least and largest numbers of the inner scale.
            for scale in (2.0**-100, next_to(2.0**90, 0)):
                scales = [scale, scale]
                inner = replace(INNER, scales=scales, codes=codes)
                numbers = floats_of(inner)
                is_sound = all(bits_of(x) == 0 or 2.0**-100 <= abs(x) < 2.0**90 for x in numbers)
                if not is_sound:
                    refused(replace(parts, **{field: grid_block(inner)}), reason)
    negative_0 = replace(INNER, codes=[(0, 0), *INNER.codes[1:]], scales=[1.0, 1.0])
    refused(replace(parts, **{field: grid_block(negative_0)}), reason)
    for plain in (0x80000000, bits_of(2.0**-101), bits_of(2.0**90), 0x7F800000, 0x7FC00000):
        inner = replace(INNER, scales=[0.0, 1.0], codes=INNER.codes[:5], plain=[plain] * 5)
        refused(replace(parts, **{field: grid_block(inner)}), reason)


@both_fields
def test_inner_grids_are_checked_as_others_are(field):
    parts = with_inner(field, INNER)
    for damaged in (
        replace(INNER, family=4), replace(INNER, b=5), replace(INNER, third=1),
        replace(INNER, rounding=3), replace(INNER, width=11), replace(INNER, more=b"\0"),
        replace(INNER, scales=[-0.0, 1.0]), replace(INNER, scales=[2.0**90, 1.0]),
        replace(INNER, plain_block=b"\0"), replace(INNER, low_bits=b"\xff\xff"),
        replace(WITH_OFFSETS, third=3), replace(WITH_OFFSETS, offsets=[-0.0, 0.0]),
        replace(INNER, row=11, width=1, scales=[1.0] * 11),
    ):  # fmt: skip
        refused(replace(parts, **{field: grid_block(damaged)}))
    block = grid_block(INNER)
    for length in range(len(block)):
        refused(replace(parts, **{field: block[:length]}))
    refused(replace(parts, **{field: block + b"\0"}), "do not fill")
    for n in (9, 11):
        inner = grid_parts(n, dtype=FLOAT32, row=n, width=5)
        refused(replace(parts, **{field: grid_block(inner)}))


# --- the blocks in a payload ---------------------------------------------------------------------


@for_each("dtype", ROUNDINGS)
def test_plain_items_where_there_are_none_and_none_where_there_are_some(dtype):
    some = replace(INTEGER, dtype=dtype)
    refused(replace(some, plain_block=b""), "size of the plain items")
    refused(replace(SUMS, dtype=dtype, plain_block=b""), "size of the plain items")
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
    refused(parts, "another mode of scales")
    uncoded = bytearray(nested_block(float32_bytes(TABLES.scales), 4, [STORED] * 4))
    uncoded[plane] = mode
    refused(replace(TABLES, scales_block=bytes(uncoded)), "another mode of scales")


@for_each("mode", [*OTHER_MODES, ZSTANDARD])
@for_each("dtype", ROUNDINGS)
def test_modes_of_plain_items(dtype, mode):
    width = WIDTHS[dtype]
    for plane in range(width):
        modes = [STORED] * plane + [mode] + [STORED] * (width - 1 - plane)
        parts = replace(INTEGER, dtype=dtype, plain_modes=modes)
        refused(parts, "another mode of scales, offsets or plain items")


@for_each("mode", OTHER_MODES)
def test_modes_of_symbols(mode):
    refused(replace(INTEGER, symbols_mode=mode), "another mode of the symbols")
    one = GridParts(N, [0.5], [(7, 0)] * N, row=N, width=N)
    for symbols in (b"", b"\7", bytes(N)):
        refused(replace(one, symbols_mode=mode, symbols=symbols), "another mode of the symbols")


def test_blocks_that_their_planes_do_not_fill():
    for field, items, width in (
        ("scales_block", float32_bytes(INTEGER.scales), 4),
        ("offsets_block", float32_bytes(SUMS.offsets), 4),
        ("plain_block", struct.pack(f"<{len(INTEGER.plain)}H", *INTEGER.plain), 2),
    ):
        parts = SUMS if field == "offsets_block" else INTEGER
        for mode in NESTED:
            if mode == CONSTANT:
                continue
            block = nested_block(items, width, [mode] * width)
            check_grid(replace(parts, **{field: block}))
            for damaged in (block + b"\0", block + bytes(40)):
                refused(replace(parts, **{field: damaged}), "do not fill")
            for length in {0, 1, width - 1, width, len(block) // 2, len(block) - 1}:
                match = "needs|the size of the plain" if length == 0 else "needs"
                refused(replace(parts, **{field: block[:length]}), match)


def test_damaged_planes_of_scales_offsets_and_plain_items():
    """They are planes as those of any block: a few of their rules."""
    n = 500
    parts = grid_parts(
        n, row=2, width=1, plain_every=3, scales_modes=[HUFFMAN, RANS_WIDE] * 2,
        plain_modes=[RANS_WIDE, HUFFMAN], family=OFFSETS, offsets_modes=[RANS_WIDE, HUFFMAN] * 2,
    )  # fmt: skip
    check_grid(parts)
    scales = nested_block(float32_bytes(parts.scales), 4, parts.scales_modes)
    offsets = nested_block(float32_bytes(parts.offsets), 4, parts.offsets_modes)
    plain = struct.pack(f"<{len(parts.plain)}H", *parts.plain)
    plain = nested_block(plain, 2, parts.plain_modes)
    for field, block, width in (
        ("scales_block", scales, 4),
        ("offsets_block", offsets, 4),
        ("plain_block", plain, 2),
    ):
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


@for_each("parts", list(ALL.values()), ids=list(ALL))
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


@for_each("parts", list(ALL.values()), ids=list(ALL))
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
    for parts in ALL.values():
        refused(parts, "version 1", version=1)


def test_grids_by_byte():
    for dtype in ROUNDINGS:
        for parts in (INTEGER, SUMS):
            refused(replace(parts, dtype=dtype), "by byte", layout=dtype | 16)


@for_each("layout", [3, 4, 5])
def test_grids_of_other_dtypes(layout):
    """The payload is that of each dtype which has grids."""
    width = WIDTHS[layout]
    for dtype in ROUNDINGS:
        for parts in (INTEGER, TABLES, SUMS):
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
