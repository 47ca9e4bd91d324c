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
    HUFFMAN,
    RANS_PAIRS,
    RANS_WIDE,
    STORED,
    ZSTANDARD,
    Reader,
    join_planes,
    must,
)

BFLOAT16, FLOAT16, FLOAT32 = range(3)  # dtypes
INTEGERS, FLOATS, TABLE = range(3)  # families
DIRECT, THROUGH_BINARY16, THROUGH_BFLOAT16 = range(3)  # roundings
ROUNDINGS = {
    BFLOAT16: (DIRECT, THROUGH_BINARY16),
    FLOAT16: (DIRECT,),
    FLOAT32: (DIRECT, THROUGH_BINARY16, THROUGH_BFLOAT16),
}
LEVELS = 32  # of a table, at most
LARGEST_BIAS = 15
NESTED = (STORED, CONSTANT, HUFFMAN, RANS_PAIRS, RANS_WIDE)  # modes of scales and plain items

# --- Payload -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridFields:
    """The fields in front of the scales."""

    family: int
    b: int
    bias: int
    rounding: int
    row: int
    height: int
    width: int
    scales_size: int
    plain_size: int
    table: np.ndarray  # of 32 levels

    @classmethod
    def read(cls, reader: Reader, dtype: int) -> GridFields:
        family, b, third, rounding, _label = (reader.number(1) for _ in range(5))
        row, height, width, scales_size, plain_size = (reader.number(4) for _ in range(5))
        must(family in (INTEGERS, FLOATS, TABLE), "the family")
        must(b <= 4, "b is above 4")
        must(b >= 1 or family != FLOATS, "floats without a sign")
        must(b == 0 or family != TABLE, "low bits of a table")
        must(rounding in ROUNDINGS[dtype], "the rounding")
        must(row >= 1, "a row of no items")
        must(height >= 1, "a group of no rows")
        must(1 <= width <= row, "the width of a group")
        table = np.zeros(LEVELS, np.float32)
        if family == INTEGERS:
            must(third == 0, "a bias of integers")
        elif family == FLOATS:
            must(third <= LARGEST_BIAS, "the bias")
        else:
            must(2 <= third <= LEVELS, "the number of levels")
            table[:third] = read_levels(reader, third)
        sizes = row, height, width, scales_size, plain_size
        return cls(family, b, third, rounding, *sizes, table)


def read_levels(reader: Reader, n: int) -> np.ndarray:
    bits = np.frombuffer(reader.take(4 * n), "<u4")
    must(len(np.unique(bits)) == n, "two levels with the same bits")
    levels = bits.view("<f4")
    magnitude = np.abs(levels)
    in_range = (2.0**-16 <= magnitude) & (magnitude < 2.0**16)
    must((in_range | (levels == 0)).all(), "a level outside of its range")
    return levels


def decode_grid(payload: bytes, dtype: int, first: int, n: int) -> bytes:
    """Return the items of a block of `n`, the first of which has that number in its version."""
    must(dtype in ROUNDINGS, "a grid of another dtype")
    reader = Reader(payload)
    fields = GridFields.read(reader, dtype)
    group, n_groups = groups_of(fields, first, n)
    must(n_groups <= n, "more groups than items")
    scale = read_scales(reader.take(fields.scales_size), n_groups)[group]

    is_coded = scale != 0
    m = int(is_coded.sum())
    must(m > 0, "no coded item")
    plain = read_plain(reader.take(fields.plain_size), dtype, n - m)
    low = read_low_bits(reader, fields.b, m)
    mode = reader.number(1)
    symbols = decode_symbols(mode, reader.take(reader.left), m)

    items = np.empty(n, f"<u{WIDTHS[dtype]}")
    items[~is_coded] = plain
    product = levels_of(fields, symbols, low) * scale[is_coded]
    items[is_coded] = rounded(product, fields.rounding, dtype)
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


def read_scales(data: bytes, n: int) -> np.ndarray:
    bits = np.frombuffer(decode_nested(data, WIDTHS[FLOAT32], n), "<u4")
    scales = bits.view("<f4")
    magnitude = np.abs(scales)
    in_range = (2.0**-100 <= magnitude) & (magnitude < 2.0**90)
    must((in_range | (bits == 0)).all(), "a scale outside of its range")
    return scales


def read_plain(data: bytes, dtype: int, n: int) -> np.ndarray:
    must(bool(data) == (n > 0), "the size of the plain items")
    width = WIDTHS[dtype]
    return np.frombuffer(decode_nested(data, width, n) if n else b"", f"<u{width}")


def decode_nested(data: bytes, width: int, n: int) -> bytes:
    """Decode a block that is part of a payload."""
    reader = Reader(data)
    modes = reader.take(width)
    must(all(mode in NESTED for mode in modes), "another mode of the scales or the plain items")
    uncoded = {STORED: n, CONSTANT: 1}
    sizes = [uncoded[mode] if mode in uncoded else reader.number(4) for mode in modes]
    payloads = [reader.take(size) for size in reversed(sizes)][::-1]
    must(reader.left == 0, "planes do not fill the scales or the plain items")
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
    if fields.family == INTEGERS:
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


def rounded(product: np.ndarray, rounding: int, dtype: int) -> np.ndarray:
    """Return the bits of items."""
    assert product.dtype == np.float32
    if rounding == THROUGH_BINARY16:
        product = to_binary16(product).astype(np.float32)
    elif rounding == THROUGH_BFLOAT16:
        product = (to_bfloat16(product) << 16).view(np.float32)
    if dtype == BFLOAT16:
        return to_bfloat16(product)
    return (to_binary16(product) if dtype == FLOAT16 else product).view(f"<u{WIDTHS[dtype]}")


def to_binary16(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # infinity is meant
        return x.astype(np.float16)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Return the upper halves of binary32 numbers that are not NaN, rounded to even."""
    bits = x.view(np.uint32)
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16
