"""Grids: both decoders read payloads of any parts."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from both_decoders import both_agree, both_decode, both_decode_to_base, changed_bits
from contents import lcg_bytes, lcg_words
from grid_frames import (
    GridParts,
    check_grid,
    expected_of,
    floats_of,
    grid_block,
    grid_frame,
    grid_parts,
    grid_payload,
    group_count,
    items_of,
    payload_frame,
)
from looping import for_each
from makers import frames as build
from makers.tiles import TileNumbers, tiles_payload, write_tile_model
from reference_decoder import WIDTHS
from reference_grids import (
    BFLOAT16,
    DIFFERENCE,
    DIRECT,
    FLOAT16,
    FLOAT32,
    FLOATS,
    INTEGERS,
    NESTED,
    OFFSETS,
    ROUNDED_SUM,
    ROUNDINGS,
    SUM,
    TABLE,
    THROUGH_BFLOAT16,
    THROUGH_BINARY16,
)
from reference_planes import CONSTANT, JOINED, TILES, ZSTANDARD
from tiers import by_tier
from tile_frames import expected_of as expected_of_keys
from tile_frames import middle_of, tile_keys

DTYPES = [BFLOAT16, FLOAT16, FLOAT32]
OF_ANY_PLANE = [mode for mode in NESTED if mode != CONSTANT]
FORMULAS = [SUM, ROUNDED_SUM, DIFFERENCE]
BOTH = [(dtype, rounding) for dtype in DTYPES for rounding in ROUNDINGS[dtype]]


def bits_of(*numbers: float) -> list[int]:
    """Return the bits of float32 numbers."""
    return np.array(numbers, np.float32).view(np.uint32).tolist()


#: Sixteen levels, denser around 0, which is one of them.
SIXTEEN = bits_of(*(math.copysign((k / 8) ** 2, k) for k in range(-8, 8)))


def table_of(n: int) -> list[int]:
    """Return `n` different levels, two of which are 0 and -0, and two the extremes."""
    extremes = bits_of(0.0, -0.0, 2.0**-16, -np.nextafter(np.float32(2**16), np.float32(0)))
    others = [x % (1 << 23) | (x % 31 + 112) << 23 | x >> 31 << 31 for x in lcg_words(n).tolist()]
    return (extremes + others)[-n:] if n > 4 else extremes[-n:]


def one(symbol: int, low: int = 0, scale: float = 1.0, **options) -> int:
    """Return the one item of a block, in which both decoders agree."""
    parts = GridParts(1, [scale], [(symbol, low)], **options)
    raw = both_decode(grid_frame(parts))
    assert raw == expected_of(parts)
    return int.from_bytes(raw, "little")


def level(number: float, scale: float = 1.0, **options) -> int:
    """Return the item of a level of a table."""
    levels = bits_of(number, 1.5 if number == 1 else 1.0)
    return one(0, 0, scale, family=TABLE, levels=levels, **options)


def with_offset(level: int, scale: float, offset: float, formula: int, **options) -> int:
    """Return the item of an integer with an offset."""
    b = options.get("b", 0)
    symbol, low = divmod(level + (16 << b), 1 << b)
    own = {"family": OFFSETS, "offsets": [offset], "formula": formula}
    return one(symbol, low, scale, **own, **options)


# --- levels --------------------------------------------------------------------------------------


@for_each("b", range(5))
@for_each("dtype, rounding", BOTH)
def test_integers(dtype, rounding, b):
    check_grid(grid_parts(by_tier(200, 1000), b=b, dtype=dtype, rounding=rounding, seed=b))


@for_each("b", range(1, 5))
@for_each("bias", [0, 1, 7, 15])
@for_each("dtype, rounding", BOTH)
def test_floats(dtype, rounding, bias, b):
    options = {"family": FLOATS, "bias": bias, "b": b, "dtype": dtype, "rounding": rounding}
    check_grid(grid_parts(by_tier(100, 1000), seed=b, **options))


@for_each("n", [2, 3, 4, 5, 16, 31, 32])
@for_each("dtype, rounding", BOTH)
def test_tables(dtype, rounding, n):
    options = {"family": TABLE, "levels": table_of(n), "dtype": dtype, "rounding": rounding}
    check_grid(grid_parts(200, seed=n, **options))


@for_each(
    "options",
    [
        *({"b": b} for b in range(5)),
        *({"family": FLOATS, "b": b, "bias": 2 * b} for b in range(1, 5)),
        {"family": TABLE, "levels": SIXTEEN},
        {"family": TABLE, "levels": table_of(32)},
    ],
)
def test_all_codes(options):
    """Only a symbol's five low bits count."""
    codes = [(s, low) for low in range(1 << options.get("b", 0)) for s in range(256)]
    for dtype in by_tier([FLOAT32], DTYPES):
        for scale in (1.0, -0.7):
            scale = float(np.float32(scale))
            parts = GridParts(
                len(codes), [scale], codes, row=7, height=9999, width=7, dtype=dtype, **options
            )
            check_grid(parts)


def test_integers_as_they_are_written():
    """The level is the number that symbol and low bits are together, less 16 x 2^b."""
    for b in range(5):
        n = (32 << b) - 1
        codes = [divmod(number, 1 << b) for number in range(1, n + 1)]
        parts = GridParts(n, [1.0], codes, b=b, row=n, width=n, dtype=FLOAT32)
        integers = np.arange(1 - (16 << b), 16 << b).astype("<f4")
        assert both_decode(grid_frame(parts)) == integers.tobytes()


