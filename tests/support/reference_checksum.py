"""The checksum of the reference decoder, and the digest that it is folded from."""

from __future__ import annotations

import numpy as np

M64 = (1 << 64) - 1


def rotate_left(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & M64


def digest(data: bytes) -> int:
    padded = data + bytes(-len(data) % 128)
    a, c = np.zeros((2, 16), np.uint64)
    for v in np.frombuffer(padded, "<u8").reshape(-1, 16):
        a = a + v
        c = (c << np.uint64(23) | c >> np.uint64(41)) + a
    h = len(data)
    for z in np.stack([a, c], axis=1).ravel().tolist():
        h = rotate_left(h ^ z, 29) * 0x9E3779B97F4A7C15 & M64
    return h


def checksum(data: bytes) -> int:
    h = digest(data)
    return (h ^ h >> 32) & 0xFFFFFFFF
