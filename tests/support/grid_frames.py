"""Frames of grids from any parts that a test gives, broken ones included.

What they decode to is computed in another way than in the reference decoder: item by item, in
rational numbers.
"""

from __future__ import annotations

import functools
import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numcodecs.zstd
import numpy as np

from both_decoders import both_decode
from contents import lcg_words
from makers import frames as build
from makers.planes import huffman_payload, pairs_payload, wide_payload
from reference_decoder import WIDTHS
from reference_differences import items_from
from reference_grids import (
    BFLOAT16,
    DIFFERENCE,
    DIRECT,
    FLOAT16,
    FLOAT32,
    FLOATS,
    INTEGERS,
    OFFSETS,
    ROUNDED_SUM,
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
    RANS_PAIRS,
    RANS_WIDE,
    STORED,
    ZSTANDARD,
)

# --- Parts ---------------------------------------------------------------------------------------


@dataclass
class GridParts:
    """The parts of a block of `n` items, the first of which is number `first`.

    Nothing is checked. Those that are None follow from the others; given, they damage one field.
    """

    n: int
    scales: Sequence[float]  # of all groups
    codes: Sequence[tuple[int, int]]  # symbol and low bits of each coded item
    plain: Sequence[int] = ()  # the bits of each plain item
    dtype: int = BFLOAT16
    first: int = 0
    family: int = INTEGERS
    b: int = 0
    bias: int = 0
    formula: int = SUM  # of integers with offsets
    offsets: Sequence[float] = ()  # of all groups
    rounding: int = DIRECT
    label: int = 0
    row: int = 16
    height: int = 1
    width: int = 16
    levels: Sequence[int] = ()  # the bits of each level of a table
    scales_modes: Sequence[int] = ()  # of the planes; any that fits if there are none
    offsets_modes: Sequence[int] = ()
    plain_modes: Sequence[int] = ()
    symbols_mode: int = STORED
    third: int | None = None  # byte 2 of the payload
    scales_size: int | None = None
    plain_size: int | None = None
    offsets_size: int | None = None
    scales_block: bytes | None = None
    offsets_block: bytes | None = None
    plain_block: bytes | None = None
    low_bits: bytes | None = None
    symbols: bytes | None = None  # in their mode
    more: bytes = field(default=b"", repr=False)  # behind the symbols


def grid_parts(
    n: int,
    *,
    scales: Sequence[float] | None = None,
    offsets: Sequence[float] | None = None,
    plain_every: int = 0,
    largest_symbol: int = 31,
    seed: int = 0,
    **options,
) -> GridParts:
    """Return sound parts with any codes; each so many groups, the last of them has scale 0."""
    parts = GridParts(n, [], [], **options)
    n_groups = group_count(parts)
    if scales is None:
        scales = [some_scale(k, seed) for k in range(n_groups)]
    if plain_every:
        scales = [0.0 if k % plain_every == plain_every - 1 else x for k, x in enumerate(scales)]
    assert len(scales) == n_groups <= n
    parts.scales = scales
    if parts.family == OFFSETS:
        if offsets is None:
            offsets = [some_offset(parts, k, seed) for k in range(n_groups)]
        parts.offsets = [y if x else 0.0 for x, y in zip(scales, offsets, strict=True)]
    of_items = [scales[group] for group in groups_of(parts)]
    m = sum(scale != 0 for scale in of_items)
    words = lcg_words(n, seed).tolist()
    parts.codes = [
        ((word >> 12) % (largest_symbol + 1), (word >> 24) % (1 << parts.b)) for word in words[:m]
    ]
    parts.plain = [word % (1 << 8 * WIDTHS[parts.dtype]) for word in words[m:]]
    return parts


def some_scale(k: int, seed: int = 0) -> float:
    """Return a float32 number between 2^-12 and 2^2, or the negative of one."""
    word = int(lcg_words(1, 1000 * seed + k + 7)[0])
    scale = math.ldexp(1 + (word >> 9) / (1 << 23), word % 14 - 12)
    return -scale if word >> 4 & 1 else scale