def test_floats_as_formats_define_them():
    """E2M1, and E4M3, whose NaN is one more number here."""
    e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    for code, number in enumerate(e2m1):
        own = {"family": FLOATS, "b": 2, "bias": 1, "dtype": FLOAT32}
        assert one(code >> 1, code & 1, **own) == bits_of(number)[0]
        assert one(code >> 1, code & 1 | 2, **own) == bits_of(-number)[0]
    for code in range(0, 1 << 7, 5):
        exponent, mantissa = divmod(code, 8)
        number = (mantissa + 8 * (exponent > 0)) / 8 * 2.0 ** (max(exponent, 1) - 7)
        own = {"family": FLOATS, "b": 4, "bias": 7, "dtype": FLOAT32}
        assert one(exponent, mantissa, **own) == bits_of(number)[0]
        assert one(exponent, mantissa | 8, **own) == bits_of(-number)[0]


def test_floats_of_a_sign_alone():
    """There is no mantissa; symbol 0 is 0, all others are powers of two."""
    own = {"family": FLOATS, "b": 1, "bias": 15, "dtype": FLOAT32}
    assert [one(0, low, **own) for low in range(2)] == bits_of(0.0, -0.0)
    for symbol in (1, 2, 30, 31):
        number = 2.0 ** (symbol - 15)
        assert [one(symbol, low, **own) for low in range(2)] == bits_of(number, -number)


def test_levels_that_a_table_does_not_have():
    levels = bits_of(-1.0, -2.0, -3.0)
    own = {"family": TABLE, "levels": levels, "dtype": FLOAT32}
    assert [one(s, **own) for s in (0, 2, 3, 31)] == bits_of(-1.0, -3.0, 0.0, 0.0)
    assert one(31, scale=-1.0, **own) == bits_of(-0.0)[0]
    assert [one(32 * 7 + s, **own) for s in (0, 2, 3)] == bits_of(-1.0, -3.0, 0.0)


# --- offsets -------------------------------------------------------------------------------------


@for_each("b", range(5))
@for_each("formula", FORMULAS)
@for_each("dtype, rounding", BOTH)
def test_integers_with_offsets(dtype, rounding, formula, b):
    options = {"family": OFFSETS, "formula": formula, "b": b, "dtype": dtype, "rounding": rounding}
    check_grid(grid_parts(by_tier(120, 1000), row=20, width=5, seed=b, **options))


@for_each("b", by_tier([0, 3], range(5)))
@for_each("formula", FORMULAS)
def test_all_codes_with_offsets(formula, b):
    codes = [(s, low) for low in range(1 << b) for s in range(256)]
    options = {"row": 7, "height": 9999, "width": 7, "family": OFFSETS, "formula": formula, "b": b}
    for dtype in by_tier([FLOAT16], DTYPES):
        for scale, offset in ((1.0, 0.0), (-0.75, 2.25), (0.375, -3.0)):
            check_grid(
                GridParts(len(codes), [scale], codes, offsets=[offset], dtype=dtype, **options)
            )


#: What numpy calls the dtypes, with arithmetic as libraries do it: rounded after each step.
NUMPY = {BFLOAT16: ml_dtypes.bfloat16, FLOAT16: np.float16, FLOAT32: np.float32}


def of_groups_of_16(
    scales: NDArray, offsets: NDArray, levels: NDArray, dtype: int, **options
) -> bytes:
    """Return what rows of 16 items, with a scale and an offset each, decode to."""
    codes = [divmod(level + 64, 4) for level in levels.ravel().tolist()]
    parts = GridParts(
        levels.size, scales.ravel().tolist(), codes, family=OFFSETS, b=2,
        offsets=offsets.ravel().tolist(), dtype=dtype, **options,
    )  # fmt: skip
    return both_decode(grid_frame(parts))


@for_each("dtype", DTYPES)
def test_formulas_of_libraries(dtype):
    rng, own = np.random.default_rng(dtype), NUMPY[dtype]
    levels = rng.integers(-63, 64, (64, 16))
    scales = rng.normal(0, 0.1, (64, 1)).astype(own)
    offsets = rng.normal(0, 2, (64, 1)).astype(own)
    rounded = levels.astype(own) * scales + offsets
    assert of_groups_of_16(scales, offsets, levels, dtype, formula=ROUNDED_SUM) == rounded.tobytes()
    less = (levels.astype(own) - offsets) * scales
    assert of_groups_of_16(scales, offsets, levels, dtype, formula=DIFFERENCE) == less.tobytes()
    in_float32 = levels.astype(np.float32) * scales.astype(np.float32) + offsets.astype(np.float32)
    expected = in_float32.astype(own).tobytes()
    assert of_groups_of_16(scales, offsets, levels, dtype, formula=SUM) == expected
    if dtype == FLOAT32:
        return
    assert len({rounded.tobytes(), less.tobytes(), expected}) == 3
    # The same, converted to float32.
    rounding = THROUGH_BINARY16 if dtype == FLOAT16 else THROUGH_BFLOAT16
    for formula, made in ((ROUNDED_SUM, rounded), (DIFFERENCE, less)):
        wide = made.astype(np.float32).tobytes()
        options = {"formula": formula, "rounding": rounding}
        assert of_groups_of_16(scales, offsets, levels, FLOAT32, **options) == wide


def test_float16_that_was_converted_to_bfloat16():
    """Half rounded numbers have the precision of float16."""
    rng = np.random.default_rng(5)
    levels = rng.integers(-63, 64, (64, 16))
    scales, offsets = (rng.normal(0, x, (64, 1)).astype(np.float16) for x in (0.1, 2))
    for formula, made in (
        (ROUNDED_SUM, levels.astype(np.float16) * scales + offsets),
        (DIFFERENCE, (levels.astype(np.float16) - offsets) * scales),
    ):
        options = {"formula": formula, "rounding": THROUGH_BINARY16}
        expected = made.astype(ml_dtypes.bfloat16).tobytes()
        assert of_groups_of_16(scales, offsets, levels, BFLOAT16, **options) == expected


