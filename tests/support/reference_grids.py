"""The grids of the reference decoder, written from docs/format_grids.md alone.

They are not the grids of scales in reference_grid.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reference_difference_model import WIDTHS
from reference_planes import (
    CONSTANT,
    DECODERS,
    GRID,
    HUFFMAN,
    JOINED,
    RANS_PAIRS,
    RANS_WIDE,
    STORED,
    ZSTANDARD,
    Reader,
    join_planes,
    must,
)

BFLOAT16, FLOAT16, FLOAT32 = range(3)  # dtypes
INTEGERS, FLOATS, TABLE, OFFSETS = range(4)  # families
SUM, ROUNDED_SUM, DIFFERENCE = range(3)  # formulas of integers with offsets
DIRECT, THROUGH_BINARY16, THROUGH_BFLOAT16 = range(3)  # roundings
ROUNDINGS = {
    BFLOAT16: (DIRECT, THROUGH_BINARY16),
    FLOAT16: (DIRECT, THROUGH_BFLOAT16),
    FLOAT32: (DIRECT, THROUGH_BINARY16, THROUGH_BFLOAT16),
}
LEVELS = 32  # of a table, at most
LARGEST_BIAS = 15
NESTED = (STORED, CONSTANT, HUFFMAN, RANS_PAIRS, RANS_WIDE)  # modes of blocks in a payload
#: The least magnitude of a number that is not 0, and what magnitudes are below.
RANGE = 2.0**-100, 2.0**90
SCALES_OF_DIFFERENCES = 2.0**-80, 2.0**90
OFFSETS_OF_DIFFERENCES = 2.0**-20, 2.0**20

# --- Payload -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridFields:
    """The fields in front of the scales."""

    family: int
    b: int
    bias: int  # of floats
    formula: int  # of integers with offsets
    rounding: int
    row: int
    height: int
    width: int
    scales_size: int
    plain_size: int
    table: np.ndarray  # of 32 levels
    offsets_size: int

    @classmethod
    def read(cls, reader: Reader, dtype: int) -> GridFields:
        family, b, third, rounding, _label = (reader.number(1) for _ in range(5))
        row, height, width, scales_size, plain_size = (reader.number(4) for _ in range(5))
        must(family in (INTEGERS, FLOATS, TABLE, OFFSETS), "the family")
        must(b <= 4, "b is above 4")
        must(b >= 1 or family != FLOATS, "floats without a sign")
        must(b == 0 or family != TABLE, "low bits of a table")
        must(rounding in ROUNDINGS[dtype], "the rounding")
        must(row >= 1, "a row of no items")
        must(height >= 1, "a group of no rows")
        must(1 <= width <= row, "the width of a group")
        table, offsets_size = np.zeros(LEVELS, np.float32), 0
        if family == INTEGERS:
            must(third == 0, "a bias of integers")
        elif family == FLOATS:
            must(third <= LARGEST_BIAS, "the bias")
        elif family == TABLE:
            must(2 <= third <= LEVELS, "the number of levels")
            table[:third] = read_levels(reader, third)
        else:
            must(third in (SUM, ROUNDED_SUM, DIFFERENCE), "the formula")
            offsets_size = reader.number(4)
        sizes = row, height, width, scales_size, plain_size
        return cls(family, b, third, third, rounding, *sizes, table, offsets_size)


def read_levels(reader: Reader, n: int) -> np.ndarray:
    bits = np.frombuffer(reader.take(4 * n), "<u4")
    must(len(np.unique(bits)) == n, "two levels with the same bits")
    levels = bits.view("<f4")
    magnitude = np.abs(levels)
    in_range = (2.0**-16 <= magnitude) & (magnitude < 2.0**16)
    must((in_range | (levels == 0)).all(), "a level outside of its range")
    return levels


def decode_grid(payload: bytes, dtype: int, first: int, n: int, is_inner: bool = False) -> bytes:
    """Return the items of a block of `n`, the first of which has that number in its version."""
    must(dtype in ROUNDINGS, "a grid of another dtype")
    reader = Reader(payload)
    fields = GridFields.read(reader, dtype)
    group, n_groups = groups_of(fields, first, n)
    must(n_groups <= n, "more groups than items")
    scales = read_scales(reader.take(fields.scales_size), n_groups, fields, is_inner)
    offsets = np.zeros(n_groups, np.float32)
    if fields.family == OFFSETS:
        offsets = read_offsets(reader.take(fields.offsets_size), scales, fields, is_inner)
    scale, offset = scales[group], offsets[group]

    is_coded = scale != 0
    m = int(is_coded.sum())
    must(m > 0, "no coded item")
    plain = read_plain(reader.take(fields.plain_size), dtype, n - m)
    low = read_low_bits(reader, fields.b, m)
    mode = reader.number(1)
    symbols = decode_symbols(mode, reader.take(reader.left), m)

    items = np.empty(n, f"<u{WIDTHS[dtype]}")
    items[~is_coded] = plain
    levels, scale, offset = levels_of(fields, symbols, low), scale[is_coded], offset[is_coded]
    items[is_coded] = rounded(combined(levels, scale, offset, fields, dtype), fields, dtype)
    return items.tobytes()


# --- Groups --------------------------------------------------------------------------------------


def groups_of(fields: GridFields, first: int, n: int) -> tuple[np.ndarray, int]:
    """Return the place of each item's group among those of the block, and their number."""
    i = np.arange(first, first + n, dtype=np.int64)
    r, c = i // fields.row, i % fields.row
    first_band = first // fields.row // fields.height
    last_band = (first + n - 1) // fields.row // fields.height
    in_band = -(-fields.row // fields.width)
    place = (r // fields.height - first_band) * in_band + c // fields.width
    return place, (last_band - first_band + 1) * in_band


def read_scales(data: bytes, n: int, fields: GridFields, is_inner: bool) -> np.ndarray:
    is_difference = fields.family == OFFSETS and fields.formula == DIFFERENCE
    limits = SCALES_OF_DIFFERENCES if is_difference else RANGE
    return read_numbers(data, n, is_inner, limits, "a scale")


def read_offsets(data: bytes, scales: np.ndarray, fields: GridFields, is_inner: bool) -> np.ndarray:
    limits = OFFSETS_OF_DIFFERENCES if fields.formula == DIFFERENCE else RANGE
    offsets = read_numbers(data, len(scales), is_inner, limits, "an offset")
    must(((scales != 0) | (offsets == 0)).all(), "an offset of a group without a scale")
    return offsets


def read_numbers(
    data: bytes, n: int, is_inner: bool, limits: tuple[float, float], name: str
) -> np.ndarray:
    """Return float32 numbers, which may be a grid that is not itself an inner one."""
    modes = list(data[: WIDTHS[FLOAT32]])
    if modes == [GRID, JOINED, JOINED, JOINED] and not is_inner:
        items = decode_inner(data, n)
    else:
        items = decode_nested(data, WIDTHS[FLOAT32], n)
    bits = np.frombuffer(items, "<u4")
    numbers = bits.view("<f4")
    magnitude = np.abs(numbers)
    in_range = (limits[0] <= magnitude) & (magnitude < limits[1])
    must((in_range | (bits == 0)).all(), f"{name} outside of its range")
    return numbers


def decode_inner(data: bytes, n: int) -> bytes:
    """Decode a block that is a grid; joined planes have no size."""
    reader = Reader(data)
    reader.take(WIDTHS[FLOAT32])
    payload = reader.take(reader.number(4))
    must(reader.left == 0, "planes do not fill scales, offsets or plain items")
    return decode_grid(payload, FLOAT32, 0, n, is_inner=True)


def read_plain(data: bytes, dtype: int, n: int) -> np.ndarray:
    must(bool(data) == (n > 0), "the size of the plain items")
    width = WIDTHS[dtype]
    return np.frombuffer(decode_nested(data, width, n) if n else b"", f"<u{width}")


def decode_nested(data: bytes, width: int, n: int) -> bytes:
    """Decode a block that is part of a payload."""
    reader = Reader(data)
    modes = reader.take(width)
    must(all(mode in NESTED for mode in modes), "another mode of scales, offsets or plain items")
    uncoded = {STORED: n, CONSTANT: 1}
    sizes = [uncoded[mode] if mode in uncoded else reader.number(4) for mode in modes]
    payloads = [reader.take(size) for size in reversed(sizes)][::-1]
    must(reader.left == 0, "planes do not fill scales, offsets or plain items")
    planes = [DECODERS[mode](coded, n) for mode, coded in zip(modes, payloads, strict=True)]
    return join_planes(planes, by_byte=False)


# --- Codes ---------------------------------------------------------------------------------------


def read_low_bits(reader: Reader, b: int, m: int) -> np.ndarray:
    """Return the low bits of `m` codes."""
    low = np.zeros(m, np.int64)
    for w in (2, 1) if b == 3 else (b,) * (b > 0):
        low = low << w | read_part(reader, w, m)
    return low


def read_part(reader: Reader, w: int, m: int) -> np.ndarray:
    h = -(-m * w // 8)
    part = np.frombuffer(reader.take(h), np.uint8).astype(np.int64)
    j, mask = np.arange(m), (1 << w) - 1
    at, shift = j % h, w * (j // h)
    used = np.zeros(h, np.int64)
    np.bitwise_or.at(used, at, mask << shift)
    must((part & ~used == 0).all(), "a bit that no code has")
    return part[at] >> shift & mask


def decode_symbols(mode: int, payload: bytes, m: int) -> np.ndarray:
    must(mode in (*NESTED, ZSTANDARD), "another mode of the symbols")
    uncoded = {STORED: m, CONSTANT: 1}
    must(len(payload) == uncoded.get(mode, len(payload)), "the symbols do not fill the payload")
    return np.frombuffer(DECODERS[mode](payload, m), np.uint8).astype(np.int64) % LEVELS


# --- Levels --------------------------------------------------------------------------------------


def levels_of(fields: GridFields, s: np.ndarray, low: np.ndarray) -> np.ndarray:
    if fields.family == TABLE:
        return fields.table[s]
    if fields.family in (INTEGERS, OFFSETS):
        level = ((s << fields.b) + low - (16 << fields.b)).astype(np.float32)
        level[(s == 0) & (low == 0)] = -0.0
        return level
    m = fields.b - 1
    sign, p = low >> m, low & (1 << m) - 1
    q = p + (1 << m) * (s > 0)
    exponent = np.maximum(s, 1) - fields.bias - m
    magnitude = np.ldexp(q.astype(np.float32), exponent.astype(np.int32))
    return np.where(sign == 1, -magnitude, magnitude)


# --- Items ---------------------------------------------------------------------------------------


def combined(
    level: np.ndarray, scale: np.ndarray, offset: np.ndarray, fields: GridFields, dtype: int
) -> np.ndarray:
    """Return what is rounded to items."""
    if fields.family != OFFSETS:
        return level * scale
    if fields.formula == DIFFERENCE:
        return half_rounded(level - offset, fields, dtype) * scale
    product = level * scale
    if fields.formula == ROUNDED_SUM:
        product = half_rounded(product, fields, dtype)
    return product + offset


def half_rounded(x: np.ndarray, fields: GridFields, dtype: int) -> np.ndarray:
    form = {DIRECT: dtype, THROUGH_BINARY16: FLOAT16, THROUGH_BFLOAT16: BFLOAT16}[fields.rounding]
    return to_format(x, form)


def rounded(x: np.ndarray, fields: GridFields, dtype: int) -> np.ndarray:
    """Return the bits of items."""
    x = to_format(half_rounded(x, fields, dtype), dtype)
    if dtype == BFLOAT16:
        return x.view("<u4") >> 16
    return (x.astype("<f2") if dtype == FLOAT16 else x).view(f"<u{WIDTHS[dtype]}")


def to_format(x: np.ndarray, form: int) -> np.ndarray:
    """Round binary32 numbers that are not NaN to a format; return them as binary32 numbers."""
    assert x.dtype == np.float32
    if form == BFLOAT16:
        bits = x.view(np.uint32)
        return (bits + 0x7FFF + (bits >> 16 & 1) >> 16 << 16).view(np.float32)
    if form == FLOAT16:
        with np.errstate(over="ignore"):  # infinity is meant
            return x.astype(np.float16).astype(np.float32)
    return x
