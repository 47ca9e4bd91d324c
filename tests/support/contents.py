"""Test data from integer arithmetic alone, the same with every library and on every platform."""

from __future__ import annotations

import numpy as np


def lcg_words(n: int, seed: int = 0) -> np.ndarray:
    """Return `n` numbers of 32 bits, from Knuth's 64-bit linear congruential generator."""
    multiplier, increment = 6364136223846793005, 1442695040888963407
    # x[i] = m^i x[0] + (m^(i-1) + ... + 1) c, all modulo 2^64, without a loop.
    powers = np.cumprod(np.full(n, multiplier, np.uint64), dtype=np.uint64)
    geometric = np.cumsum(np.concatenate([np.ones(1, np.uint64), powers[:-1]]), dtype=np.uint64)
    x = powers * np.uint64(seed + 1) + geometric * np.uint64(increment)
    return (x >> np.uint64(32)).astype(np.uint32)


def lcg_bytes(n: int, seed: int = 0) -> bytes:
    """Return `n` random bytes."""
    return (lcg_words(n, seed) >> 24).astype(np.uint8).tobytes()


def falling(n: int, seed: int = 0) -> np.ndarray:
    """Return `n` integers: half of them are 0, a quarter 1, and so on."""
    word = lcg_words(n, seed)
    return sum((word & (1 << bits) - 1 == 0).astype(np.uint32) for bits in range(1, 20))


def weights(n: int, seed: int = 0) -> bytes:
    """Return `n` bfloat16 numbers that look like a model's: exponents fall off geometrically."""
    exponent = 121 - falling(n, seed)
    sign_and_mantissa = lcg_words(n, seed + 1) >> 24
    return (
        ((sign_and_mantissa & 128) << 8 | exponent << 7 | sign_and_mantissa & 127)
        .astype("<u2")
        .tobytes()
    )


SHAPES = [(2, 8), (2, 5), (4, 8), (8, 11), (1, 4), (1, 5)]  # width and exponent bits of dtypes


def matrix(rows: int, columns: int, dtype: int = 0) -> bytes:
    """Return numbers of a data type whose scale differs from row to row and column to column."""
    width, exponent_bits = SHAPES[dtype]
    n, other_bits = rows * columns, 8 * width - exponent_bits
    highest = (3 << exponent_bits) // 4
    exponents = highest - steps(rows, columns) - falling(n).astype(np.int64)
    rotated = lcg_words(n, 1).astype(np.uint64) << np.uint64(32) | lcg_words(n, 2)
    rotated >>= np.uint64(64 - other_bits)
    rotated |= np.maximum(exponents, 0).astype(np.uint64) << np.uint64(other_bits)
    return rotated_right(rotated, width)


def steps(rows: int, columns: int) -> np.ndarray:
    """Return a scale for each item of a matrix, 0 to 7 steps."""
    return (np.arange(rows)[:, None] * 7 % 5 + np.arange(columns) * 3 % 4).ravel()


def rotated_right(rotated: np.ndarray, width: int) -> bytes:
    """Return numbers from their bits with the sign as the lowest one."""
    items = rotated >> np.uint64(1) | (rotated & np.uint64(1)) << np.uint64(8 * width - 1)
    return items.astype(f"<u{width}").tobytes()


def gaussian(rows: int, columns: int, dtype: int = 0, quarters: int = 1) -> bytes:
    """Return a matrix of nearly normal numbers, whose scales differ by quarters of an octave."""
    width, exponent_bits = SHAPES[dtype]
    n = rows * columns
    sums = sum((lcg_words(n, seed) >> 8).astype(np.int64) for seed in range(12)) - (6 << 24)
    scales = quarters * steps(rows, columns)
    powers = np.array([256, 304, 362, 431])  # of 2^(1/4)
    magnitudes = (abs(sums) | 1) * powers[scales % 4] << scales // 4
    bits = magnitudes.astype(np.float64).view(np.uint64)  # exactly: they are below 2^53
    exponents = (bits >> np.uint64(52)).astype(np.int64)
    exponents -= exponents.max() - (15 << exponent_bits) // 16
    fraction = bits % np.uint64(1 << 52) >> np.uint64(53 - 8 * width + exponent_bits)
    rotated = np.maximum(exponents, 0).astype(np.uint64) << np.uint64(8 * width - exponent_bits)
    rotated |= fraction << np.uint64(1) | (sums < 0).astype(np.uint64)
    return rotated_right(rotated, width)


def with_zeros(raw: bytes, dtype: int) -> bytes:
    """Set every 41st item to 0: level "best" codes many zeros in the scale mode."""
    items = np.frombuffer(raw, f"<u{SHAPES[dtype][0]}").copy()
    items[::41] = 0
    return items.tobytes()


PLAIN, SIGNED, SUBNORMAL = range(3)