def test_numbers_are_half_rounded_to_what_the_rounding_goes_through():
    scale = 1 + 3 / 512  # bfloat16 has neither this nor what is half rounded below
    for dtype, rounding, expected in (
        (BFLOAT16, DIRECT, 4 / 512),
        (BFLOAT16, THROUGH_BINARY16, 3 / 512),
        (FLOAT16, DIRECT, 3 / 512),
        (FLOAT16, THROUGH_BFLOAT16, 4 / 512),
        (FLOAT32, DIRECT, 3 / 512),
        (FLOAT32, THROUGH_BINARY16, 3 / 512),
        (FLOAT32, THROUGH_BFLOAT16, 4 / 512),
    ):
        own = {"dtype": dtype, "rounding": rounding}
        item = np.float32(expected).astype(NUMPY[dtype]).view(f"<u{WIDTHS[dtype]}")
        assert with_offset(1, scale, -1.0, ROUNDED_SUM, **own) == item
        exact = np.float32(3 / 512).astype(NUMPY[dtype]).view(f"<u{WIDTHS[dtype]}")
        assert with_offset(1, scale, -1.0, SUM, **own) == exact
    # Three quarters of a step of binary16, and less than a step of binary32.
    scale = 1 + 0.75 / 1024
    assert with_offset(1, scale, -1.0, ROUNDED_SUM, dtype=FLOAT16) == 0x1400
    assert with_offset(1, scale, -1.0, SUM, dtype=FLOAT16) == 0x1200
    own = {"dtype": FLOAT32, "rounding": THROUGH_BINARY16}
    assert with_offset(1, scale, -1.0, ROUNDED_SUM, **own) == bits_of(1 / 1024)[0]
    own["rounding"] = DIRECT
    assert with_offset(1, scale, -1.0, ROUNDED_SUM, **own) == bits_of(0.75 / 1024)[0]
    scale = 1 + 2.0**-23
    assert with_offset(1, scale, -1.0, ROUNDED_SUM, **own) == bits_of(2.0**-23)[0]


def test_differences_are_half_rounded():
    """1 + 3/512 becomes 1 + 4/512 in bfloat16, and the product with 1.5 a tie."""
    for offset, level_of_0 in ((-1 - 3 / 512, 0), (1 - 3 / 512, 2)):
        assert with_offset(level_of_0, 1.5, offset, DIFFERENCE) == 0x3FC2
        own = {"rounding": THROUGH_BINARY16}
        assert with_offset(level_of_0, 1.5, offset, DIFFERENCE, **own) == 0x3FC1
        own = {"dtype": FLOAT32, "rounding": THROUGH_BFLOAT16}
        assert with_offset(level_of_0, 1.5, offset, DIFFERENCE, **own) == 0x3FC20000
        own["rounding"] = DIRECT
        expected = bits_of(1.5 + 4.5 / 512)[0]
        assert with_offset(level_of_0, 1.5, offset, DIFFERENCE, **own) == expected


def test_steps_are_rounded_to_binary32():
    number, own = float(np.float32(1 / 3)), {"dtype": FLOAT32}
    assert 3 * number != float(np.float32(number) * np.float32(3)) == 1
    for formula in (SUM, ROUNDED_SUM):
        assert with_offset(3, number, -1.0, formula, **own) == 0  # not of the exact product
    # A sum that is rounded away.
    assert with_offset(1, 2.0**-6, 2.0**19, SUM, **own) == bits_of(2.0**19)[0]
    # The difference is 8 steps and a half above 1; three times that is 12 steps or 12.75.
    offset = -(2.0**-20) - 2.0**-24
    assert with_offset(1, 3.0, offset, DIFFERENCE, **own) == bits_of(3 + 3 * 2.0**-20)[0]


@for_each("dtype, rounding", BOTH)
def test_zeros_of_sums_are_positive(dtype, rounding):
    own = {"dtype": dtype, "rounding": rounding}
    for formula in (SUM, ROUNDED_SUM):
        for b in range(5):
            for scale in (0.5, -0.5):
                options = {**own, "b": b, "family": OFFSETS, "formula": formula}
                assert one(0, 0, scale, offsets=[0.0], **options) == 0  # -0, or 0
                assert one(16, 0, scale, offsets=[0.0], **options) == 0
                for level in (3, -5):
                    assert with_offset(level, scale, -level * scale, formula, b=b, **own) == 0


@for_each("dtype, rounding", BOTH)
def test_zeros_of_differences_have_the_sign_of_the_product(dtype, rounding):
    negative = 1 << 8 * WIDTHS[dtype] - 1
    own = {"dtype": dtype, "rounding": rounding, "family": OFFSETS, "formula": DIFFERENCE}
    for b in range(5):
        for scale, of_0, of_minus_0 in ((0.5, 0, negative), (-0.5, negative, 0)):
            assert one(16, 0, scale, b=b, offsets=[0.0], **own) == of_0
            assert one(0, 0, scale, b=b, offsets=[0.0], **own) == of_minus_0
            for symbol in (3, 17, 31):
                level = (symbol - 16 << b) * 1.0
                assert one(symbol, 0, scale, b=b, offsets=[level], **own) == of_0


def test_numbers_too_small_for_binary16_keep_their_sign():
    for own in ({"dtype": FLOAT16}, {"dtype": BFLOAT16, "rounding": THROUGH_BINARY16}):
        assert with_offset(-1, 2.0**-30, 0.0, SUM, **own) == 0x8000
        assert with_offset(1, 2.0**-30, -(2.0**-29), SUM, **own) == 0x8000
        assert with_offset(3, 2.0**-30, -(2.0**-29), SUM, **own) == 0
        # A half rounded product of -0, and an offset of 0.
        assert with_offset(-1, 2.0**-30, 0.0, ROUNDED_SUM, **own) == 0
        assert with_offset(-1, 2.0**-30, -(2.0**-30), ROUNDED_SUM, **own) == 0x8000
        assert with_offset(1, 2.0**-30, 2.0, DIFFERENCE, **own) == 0x8000
        assert with_offset(1, -(2.0**-30), 2.0, DIFFERENCE, **own) == 0