def some_offset(parts: GridParts, k: int, seed: int = 0) -> float:
    """Return an offset for a group: any, 0, or one that makes a level 0 or nearly 0."""
    unit = 1.0 if parts.formula == DIFFERENCE else parts.scales[k]
    any_number = some_scale(k + 500, seed)
    level = (k + seed) % 13 - 6
    choices = [any_number, 0.0, unit * any_number * (1 << parts.b), level * unit]
    if parts.formula != DIFFERENCE:
        choices[3] = -choices[3]
    return float(np.float32(choices[k % 4])) or 0.0


def group_count(parts: GridParts) -> int:
    """Return how many scales a block has."""
    first_band, last_band = bands_of(parts)
    return (last_band - first_band + 1) * -(-parts.row // parts.width)


def bands_of(parts: GridParts) -> tuple[int, int]:
    """Return the bands of the first and of the last item."""
    last = parts.first + parts.n - 1
    return parts.first // parts.row // parts.height, last // parts.row // parts.height


def groups_of(parts: GridParts) -> list[int]:
    """Return the place of each item's group among those of the block."""
    places = {}
    for band in range(bands_of(parts)[0], bands_of(parts)[1] + 1):
        for column in range(-(-parts.row // parts.width)):
            places[band, column] = len(places)
    found = []
    for i in range(parts.first, parts.first + parts.n):
        r, c = divmod(i, parts.row)
        found.append(places[r // parts.height, c // parts.width])
    return found


# --- Payloads ------------------------------------------------------------------------------------


def grid_payload(parts: GridParts) -> bytes:
    third = parts.bias
    if parts.family == TABLE:
        third = len(parts.levels)
    if parts.family == OFFSETS:
        third = parts.formula
    scales, plain = parts.scales_block, parts.plain_block
    if scales is None:
        scales = nested_block(float32_bytes(parts.scales), 4, parts.scales_modes)
    if plain is None:
        width = WIDTHS[parts.dtype]
        items = b"".join(item.to_bytes(width, "little") for item in parts.plain)
        plain = nested_block(items, width, parts.plain_modes) if items else b""
    low_bits = parts.low_bits
    if low_bits is None:
        low_bits = pack_low_bits([low for _, low in parts.codes], parts.b)
    symbols = parts.symbols
    if symbols is None:
        symbols = plane_payload(parts.symbols_mode, bytes(symbol for symbol, _ in parts.codes))
    head = struct.pack(
        "<5B5I",
        parts.family,
        parts.b,
        third if parts.third is None else parts.third,
        parts.rounding,
        parts.label,
        parts.row,
        parts.height,
        parts.width,
        len(scales) if parts.scales_size is None else parts.scales_size,
        len(plain) if parts.plain_size is None else parts.plain_size,
    )
    head += struct.pack(f"<{len(parts.levels)}I", *parts.levels)
    offsets = b""
    if parts.family == OFFSETS:
        offsets = offsets_block(parts)
        size = len(offsets) if parts.offsets_size is None else parts.offsets_size
        head += struct.pack("<I", size)
    mode = bytes([parts.symbols_mode])
    return head + scales + offsets + plain + low_bits + mode + symbols + parts.more


def offsets_block(parts: GridParts) -> bytes:
    if parts.offsets_block is not None:
        return parts.offsets_block
    return nested_block(float32_bytes(parts.offsets), 4, parts.offsets_modes)


def float32_bytes(numbers: Sequence[float]) -> bytes:
    return np.array(numbers, "<f4").tobytes()


def pack_low_bits(low: Sequence[int], b: int) -> bytes:
    if b == 0:
        return b""
    if b == 3:
        return pack_part([x >> 1 for x in low], 2) + pack_part([x & 1 for x in low], 1)
    return pack_part(low, b)


def pack_part(values: Sequence[int], w: int) -> bytes:
    h = -(-w * len(values) // 8)
    packed = bytearray(h)
    for j, value in enumerate(values):
        packed[j % h] |= value << w * (j // h)
    return bytes(packed)


def nested_block(items: bytes, width: int, modes: Sequence[int] = ()) -> bytes:
    """Code items as a block; without modes, planes are constant if they can, or stored."""
    bits = 8 * width
    rotated = [(x << 1 | x >> bits - 1) % (1 << bits) for x in items_from(items, width)]
    planes = build.low_planes(rotated, width)
    modes = modes or [CONSTANT if len(set(plane)) == 1 else STORED for plane in planes]
    coded = [plane_payload(mode, plane) for mode, plane in zip(modes, planes, strict=True)]
    return build.block(*zip(modes, coded, strict=True))


def plane_payload(mode: int, plane: bytes) -> bytes:
    """Code a plane in a mode with any tables that fit it."""
    counts = Counter(plane)
    for other in range(2):  # tables have at least two symbols
        if len(counts) < 2:
            counts[other] += 0
    common = [symbol for symbol, _ in counts.most_common()]
    if mode == CONSTANT:
        assert counts.total() == counts[common[0]]
        return plane[:1]
    if mode == HUFFMAN:
        depth = (len(common) - 1).bit_length()
        n_short = (1 << depth) - len(common)
        lengths = {symbol: depth - (place < n_short) for place, symbol in enumerate(common)}
        return huffman_payload(plane, lengths)
    if mode == RANS_PAIRS:
        unused = [symbol for symbol in range(256) if symbol not in counts]
        return pairs_payload(plane, [16] * 16, [*(common + unused)[:15], 0], escape=True)
    if mode == RANS_WIDE:
        f = dict.fromkeys(common, 4096 // len(common))
        f[common[0]] += 4096 - sum(f.values())
        return wide_payload(plane, f)
    if mode == ZSTANDARD:
        return bytes(numcodecs.zstd.compress(plane, 3))
    return plane  # stored, or refused


# --- Frames --------------------------------------------------------------------------------------


def grid_block(parts: GridParts) -> bytes:
    return block_of_payload(grid_payload(parts), WIDTHS[parts.dtype])


def block_of_payload(payload: bytes, width: int) -> bytes:
    """Return a block of items of so many bytes."""
    return build.block((GRID, payload), *[(JOINED, b"")] * (width - 1))


def grid_frame(parts: GridParts, sums: bool = False, **options) -> bytes:
    """Return a frame that ends with this block; the items before it are 0."""
    width, k = WIDTHS[parts.dtype], max(8, (parts.n - 1).bit_length())
    assert parts.first % (1 << k) == 0
    zeros = build.block(*[(CONSTANT, b"\0")] * width)
    blocks = [zeros] * (parts.first >> k) + [grid_block(parts)]
    options = {"layout": parts.dtype, "k": k, "version": 2, **options}
    if sums:
        options["sums"] = build.sums_of(expected_of(parts), parts.dtype, k)
    return build.frame((parts.first + parts.n) * width, blocks, **options)


def payload_frame(payload: bytes, parts: GridParts) -> bytes:
    """Return a frame of a payload in the place of that of the parts, whose block is the first."""
    width = WIDTHS[parts.dtype]
    blocks = [block_of_payload(payload, width)]
    return build.frame(parts.n * width, blocks, layout=parts.dtype, version=2)


def check_grid(parts: GridParts) -> None:
    """Check that both decoders read such a frame, with and without checksums of blocks."""
    expected = expected_of(parts)
    assert both_decode(grid_frame(parts)) == expected
    assert both_decode(grid_frame(parts, sums=True)) == expected


def floats_of(parts: GridParts) -> list[float]:
    """Return the items of float32 parts as numbers."""
    return np.array(items_of(parts), np.uint32).view(np.float32).tolist()


def expected_of(parts: GridParts) -> bytes:
    """Return what such a frame decodes to."""
    width = WIDTHS[parts.dtype]
    items = b"".join(item.to_bytes(width, "little") for item in items_of(parts))
    return bytes(parts.first * width) + items


# --- Items ---------------------------------------------------------------------------------------

#: Bits of the exponent and of the fraction.
SHAPES = {BFLOAT16: (8, 7), FLOAT16: (5, 10), FLOAT32: (8, 23)}
#: The format that numbers are rounded to before the dtype.
THROUGH = {THROUGH_BINARY16: FLOAT16, THROUGH_BFLOAT16: BFLOAT16}
#: Whether a number is negative, and its magnitude. So zeros have signs.
Number = tuple[bool, Fraction | float]


def items_of(parts: GridParts) -> list[int]:
    """Return the bits of all items."""
    codes, plain = iter(parts.codes), iter(parts.plain)
    formula = parts.formula if parts.family == OFFSETS else None
    found = []
    for group in groups_of(parts):
        if parts.scales[group] == 0:
            found.append(next(plain))
            continue
        level, scale = level_of(parts, *next(codes)), number_of(parts.scales[group])
        offset = None if formula is None else number_of(parts.offsets[group])
        found.append(item_of(level, scale, offset, formula, parts.rounding, parts.dtype))
    assert next(codes, None) is next(plain, None) is None
    return found


def number_of(x: float) -> Number:
    x = float(np.float32(x))
    return math.copysign(1, x) < 0, Fraction(abs(x))


def level_of(parts: GridParts, symbol: int, low: int) -> Number:
    s, b = symbol % 32, parts.b
    if parts.family in (INTEGERS, OFFSETS):
        if s == low == 0:
            return True, Fraction(0)
        level = (s - 16) * 2**b + low
        return level < 0, Fraction(abs(level))
    if parts.family == FLOATS:
        mantissa_bits = b - 1
        mantissa = Fraction(low % 2**mantissa_bits, 2**mantissa_bits)
        exponent = s - parts.bias
        if s == 0:
            exponent += 1
        else:
            mantissa += 1
        return low >= 2**mantissa_bits, mantissa * Fraction(2) ** exponent
    bits = parts.levels[s] if s < len(parts.levels) else 0
    return bool(bits >> 31), Fraction(value_of(bits % (1 << 31), FLOAT32))


@functools.lru_cache(1 << 16)
def item_of(
    level: Number,
    scale: Number,
    offset: Number | None,
    formula: int | None,
    rounding: int,
    dtype: int,
) -> int:
    """Return the bits of an item; without offsets, there is no formula."""
    half = THROUGH.get(rounding, dtype)
    if formula == DIFFERENCE:
        negative, magnitude = offset
        difference = added(level, (not negative, magnitude))
        number = multiplied(to_format(difference, half), scale)
    else:
        number = multiplied(level, scale)
        if formula == ROUNDED_SUM:
            number = to_format(number, half)
        if formula is not None:
            number = added(number, offset)
    negative, magnitude = to_format(number, half)
    return rounded(magnitude, dtype) | negative << 8 * WIDTHS[dtype] - 1


def multiplied(a: Number, b: Number) -> Number:
    """Return the product in binary32."""
    return to_format((a[0] != b[0], a[1] * b[1]), FLOAT32)


def added(a: Number, b: Number) -> Number:
    """Return the sum in binary32, which is 0 or -0 if both are 0, and 0 if they cancel out."""
    if a[1] == b[1] == 0:
        return a[0] and b[0], Fraction(0)
    total = (-a[1] if a[0] else a[1]) + (-b[1] if b[0] else b[1])
    return to_format((total < 0, abs(total)), FLOAT32)


def to_format(number: Number, form: int) -> Number:
    negative, magnitude = number
    return negative, value_of(rounded(magnitude, form), form)


def rounded(value: Fraction | float, form: int) -> int:
    """Return the bits of the number of a format that is nearest, of two the even one."""
    exponent_bits, fraction_bits = SHAPES[form]
    infinity = (1 << exponent_bits) - 1 << fraction_bits
    if value in (0, math.inf):
        return infinity if value else 0
    value, bias = Fraction(value), (1 << exponent_bits - 1) - 1
    # The denominator is a power of two.
    exponent = max(value.numerator.bit_length() - value.denominator.bit_length(), 1 - bias)
    steps = round(value / Fraction(2) ** (exponent - fraction_bits))  # ties to even
    return min((exponent + bias - 1 << fraction_bits) + steps, infinity)


def value_of(bits: int, form: int) -> Fraction | float:
    exponent_bits, fraction_bits = SHAPES[form]
    exponent, fraction = divmod(bits, 1 << fraction_bits)
    if exponent == (1 << exponent_bits) - 1:
        return math.inf
    if exponent > 0:
        fraction += 1 << fraction_bits
    bias = (1 << exponent_bits - 1) - 1
    return fraction * Fraction(2) ** (max(exponent, 1) - bias - fraction_bits)
