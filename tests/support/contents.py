"""Bytes to test with, from integer arithmetic alone: the same with every library and platform."""

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
    """Return `n` numbers, 0 in half of the cases, 1 in a quarter, and so on."""
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


def matrix(rows: int, columns: int, dtype: int = 0) -> bytes:
    """Return numbers of a data type whose scale differs from row to row and column to column."""
    width, exponent_bits = [(2, 8), (2, 5), (4, 8), (8, 11), (1, 4), (1, 5)][dtype]
    n, other_bits = rows * columns, 8 * width - exponent_bits
    shifts = np.arange(rows)[:, None] * 7 % 5 + np.arange(columns) * 3 % 4
    highest = (3 << exponent_bits) // 4
    exponents = highest - shifts.ravel() - falling(n).astype(np.int64)
    rotated = lcg_words(n, 1).astype(np.uint64) << np.uint64(32) | lcg_words(n, 2)
    rotated >>= np.uint64(64 - other_bits)
    rotated |= np.maximum(exponents, 0).astype(np.uint64) << np.uint64(other_bits)
    items = rotated >> np.uint64(1) | (rotated & np.uint64(1)) << np.uint64(8 * width - 1)
    return items.astype(f"<u{width}").tobytes()


def choose(n: int, symbols: list[int], odds: list[int], seed: int = 0) -> np.ndarray:
    """Return `n` symbols; `odds` are their probabilities, in any unit."""
    bounds = np.cumsum(odds)
    return np.array(symbols)[np.searchsorted(bounds, lcg_words(n, seed) % bounds[-1], "right")]