def test_infinities_of_sums_and_differences():
    largest, negative = 65504.0, 0x8000
    half = {"dtype": FLOAT16}
    assert with_offset(1, largest, largest, SUM, **half) == 0x7C00
    assert with_offset(-1, largest, -largest, SUM, **half) == 0x7C00 | negative
    # The product is infinite only where it is half rounded, and a sum does not undo that.
    for own, infinity in (
        (half, 0x7C00),
        ({"rounding": THROUGH_BINARY16}, 0x7F80),
        ({"dtype": FLOAT32, "rounding": THROUGH_BINARY16}, 0x7F800000),
    ):
        sign = 1 << 8 * WIDTHS[own.get("dtype", BFLOAT16)] - 1
        assert with_offset(2, largest, -largest, ROUNDED_SUM, **own) == infinity
        assert with_offset(2, -largest, largest, ROUNDED_SUM, **own) == infinity | sign
        assert with_offset(0, 2.0**-20, -65520.0, DIFFERENCE, **own) == infinity
        assert with_offset(0, -(2.0**-20), -65520.0, DIFFERENCE, **own) == infinity | sign
        assert with_offset(0, 2.0**-20, 65520.0, DIFFERENCE, **own) == infinity | sign
        assert with_offset(0, 2.0**-20, -65519.0, DIFFERENCE, **own) != infinity
    assert with_offset(2, largest, -largest, SUM, **half) == 0x7BFF
    assert with_offset(2, largest, -largest, ROUNDED_SUM, dtype=FLOAT32) == bits_of(largest)[0]
    number = bits_of(65520.0 * 2.0**-20)[0]
    assert with_offset(0, 2.0**-20, -65520.0, DIFFERENCE, dtype=FLOAT32) == number


def below(number: float) -> float:
    return float(np.nextafter(np.float32(number), np.float32(0)))


#: The least and the largest scales and offsets of each formula.
LIMITS = {
    SUM: ((2.0**-100, below(2.0**90)),) * 2,
    ROUNDED_SUM: ((2.0**-100, below(2.0**90)),) * 2,
    DIFFERENCE: ((2.0**-80, below(2.0**90)), (2.0**-20, below(2.0**20))),
}


@for_each("formula", FORMULAS)
@for_each("dtype, rounding", BOTH)
def test_scales_and_offsets_at_their_limits(dtype, rounding, formula):
    """Products and sums are normal numbers of binary32, 0 or infinite."""
    scales, offsets = LIMITS[formula]
    own = {"family": OFFSETS, "formula": formula, "dtype": dtype, "rounding": rounding}
    signs = (1, -1)
    scales = [sign * x for x in scales for sign in signs]
    offsets = [sign * x for x in (*offsets, 1.0, below(1.0), 256.0) for sign in signs] + [0.0]
    codes = [(symbol, low) for symbol in (0, 1, 15, 16, 17, 31) for low in (0, 1, 15)]
    pairs = [(x, y) for x in scales for y in offsets]
    n = len(codes)
    parts = GridParts(
        n * len(pairs), [x for x, _ in pairs], codes * len(pairs), b=4, row=n, width=n,
        offsets=[y for _, y in pairs], **own,
    )  # fmt: skip
    check_grid(parts)


def test_sums_of_the_least_numbers():
    """They differ by the last bit of the least scale, which is far from subnormal."""
    scale = float(np.nextafter(np.float32(2.0**-100), np.float32(1)))
    for formula in (SUM, ROUNDED_SUM):
        item = with_offset(1, scale, -(2.0**-100), formula, dtype=FLOAT32)
        assert item == bits_of(2.0**-123)[0]


# --- inner grids ---------------------------------------------------------------------------------


def inner_grid(n: int, seed: int = 0, **options) -> GridParts:
    """Return a grid of `n` numbers that may be scales or offsets."""
    width = min(n, 7)
    options = {"row": n, "width": width, "b": 2, "largest_symbol": 14, "seed": seed, **options}
    return grid_parts(n, dtype=FLOAT32, **options)


INNER = {
    "integers": {},
    "integers that were rounded": {"rounding": THROUGH_BINARY16},
    "floats": {"family": FLOATS, "b": 4, "bias": 7},
    "table": {"family": TABLE, "b": 0, "levels": bits_of(1.0, -3.0, 0.125)},
    "rows": {"row": 5, "width": 3, "height": 2},
    "coded symbols": {"symbols_mode": ZSTANDARD},
    "sums": {"family": OFFSETS},
    "differences": {"family": OFFSETS, "formula": DIFFERENCE, "rounding": THROUGH_BFLOAT16},
}


def with_inner(parts: GridParts, scales: GridParts | None, offsets: GridParts | None) -> GridParts:
    """Return parts with codes as they are, whose scales or offsets are a grid."""
    own = {}
    if scales is not None:
        own |= {"scales": floats_of(scales), "scales_block": grid_block(scales)}
    if offsets is not None:
        own |= {"offsets": floats_of(offsets), "offsets_block": grid_block(offsets)}
    return replace(parts, **own)


def without_zeros(inner: GridParts) -> GridParts:
    """Return the same with other codes where an item is 0 or -0."""
    codes = [
        code if item % (1 << 31) else (1, inner.b and 1)
        for code, item in zip(inner.codes, items_of(inner), strict=True)
    ]
    inner = replace(inner, codes=codes)
    assert 0 not in floats_of(inner)
    return inner