def pruned(n: int, dtype: int = 0, one_of: int = 2, how: int = PLAIN) -> np.ndarray:
    """Return weights of which one of `one_of` is not zero.

    `how` is SIGNED for zeros that have the sign of what they were, and SUBNORMAL if some of them
    are the smallest numbers instead.
    """
    width = SHAPES[dtype][0]
    # Another generator than that of the weights, whose sequences are not independent.
    mixed = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(40)
    is_zero = mixed % np.uint64(one_of) != 0
    items = np.frombuffer(matrix(-(-n // 64) or 1, 64, dtype), f"<u{width}")[:n].copy()
    sign = items & items.dtype.type(1 << 8 * width - 1)
    items[is_zero] = sign[is_zero] if how != PLAIN else 0
    if how == SUBNORMAL:
        items[np.flatnonzero(is_zero)[::300]] |= items.dtype.type(3)
    return items


def column_bytes(n: int, step: int) -> bytes:
    """Return bytes that depend on their column of 64, but for one in 64."""
    noise = lcg_words(n) >> 16
    others = np.where(noise % 64 == 0, 1 + noise // 64 % 3, 0)
    return (80 - np.arange(n) % 64 * 3 % 7 * step + others).astype(np.uint8).tobytes()


def choose(n: int, symbols: list[int], odds: list[int], seed: int = 0) -> np.ndarray:
    """Return `n` symbols; `odds` are their probabilities, in any unit."""
    bounds = np.cumsum(odds)
    return np.array(symbols)[np.searchsorted(bounds, lcg_words(n, seed) % bounds[-1], "right")]


def on_grid(rows: int, columns: int, dtype: int = 0, most: int = 7, width: int = 0) -> bytes:
    """Return integers of up to `most` times a scale for each `width` items of a row, rounded.

    The data type is bfloat16 (0), float16 (1) or float32 (2). A group's largest integer is `most`.
    """
    width = width or columns
    groups = rows * columns // width
    bits = sum((lcg_words(rows * columns, seed) >> 16) % (most + 1) for seed in range(4))
    codes = np.clip(bits.astype(np.int64) - 2 * most, -most, most).reshape(groups, width)
    codes[:, 3] = most
    scales = (lcg_words(groups, 9) >> 8 | 1 << 23).astype(np.float32) * np.float32(2**-30)
    return rounded(codes.astype(np.float32) * scales[:, None], dtype)


def rounded(numbers: np.ndarray, dtype: int) -> bytes:
    """Return float32 numbers as bfloat16 (0), float16 (1) or float32 (2)."""
    if dtype == 2:
        return numbers.astype("<f4").tobytes()
    if dtype == 1:
        return numbers.astype("<f2").tobytes()
    words = numbers.view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype("<u2").tobytes()


def half_rounded(numbers: np.ndarray, dtype: int) -> np.ndarray:
    """Return float32 numbers, rounded to a data type."""
    items = np.frombuffer(rounded(numbers, dtype), ("<u2", "<f2", "<f4")[dtype])
    if dtype == 0:
        items = (items.astype(np.uint32) << 16).view(np.float32)
    return items.astype(np.float32).reshape(numbers.shape)


def on_lines(
    rows: int, columns: int, dtype: int, formula: str, most: int = 15, width: int = 32
) -> bytes:
    """Return integers of 0 to `most` with a scale and an offset for each `width` items of a row.

    The formula is "sum", "rounded sum" or "difference".
    """
    groups = rows * columns // width
    codes = integers(groups, width, most).astype(np.float32)
    fractions = [(lcg_words(groups, seed) >> 8 | 1 << 23)[:, None] for seed in (9, 10)]
    scale, share = (x.astype(np.float32) * np.float32(2**-24) for x in fractions)
    scale *= np.float32(2**-6)
    if formula == "difference":
        zero = half_rounded(share * np.float32(most) - np.float32(4), dtype)
        return rounded(half_rounded(codes - zero, dtype) * half_rounded(scale, dtype), dtype)
    of = 1 if formula == "sum" else dtype
    offset = half_rounded(share * scale * np.float32(-most), of)
    products = codes * half_rounded(scale, of)
    if formula == "rounded sum":
        products = half_rounded(products, dtype)
    return rounded(products + offset, dtype)


def in_super_blocks(rows: int, columns: int, dtype: int = 2) -> bytes:
    """Return what GGUF's Q4_K is: each 256 items have scales and offsets that are integers."""
    groups = rows * columns // 32
    codes = integers(groups, 32, 15).astype(np.float32)
    numbers = []
    for seed, exponent in ((9, 38), (10, 35)):
        units = (lcg_words(groups // 8, seed) >> 8 | 1 << 23).astype(np.float32)
        units = half_rounded(units * np.float32(2.0**-exponent), 1)
        of_groups = (lcg_words(groups, seed + 2) >> 16) % 32 + 32
        of_groups[::8] = 63
        numbers.append((np.repeat(units, 8) * of_groups.astype(np.float32))[:, None])
    scale, minimum = numbers
    return rounded(codes * scale - minimum, dtype)


def integers(groups: int, width: int, most: int) -> np.ndarray:
    """Return integers from 0 to `most`: each group has both ends, and most lie between."""
    words = sum((lcg_words(groups * width, seed) >> 16) % (most + 1) for seed in range(4))
    codes = np.clip(words.astype(np.int64) - 3 * most // 2, 0, most).reshape(groups, width)
    codes[:, 3], codes[:, 7] = most, 0
    return codes
