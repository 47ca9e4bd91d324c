"""Digests of what this instruction set encodes and decodes; `test_isa.py` compares them.

Run as a script it prints one JSON object: the instruction set in use, a digest of every frame
encoded, and one of everything that damaged frames gave: bytes, or an error's class and text.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from itertools import product

import numpy as np

from bf16codecs import _core
from bf16codecs.errors import CodecError
from contents import gaussian, lcg_bytes, matrix, weights, with_zeros

# Lengths around whole steps of 1, 2 and 4 groups of lanes, and around the strips between sums.
LENGTHS = (0, 1, 63, 64, 65, 127, 128, 1000, 4096, 5001, 8191, 32767, 32768, 40000, 131072, 150001)
SHAPES = ((20, 64), (60, 33), (150, 96), (90, 250), (7, 3000))
DAMAGES = 40


def contents(n: int) -> list[bytes]:
    """Return `n` items of two bytes: weights, weights with outliers, noise, few and rare values."""
    plain = weights(n)
    outliers = np.frombuffer(plain, "<u2").copy()
    outliers[::97] ^= 0x2000
    rare = np.frombuffer(lcg_bytes(n), np.uint8) < 3
    wide = np.frombuffer(lcg_bytes(n, 5), np.uint8).astype("<u2") % 24 << 7
    return [plain, outliers.tobytes(), lcg_bytes(2 * n), (rare * 300).astype("<u2").tobytes(),
            wide.tobytes()]  # fmt: skip


def cases() -> Iterator[tuple[bytes, dict]]:
    """Yield what to encode, and how."""
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


def damaged(frame: bytes, rng: random.Random) -> bytes:
    """Flip a few bits behind the head, so that a plane fails."""
    data = bytearray(frame)
    start = _core.Index(frame).offsets[0]
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(start, len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def outcome(frame: bytes) -> bytes:
    """Return the decoded bytes, or the error's class and text."""
    try:
        return _core.decode(frame)
    except CodecError as e:
        return f"{type(e).__name__}: {e}".encode()


def main() -> None:
    """Print the digests."""
    encoded, decoded = hashlib.sha256(), hashlib.sha256()
    rng = random.Random(0)
    for raw, how in cases():
        frame = _core.encode(raw, checksum=False, **how)
        encoded.update(frame)
        encoded.update(_core.checksum(frame).to_bytes(4, "little"))
        assert _core.decode(frame) == raw
        damages = DAMAGES if len(raw) < 20_000 else 4
        for _ in range(damages if raw else 0):
            decoded.update(outcome(damaged(frame, rng)))
    print(
        json.dumps(
            {
                "isa": _core.active_isa(),
                "encoded": encoded.hexdigest(),
                "decoded": decoded.hexdigest(),
            }
        )
    )


if __name__ == "__main__":
    main()
