"""Pairs of contents: a base, and items to encode against it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from contents import lcg_words, weights

WIDTHS = (2, 2, 4, 8, 1, 1)  # of the data types, by number
BELOW_EXPONENT = (7, 10, 23, 52, 3, 2)  # bits of their fractions
CODECS = {"split": (1, 0), "huffman": (2, 0), "arithmetic": (3, 0), "best": (3, 1), "zstd": (4, 3)}

Pair = tuple[bytes, bytes]


def unsigned(data: bytes | np.ndarray, dtype: int) -> np.ndarray:
    """Return a copy of items as unsigned integers of their width."""
    return np.frombuffer(data, f"<u{WIDTHS[dtype]}").copy()


def numbers(rng: np.random.Generator, n: int, dtype: int) -> np.ndarray:
    """Return `n` normal numbers of a data type, as bits."""
    width, fraction = WIDTHS[dtype], BELOW_EXPONENT[dtype]
    bits = rng.normal(0, 0.05, n).view(np.uint64)
    exponent = (bits >> np.uint64(52) & np.uint64(0x7FF)).astype(np.int64) - 1023
    bias = (1 << 8 * width - 2 - fraction) - 1
    exponent = np.clip(exponent + bias, 0, 2 * bias).astype(np.uint64)
    found = bits >> np.uint64(63) << np.uint64(8 * width - 1)
    found |= exponent << np.uint64(fraction)
    found |= bits % np.uint64(1 << 52) >> np.uint64(52 - fraction)
    return found.astype(f"<u{width}")


def near(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    """Return numbers, and others that differ by a few units in their last places."""
    base = numbers(rng, n, dtype)
    spread = 1 << rng.integers(0, 4 * WIDTHS[dtype])
    return base.tobytes(), (base + rng.integers(0, spread, n).astype(base.dtype)).tobytes()


def step(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    """Return numbers before and after a step of a size that does not depend on them."""
    base = rng.normal(0, 0.05, n)
    after = base + rng.normal(0, 10.0 ** rng.integers(-6, -1), n)
    return _rounded(base, dtype), _rounded(after, dtype)


def _rounded(values: np.ndarray, dtype: int) -> bytes:
    """Cut float64 numbers to a data type."""
    if dtype == 3:
        return values.astype("<f8").tobytes()
    if dtype == 2:
        return values.astype("<f4").tobytes()
    if dtype == 0:
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    half = values.astype("<f2")
    return half.tobytes() if dtype == 1 else (half.view("<u2") >> 8).astype(np.uint8).tobytes()


def sparse(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    base = numbers(rng, n, dtype)
    items = base.copy()
    at = rng.integers(0, max(n, 1), n // 100)
    items[at] ^= rng.integers(0, 256, len(at)).astype(base.dtype)
    return base.tobytes(), items.tobytes()


def unrelated(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    return numbers(rng, n, dtype).tobytes(), numbers(rng, n, dtype).tobytes()


def noise(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    return rng.bytes(n * WIDTHS[dtype]), rng.bytes(n * WIDTHS[dtype])


def constant(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    base, item = (rng.bytes(WIDTHS[dtype]) * n for _ in range(2))
    return base, item


def cleared(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    """Return numbers, and zeros, or the other way round."""
    pair = numbers(rng, n, dtype).tobytes(), bytes(n * WIDTHS[dtype])
    return pair if rng.random() < 0.5 else pair[::-1]


def integers(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    """Return integers around zero: most bits of two neighbours differ where the sign does."""
    base = rng.integers(-50, 50, n)
    after = base + rng.integers(-3, 4, n)
    return tuple(v.astype(f"<i{WIDTHS[dtype]}").tobytes() for v in (base, after))


def identical(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    base = numbers(rng, n, dtype).tobytes()
    return base, base


def special(dtype: int) -> np.ndarray:
    """Return zeros, infinities, NaNs, subnormal, largest and least numbers, of both signs."""
    width, fraction = WIDTHS[dtype], BELOW_EXPONENT[dtype]
    infinity = ((1 << 8 * width - 1 - fraction) - 1) << fraction
    found = [0, 1, 2, (1 << fraction) - 1, 1 << fraction, infinity - 1, infinity, infinity + 1]
    found += [infinity + (1 << fraction) - 1, infinity + (1 << fraction - 1), infinity >> 1]
    sign = 1 << 8 * width - 1
    return np.array([*found, *(number | sign for number in found)], f"<u{width}")


def strange(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    """Return numbers in which special ones stand for some, independently in both."""
    found = []
    items = numbers(rng, n, dtype)
    for _ in range(2):
        items = items.copy()
        is_special = rng.random(n) < rng.choice([0.02, 0.5])
        items[is_special] = rng.choice(special(dtype), int(is_special.sum()))
        found.append(items.tobytes())
    return found[0], found[1]


def some_rows(rng: np.random.Generator, n: int, dtype: int) -> Pair:
    """Return rows of numbers of which some change, and some are cleared, as in an embedding."""
    base = numbers(rng, n, dtype)
    items = base.copy()
    for first in range(0, n, 100):
        kind = rng.integers(0, 4)
        row = slice(first, first + 100)
        if kind == 1:
            items[row] = 0
        elif kind == 2:
            items[row] += rng.integers(0, 9, len(items[row])).astype(items.dtype)
    return base.tobytes(), items.tobytes()


PAIRS: list[Callable[[np.random.Generator, int, int], Pair]] = [
    near, step, sparse, unrelated, noise, constant, cleared, integers, identical, strange,
    some_rows,
]  # fmt: skip


def moved(n: int, dtype: int = 0, seed: int = 7, most: int = 8) -> Pair:
    """Return weights, and others near them, without NumPy's random numbers: always the same."""
    width = WIDTHS[dtype]
    base = unsigned(weights(n * width // 2 + 1)[: n * width], dtype)
    change = (lcg_words(n, seed) >> np.uint32(24)) % np.uint32(most)
    return base.tobytes(), (base + change.astype(base.dtype)).tobytes()