@for_each("name", INNER)
@for_each("dtype", by_tier([FLOAT16], DTYPES))
def test_scales_and_offsets_that_are_grids(dtype, name):
    n, shape = 40, {"row": 20, "width": 5, "b": 1, "dtype": dtype}
    scales, offsets = (without_zeros(inner_grid(n, seed, **INNER[name])) for seed in range(2))
    check_grid(with_inner(grid_parts(200, **shape), scales, None))
    for formula in FORMULAS:
        if formula == DIFFERENCE and name == "floats":  # too small for such offsets
            offsets = replace(offsets, codes=[(7, low) for _, low in offsets.codes])
        own = grid_parts(200, family=OFFSETS, formula=formula, **shape)
        check_grid(with_inner(own, scales, offsets))
        check_grid(with_inner(own, scales, None))
        check_grid(with_inner(own, None, offsets))


def test_inner_grids_that_make_groups_plain():
    """A scale of 0 is one as any other: of a level, or a plain item of the inner grid."""
    shape = {"row": 4, "width": 2, "height": 1, "dtype": FLOAT32}
    inner = GridParts(
        6, [0.0, 0.5], [(17, 0), (16, 0), (20, 0)], bits_of(0.0, 1.5, 0.0), FLOAT32,
        row=6, width=3,
    )  # fmt: skip
    assert floats_of(inner) == [0.0, 1.5, 0.0, 0.5, 0.0, 2.0]
    parts = GridParts(12, floats_of(inner), [(17, 0)] * 6, bits_of(1, 2, 3, 4, 5, 6), **shape)
    parts = replace(parts, scales_block=grid_block(inner))
    check_grid(parts)
    numbers = np.float32([1, 2, 1.5, 1.5, 3, 4, 0.5, 0.5, 5, 6, 2, 2])
    assert both_decode(grid_frame(parts)) == numbers.tobytes()
    offsets = replace(inner, codes=[(17, 0), (16, 0), (18, 0)])
    check_grid(with_inner(replace(parts, family=OFFSETS), inner, offsets))


@for_each("first", [256, 768])
def test_inner_grids_begin_with_item_0(first):
    """Their rows are counted from the first scale of the block, wherever the block is."""
    parts = grid_parts(200, first=first, row=70, height=1, width=7)
    n = len(parts.scales)
    scales = without_zeros(inner_grid(n, row=12, width=4, height=2))
    check_grid(with_inner(parts, scales, None))


@for_each("mode", [*OF_ANY_PLANE, ZSTANDARD])
def test_modes_in_inner_grids(mode):
    of_plane = mode if mode != ZSTANDARD else 0
    options = {"scales_modes": [of_plane] * 4, "symbols_mode": mode}
    scales, offsets = (without_zeros(inner_grid(400, seed, **options)) for seed in range(2))
    own = grid_parts(800, row=40, width=2, family=OFFSETS, symbols_mode=mode, b=1)
    check_grid(with_inner(own, scales, offsets))


# --- zeros ---------------------------------------------------------------------------------------


@for_each("dtype, rounding", BOTH)
def test_zeros_have_the_sign_of_a_product(dtype, rounding):
    own = {"dtype": dtype, "rounding": rounding}
    negative = 1 << 8 * WIDTHS[dtype] - 1
    for b in range(5):
        for scale, level_0, level_minus_0 in ((0.5, 0, negative), (-0.5, negative, 0)):
            assert one(16, 0, scale, b=b, **own) == level_0
            assert one(0, 0, scale, b=b, **own) == level_minus_0
            assert one(224, 0, scale, b=b, **own) == level_minus_0
            if b > 0:
                floats = {"family": FLOATS, "b": b, **own}
                assert one(0, 0, scale, **floats) == level_0
                assert one(0, 1 << b - 1, scale, **floats) == level_minus_0
            assert level(0.0, scale, **own) == level_0
            assert level(-0.0, scale, **own) == level_minus_0


@for_each("b", range(1, 5))
def test_a_lowest_integer_has_low_bits(b):
    """Only where the low bits are 0, too, is it -0."""
    assert one(0, 1, b=b, dtype=FLOAT32) == bits_of(1 - (16 << b))[0]


# --- rounding ------------------------------------------------------------------------------------


def test_ties_are_rounded_to_even():
    for fraction, expected in ((1.5, 2), (0.5, 0), (2.5, 2), (0.5 + 2**-12, 1), (1.5 - 2**-12, 1)):
        assert level(1 + fraction / 128) == 0x3F80 + expected
        assert level(-1 - fraction / 128) == 0xBF80 + expected
        assert level(1 + fraction / 1024, dtype=FLOAT16) == 0x3C00 + expected


def test_products_are_rounded_before_items():
    """The exact product is above a tie, by less than a float32 number can show."""
    scale = 1 + 2.0**-23
    number = 1 + 2.0**-8 - 2.0**-23
    assert number * scale > 1 + 2.0**-8
    assert level(number, scale) == 0x3F80
    assert level(number, scale, dtype=FLOAT32) == bits_of(1 + 2.0**-8)[0]


def test_roundings_in_two_steps():
    number = 1 + 2.0**-8 + 2.0**-20  # just above a tie of bfloat16, which binary16 has
    assert level(number) == 0x3F81
    assert level(number, rounding=THROUGH_BINARY16) == 0x3F80
    own = {"dtype": FLOAT32}
    assert level(number, **own) == bits_of(number)[0]
    assert level(number, rounding=THROUGH_BINARY16, **own) == bits_of(1 + 2.0**-8)[0]
    assert level(number, rounding=THROUGH_BFLOAT16, **own) == bits_of(1 + 2.0**-7)[0]


