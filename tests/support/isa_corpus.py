"""Digests of frames and of decoded bytes for one instruction set; `test_isa.py` compares them.

Run as a script it prints one JSON object: the instruction set in use, a digest of every frame
encoded, and one of everything that damaged frames gave: bytes, or an error's class and text. Its
argument N leaves out all but each N-th case.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from itertools import chain, islice, product

import numpy as np

from bf16codecs.errors import CodecError
from contents import SHAPES as FORMATS
from contents import (
    SIGNED,
    SUBNORMAL,
    falling,
    gaussian,
    in_super_blocks,
    lcg_bytes,
    lcg_words,
    matrix,
    on_grid,
    on_lines,
    pruned,
    weights,
    with_zeros,
)
from native_core import core

# Lengths around whole steps of 1, 2 and 4 groups of lanes, and around the strips between sums.
LENGTHS = (0, 1, 63, 64, 65, 127, 128, 1000, 4096, 5001, 8191, 32767, 32768, 40000, 131072, 150001)
SHAPES = ((20, 64), (60, 33), (150, 96), (90, 250), (7, 3000))
DAMAGES = 40


def contents(n: int) -> list[bytes]:
    """Return `n` items of two bytes: weights, also with outliers or zeros, noise, few values."""
    plain = weights(n)
    outliers = np.frombuffer(plain, "<u2").copy()
    outliers[::97] ^= 0x2000
    rare = np.frombuffer(lcg_bytes(n), np.uint8) < 3
    wide = np.frombuffer(lcg_bytes(n, 5), np.uint8).astype("<u2") % 24 << 7
    signed, mixed = (pruned(n, 0, 2, how).tobytes() for how in (SIGNED, SUBNORMAL))
    return [plain, outliers.tobytes(), lcg_bytes(2 * n), (rare * 300).astype("<u2").tobytes(),
            wide.tobytes(), signed, mixed]  # fmt: skip


def cases() -> Iterator[tuple[bytes, dict]]:
    """Yield contents and the options to encode them with."""
    for n in LENGTHS:
        for raw in contents(n):
            for codec, dtype, level in ((1, 0, 0), (2, 0, 0), (3, 0, 0), (3, 1, 0), (3, 0, 1)):
                yield raw, {"codec": codec, "dtype": dtype, "level": level}
    # Rows and columns of every length; blocks that begin and end anywhere in them.
    for dtype, (rows, columns) in product(range(6), SHAPES):
        for raw in (gaussian(rows, columns, dtype), matrix(rows, columns, dtype)):
            for row, block in ((columns, 0), (columns, 1024), (0, 4096), (columns, 16384)):
                yield raw, {"codec": 3, "dtype": dtype, "level": 1, "row": row, "block": block}
        raw = with_zeros(gaussian(rows, columns, dtype), dtype)
        yield raw, {"codec": 3, "dtype": dtype, "level": 1, "row": columns, "block": 2048}


GRIDS = ((1, 0), (7, 128), (7, 16), (15, 32), (31, 16), (127, 0), (127, 128))


def grid_cases() -> Iterator[tuple[bytes, dict]]:
    """Yield numbers on grids, the last rows of which are not."""
    for dtype, (most, width) in product(range(3), GRIDS):
        for rows, columns in ((16, 256), (90, 512), (3, 4096)):
            raw = on_grid(rows, columns, dtype, most, width)
            rest = gaussian(2, columns, dtype)
            for codec, level in ((3, 0), (2, 0), (3, 1)):
                yield raw + rest, {"codec": codec, "dtype": dtype, "level": level, "row": columns}


def offset_cases() -> Iterator[tuple[bytes, dict]]:
    """Yield integers with offsets, the last rows of which are plain."""
    formulas = ("sum", 15, 32), ("sum", 31, 32), ("rounded sum", 15, 128), ("difference", 7, 64)
    for dtype, (formula, most, width) in product(range(3), formulas):
        for rows, columns in ((16, 256), (90, 512)):
            raw = on_lines(rows, columns, dtype, formula, most, width)
            how = {"codec": 3, "dtype": dtype, "row": columns}
            yield raw + gaussian(2, columns, dtype), how
    for dtype in range(3):
        yield in_super_blocks(90, 512, dtype), {"codec": 3, "dtype": dtype, "row": 512}


def near(base: bytes, dtype: int, seed: int, shift: int, seldom: int) -> bytes:
    """Return items near others: one of `seldom` differs, by some bits; a few, by their sign."""
    width = FORMATS[dtype][0]
    items = np.frombuffer(base, f"<u{width}").astype(np.uint64)
    n = len(items)
    words = lcg_words(n, seed).astype(np.uint64)
    spread = np.uint64(shift) - np.minimum(falling(n, seed + 1), shift).astype(np.uint64)
    change = (words * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(4)) % (np.uint64(1) << spread)
    change[lcg_words(n, seed + 2) >> np.uint32(16) >= 65536 // seldom] = 0
    items = np.where(words & np.uint64(1), items + change, items - change)
    items[5::37] ^= np.uint64(1 << 8 * width - 1)
    return (items & np.uint64((1 << 8 * width) - 1)).astype(f"<u{width}").tobytes()


DIFFERENCES = ((3, 1), (9, 1), (14, 1), (4, 20), (60, 3))  # bits, and how seldom


def difference_cases() -> Iterator[tuple[bytes, dict]]:
    """Yield the same for differences: to a base, and between versions."""
    for dtype in range(6):
        width = FORMATS[dtype][0]
        for i, n in enumerate((1, 64, 1000, 4096, 5001, 8191, 32767, 33000, 66001)):
            base = matrix(-(-n // 40), 40, dtype)[: n * width]
            for seed, (bits, seldom) in enumerate(DIFFERENCES):
                raw = near(base, dtype, seed, min(bits, 8 * width), seldom)
                codec, level = ((3, 0), (3, 1), (2, 0))[(i + seed) % 3]
                how = {"codec": codec, "dtype": dtype, "level": level, "row": 40}
                yield raw, {**how, "base": base, "block": 1 << 12 if seed % 2 else 0}
                if n < 9000:
                    yield base + raw + near(raw, dtype, 50, 3, 2), {**how, "steps": 3}


def cases_of_every_sample() -> Iterator[tuple[bytes, dict]]:
    """Yield blocks of four groups of lanes, every item of 16 bits, and pairs without likeness."""
    base = matrix(6600, 40, 4)
    yield near(base, 4, 7, 4, 2), {"codec": 3, "dtype": 4, "base": base, "block": 1 << 22}
    values = np.arange(65536, dtype="<u2")
    shuffled = values[np.argsort(lcg_words(65536), kind="stable")]
    for dtype in (0, 1):
        yield shuffled.tobytes(), {"codec": 3, "dtype": dtype, "base": values.tobytes()}
        yield lcg_bytes(9000), {"codec": 3, "dtype": dtype, "base": lcg_bytes(9000, 5)}


def damaged(frame: bytes, rng: random.Random) -> bytes:
    """Flip a few bits behind the head, so that a plane fails."""
    data = bytearray(frame)
    start = core.Index(frame).offsets[0]
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(start, len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def outcome(frame: bytes, base: bytes | None) -> bytes:
    """Return the decoded bytes, or the error's class and text."""
    try:
        return core.decode(frame, base)
    except CodecError as e:
        return f"{type(e).__name__}: {e}".encode()


def main() -> None:
    """Print the digests."""
    encoded, decoded = hashlib.sha256(), hashlib.sha256()
    rng = random.Random(0)
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    sample = islice(
        chain(cases(), difference_cases(), grid_cases(), offset_cases()), 0, None, every
    )
    for raw, how in chain(sample, cases_of_every_sample()):
        frame, base = core.encode(raw, checksum=False, **how), how.get("base")
        encoded.update(frame)
        encoded.update(core.checksum(frame).to_bytes(4, "little"))
        assert core.decode(frame, base) == raw
        damages = DAMAGES if len(raw) < 20_000 else 4
        for _ in range(damages if raw else 0):
            decoded.update(outcome(damaged(frame, rng), base))
    print(
        json.dumps(
            {
                "isa": core.active_isa(),
                "encoded": encoded.hexdigest(),
                "decoded": decoded.hexdigest(),
            }
        )
    )


if __name__ == "__main__":
    main()