def test_infinities_of_binary16():
    below = float(np.nextafter(np.float32(65520), np.float32(0)))
    for sign, bit in ((1, 0), (-1, 0x8000)):
        assert level(sign * below, dtype=FLOAT16) == 0x7BFF | bit
        assert level(sign * 65520.0, dtype=FLOAT16) == 0x7C00 | bit
        assert level(sign * 65520.0) == 0x4780 | bit
        assert level(sign * 65520.0, rounding=THROUGH_BINARY16) == 0x7F80 | bit
        own = {"rounding": THROUGH_BINARY16, "dtype": FLOAT32}
        assert level(sign * 65520.0, **own) == (0x7F80 | bit) << 16
        assert level(sign * below, **own) == bits_of(sign * 65504.0)[0]
        assert level(1.0, sign * 2.0**89, dtype=FLOAT16) == 0x7C00 | bit


def test_subnormal_numbers_of_binary16():
    for scale, expected in (
        (2.0**-24, 1),
        (2.0**-25, 0),
        (2.0**-25 * (1 + 2.0**-23), 1),
        (1.5 * 2.0**-24, 2),
        (2.5 * 2.0**-24, 2),
        (1023 * 2.0**-24, 1023),
        (1023.5 * 2.0**-24, 1024),
        (2.0**-100, 0),
    ):
        for sign, bit in ((1, 0), (-1, 0x8000)):
            assert level(1.0, sign * scale, dtype=FLOAT16) == expected | bit
            assert level(-1.0, -sign * scale, dtype=FLOAT16) == expected | bit
            own = {"rounding": THROUGH_BINARY16, "dtype": FLOAT32}
            number = bits_of(sign * float(expected) * 2.0**-24)[0]
            assert level(1.0, sign * scale, **own) == number
            if expected < 256:  # bfloat16 has these numbers
                own["dtype"] = BFLOAT16
                assert level(1.0, sign * scale, **own) == number >> 16


EXTREMES = (2.0**-100, -(2.0**-100), float(np.nextafter(np.float32(2.0**90), np.float32(0))))


@for_each("scale", [*EXTREMES, -EXTREMES[2]])
@for_each("dtype, rounding", BOTH)
def test_scales_at_their_limits(dtype, rounding, scale):
    """Products of the least and the largest levels are normal numbers."""
    own = {"dtype": dtype, "rounding": rounding}
    for symbol in (0, 1, 15, 17, 31):
        for low in (0, 15):
            one(symbol, low, scale, b=4, **own)
            for bias in (0, 15):
                one(symbol, low, scale, family=FLOATS, b=4, bias=bias, **own)
    for number in (2.0**-16, -(2.0**-16), 65535.996):
        level(number, scale, **own)


# --- groups --------------------------------------------------------------------------------------

#: Rows, heights and widths of groups, of 504 items.
GROUPS = {
    "tiles": (36, 4, 9),
    "tiles that do not divide the row": (36, 5, 16),
    "rows": (36, 1, 36),
    "columns": (36, 1 << 30, 1),
    "two columns": (36, (1 << 32) - 1, 18),
    "parts of rows": (36, 1, 9),
    "pieces without rows": (504, 1, 32),
    "pieces, each a row": (32, 1, 32),
    "single items": (36, 1, 1),
    "columns of two": (36, 2, 1),
    "a row of one item": (1, 1, 1),
    "pieces of rows of one item": (1, 8, 1),
    "one group": (1, (1 << 32) - 1, 1),
    "one group, a long row": ((1 << 32) - 1, 1, (1 << 32) - 1),
    "a long row": ((1 << 32) - 1, (1 << 32) - 1, 1 << 24),
    "the largest row of single items": (504, 3, 1),
}


@for_each("name", GROUPS)
@for_each("dtype, family", [*((dtype, INTEGERS) for dtype in DTYPES), (FLOAT32, OFFSETS)])
def test_groups(name, dtype, family):
    row, height, width = GROUPS[name]
    options = {"height": height, "width": width, "b": 2, "dtype": dtype, "family": family}
    check_grid(grid_parts(504, row=row, **options))


def test_groups_as_a_matrix_has_them():
    """The scales of tiles of a matrix, repeated, are its items where all levels are 1."""
    rows, columns, height, width = 21, 20, 4, 6
    scales = np.arange(1, 25).reshape(6, 4)
    matrix = np.kron(scales, np.ones((height, width)))[:rows, :columns].astype("<f4")
    n = rows * columns
    shape = {"row": columns, "height": height, "width": width, "dtype": FLOAT32}
    parts = GridParts(n, scales.ravel().tolist(), [(17, 0)] * n, **shape)
    assert both_decode(grid_frame(parts)) == matrix.tobytes()
    # And so are their offsets, where all levels are 0.
    shape |= {"family": OFFSETS, "offsets": scales.ravel().tolist()}
    parts = GridParts(n, [0.5] * scales.size, [(16, 0)] * n, **shape)
    assert both_decode(grid_frame(parts)) == matrix.tobytes()


@for_each("first", [256, 512, 768, 1280])
@for_each("plain_every", [0, 3])
@for_each("family", [INTEGERS, OFFSETS])
def test_blocks_that_begin_within_a_band(first, plain_every, family):
    for n in by_tier([1, 100, 256], [1, 2, 3, 50, 99, 100, 101, 200, 255, 256]):
        for row, height, width in ((100, 3, 50), (100, 2, 100), (7, 5, 2), (2, 64, 1), (1, 3, 1)):
            options = {"first": first, "row": row, "height": height, "width": width, "b": 3}
            options["family"] = family
            if group_count(GridParts(n, [], [], **options)) > n:
                continue
            parts = grid_parts(n, seed=n, **options)
            if plain_every:
                scales = [0.0 if k % plain_every == 1 else x for k, x in enumerate(parts.scales)]
                parts = with_scales(parts, scales)
            if parts.codes:
                check_grid(parts)


def with_scales(parts: GridParts, scales: list[float]) -> GridParts:
    """Return the same block with other scales, and so with other plain items."""
    shape = {"row": parts.row, "height": parts.height, "width": parts.width}
    own = {"first": parts.first, "b": parts.b, "family": parts.family}
    return grid_parts(parts.n, scales=scales, **own, **shape)


def test_bands_are_counted_from_the_first_row_of_the_version():
    """Item 256 is in row 25 and band 8, whose last row is row 26."""
    n = 64
    options = {"first": 256, "row": 10, "height": 3, "width": 10, "dtype": FLOAT32}
    assert group_count(GridParts(n, [], [], **options)) == 3
    parts = GridParts(n, [1.0, 2.0, 3.0], [(17, 0)] * n, **options)
    expected = bytes(1024) + np.repeat(np.float32([1, 2, 3]), [14, 30, 20]).tobytes()
    assert both_decode(grid_frame(parts)) == expected


def test_groups_of_which_the_block_has_no_item():
    """Item 256 is in column 56 of a row of 100, in the third of its groups."""
    options = {"first": 256, "row": 100, "height": 1, "width": 25, "dtype": FLOAT32}
    parts = GridParts(44, [1.0, 2.0, 3.0, 4.0], [(17, 0)] * 44, **options)
    expected = np.repeat(np.float32([3, 4]), [19, 25]).tobytes()
    assert both_decode(grid_frame(parts))[1024:] == expected
    # Their scales count for nothing; 0 makes no plain items.
    unused = replace(parts, scales=[0.0, -7.0, 3.0, 4.0])
    assert both_decode(grid_frame(unused))[1024:] == expected
    own = {"family": OFFSETS, "offsets": [0.0, 5.0, 10.0, -20.0]}
    expected = np.repeat(np.float32([13, -16]), [19, 25]).tobytes()
    assert both_decode(grid_frame(replace(unused, **own)))[1024:] == expected


# --- plain items ---------------------------------------------------------------------------------


@for_each("dtype, rounding", BOTH)
@for_each("plain_every", [1 << 20, 2, 5])
def test_plain_items(plain_every, dtype, rounding):
    shape = {"row": 30, "height": 2, "width": 7}
    parts = grid_parts(500, dtype=dtype, rounding=rounding, b=4, plain_every=plain_every, **shape)
    assert bool(parts.plain) == (plain_every < 9)
    check_grid(parts)
    options = {"dtype": dtype, "rounding": rounding, "family": OFFSETS, **shape}
    for formula in FORMULAS:
        check_grid(grid_parts(210, b=3, plain_every=plain_every, formula=formula, **options))


def test_plain_items_may_be_anything():
    for dtype in DTYPES:
        bits = 8 * WIDTHS[dtype]
        for item in (0, 1, 1 << bits - 1, (1 << bits) - 1, (1 << bits - 1) - 1, 0x7F81):
            check_grid(GridParts(3, [1.0, 0.0], [(1, 0)] * 2, [item], dtype, row=2, width=2))


def test_one_coded_item_is_enough():
    for at in (0, 1, 31):
        scales = [0.0] * 32
        scales[at] = 0.25
        check_grid(grid_parts(32, scales=scales, row=1, width=1, b=4))


# --- codes ---------------------------------------------------------------------------------------


@for_each("b", range(5))
def test_low_bits_of_any_number_of_codes(b):
    for m in range(1, by_tier(20, 70)):
        check_grid(grid_parts(m, b=b, row=16, height=1 << 20, width=16, seed=m))


def test_places_of_low_bits():
    """The example is worked by hand: ten codes of 2 bits are in three bytes."""
    low = [1, 2, 3, 1, 0, 2, 2, 1, 3, 3]
    # Byte 0 has codes 0, 3, 6 and 9; byte 1 has 1, 4 and 7; byte 2 has 2, 5 and 8.
    two = bytes([0b11_10_01_01, 0b01_00_10, 0b11_10_11])
    codes = [(17, x) for x in low]
    parts = GridParts(10, [1.0], codes, b=2, row=16, dtype=FLOAT32)
    assert both_decode(grid_frame(replace(parts, low_bits=two))) == expected_of(parts)
    # Of 3 bits, the upper two are as before; of the lowest ones, bytes 0 and 1 have every other.
    one_bit = [0, 1, 1, 0, 1, 0, 1, 1, 0, 1]
    codes = [(17, 2 * x + y) for x, y in zip(low, one_bit, strict=True)]
    parts = GridParts(10, [1.0], codes, b=3, row=16, dtype=FLOAT32)
    lowest = bytes([0b01110, 0b11001])
    assert both_decode(grid_frame(replace(parts, low_bits=two + lowest))) == expected_of(parts)


@for_each("mode", [*NESTED, ZSTANDARD])
def test_modes_of_symbols(mode):
    for n, largest in ((1, 31), (63, 31), (640, 31), (640, 255), (5000, 20)):
        shape = {"row": 50, "height": 2, "width": 50}
        for family in (INTEGERS, OFFSETS) if n < 5000 else (INTEGERS,):
            options = {"symbols_mode": mode, "family": family, **shape}
            parts = grid_parts(n, b=1, largest_symbol=largest, **options)
            if mode == CONSTANT:
                parts = replace(parts, codes=[(largest, low) for _, low in parts.codes])
            check_grid(parts)


@for_each("mode", OF_ANY_PLANE)
@for_each("dtype", DTYPES)
def test_modes_of_scales_and_plain_items(dtype, mode):
    modes = [mode] * 4
    options = {"row": 4, "height": 1, "width": 2, "b": 1, "dtype": dtype}
    options |= {"scales_modes": modes, "plain_modes": modes[: WIDTHS[dtype]]}
    for n in (6, by_tier(600, 6000)):
        check_grid(grid_parts(n, plain_every=3, **options))
        check_grid(grid_parts(n, plain_every=3, family=OFFSETS, offsets_modes=modes, **options))


@for_each("dtype", DTYPES)
def test_constant_scales_and_plain_items(dtype):
    options = {"row": 4, "height": 1, "width": 2, "b": 1, "dtype": dtype}
    check_grid(grid_parts(100, scales=[1.75] * 50, scales_modes=[CONSTANT] * 4, **options))
    parts = grid_parts(100, scales=[0.5, 0.0] * 25, **options)
    modes = [CONSTANT] * WIDTHS[dtype]
    check_grid(replace(parts, plain=[0x7F81] * 50, plain_modes=modes))
    options |= {"family": OFFSETS, "offsets_modes": [CONSTANT] * 4}
    for offset in (0.0, -1.25):
        check_grid(grid_parts(100, offsets=[offset] * 50, **options))


def test_every_plane_has_a_mode_of_its_own():
    random, other = lcg_bytes(400), lcg_bytes(400, 1)
    for k in range(by_tier(10, 100)):
        modes = [OF_ANY_PLANE[byte % 4] for byte in random[4 * k : 4 * k + 4]]
        options = {"row": 3, "width": 2, "scales_modes": modes, "plain_modes": modes[:2]}
        check_grid(grid_parts(300, plain_every=2, **options))
        modes = [OF_ANY_PLANE[byte % 4] for byte in other[4 * k : 4 * k + 4]]
        options |= {"family": OFFSETS, "offsets_modes": modes}
        check_grid(grid_parts(300, plain_every=2, **options))


@for_each("label", [0, 1, 14, 15, 255])
def test_labels_are_for_information(label):
    check_grid(grid_parts(50, label=label))
    check_grid(grid_parts(50, label=label, family=OFFSETS))


# --- frames --------------------------------------------------------------------------------------


def test_blocks_beside_blocks_of_other_modes():
    own = grid_parts(256, first=256, row=100, height=3, width=100)
    items = expected_of(own)[512:]
    others = lcg_bytes(512)
    stored = build.whole_block(others, 2)
    blocks = [stored, grid_block(own), stored]
    raw = others + items + others + b"t"
    sums = build.sums_of(raw[:-1], 0, 8)
    frame = build.frame(len(raw), blocks, version=2, sums=sums, tail=b"t")
    assert both_decode(frame) == raw


def test_frames_that_have_a_model():
    keys = tile_keys(256)
    numbers = TileNumbers(
        base=middle_of(0), lo=128, hi=240, escape=96, tables=[[(5, 1000)] * 3 + [(4, 1000)]]
    )
    model, payload = write_tile_model([numbers]), tiles_payload(keys, numbers.section(0))
    own = grid_parts(256, first=256, row=100, height=3, width=100)
    blocks = [build.block((TILES, payload), (JOINED, b"")), grid_block(own)]
    raw = expected_of_keys(keys, 0) + expected_of(own)[512:]
    assert both_decode(build.frame(1024, blocks, model=model, version=2)) == raw


@for_each("family", [INTEGERS, OFFSETS])
def test_versions_of_a_frame(family):
    """Rows are counted from the first item of a version."""
    n, shape = 600, {"row": 70, "height": 3, "width": 35, "b": 2, "family": family}
    versions, blocks = [], []
    for v in range(3):
        parts = [
            grid_parts(min(256, n - first), first=first, seed=10 * v + first, **shape)
            for first in range(0, n, 256)
        ]
        versions.append(b"".join(expected_of(own)[2 * own.first :] for own in parts))
        blocks.append([grid_block(own) for own in parts])
    blocks[2][1] = build.same_block(2)
    versions[2] = versions[2][:512] + versions[0][512:1024] + versions[2][1024:]
    model = build.model_of_versions([None, 0, 0], [b""] * 3)
    frame = build.frame_of_versions(versions, blocks, model)
    assert both_decode(frame) == b"".join(versions)


@for_each("family", [INTEGERS, OFFSETS])
def test_frames_to_a_base_outside(family):
    parts = grid_parts(300, row=70, height=3, width=35, family=family)
    raw = expected_of(parts)
    below = lcg_bytes(len(raw))
    frame = build.frame_to_base(raw, below, [grid_block(parts)], k=9)
    assert both_decode_to_base(frame, below) == raw


# --- damage --------------------------------------------------------------------------------------


@for_each(
    "options",
    [
        {"b": 3, "plain_every": 4},
        {"family": FLOATS, "b": 4, "bias": 7},
        {"family": TABLE, "levels": SIXTEEN, "symbols_mode": 2, "scales_modes": [4] * 4},
        {"family": OFFSETS, "b": 3, "plain_every": 4},
        {"family": OFFSETS, "formula": ROUNDED_SUM, "offsets_modes": [4, 2, 5, 0]},
        {"family": OFFSETS, "formula": DIFFERENCE, "b": 2, "plain_every": 3},
    ],
)
def test_the_decoders_agree_on_changed_bits(options):
    for dtype in by_tier([BFLOAT16], DTYPES):
        parts = grid_parts(90, row=9, height=2, width=5, dtype=dtype, **options)
        payload = grid_payload(parts)
        for damaged in changed_bits(payload):
            both_agree(payload_frame(damaged, parts))
        for bit in range(8 * struct.calcsize("<5B6I")):
            damaged = bytearray(payload)
            damaged[bit // 8] ^= 1 << bit % 8
            both_agree(payload_frame(bytes(damaged), parts))


def test_the_decoders_agree_on_changed_bits_of_inner_grids():
    parts = grid_parts(90, row=9, height=2, width=5, family=OFFSETS, b=1)
    inner = [without_zeros(inner_grid(10, seed, family=OFFSETS)) for seed in range(2)]
    parts = with_inner(parts, *inner)
    check_grid(parts)
    for damaged in changed_bits(grid_payload(parts)):
        both_agree(payload_frame(damaged, parts))
