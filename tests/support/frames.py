"""Frames of every kind to damage, and checks that every reader refuses them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import bf16codecs
from bf16codecs.errors import CodecError
from contents import SIGNED, gaussian, matrix, pruned, weights, with_zeros
from native_core import core

HEADER = 24
SPLIT, HUFFMAN, ARITHMETIC, ZSTD = 1, 2, 3, 4
BFLOAT16, FLOAT32, FLOAT8 = 0, 2, 4

#: Codec, data type, content and options of each.
FRAMES: dict[str, tuple[int, int, Callable[[], bytes], dict[str, int]]] = {
    "split": (SPLIT, BFLOAT16, lambda: weights(400) + b"t", {}),
    "huffman": (HUFFMAN, BFLOAT16, lambda: weights(600), {}),
    "arithmetic": (ARITHMETIC, BFLOAT16, lambda: weights(700) + b"t", {}),
    "arithmetic, blocks": (ARITHMETIC, BFLOAT16, lambda: weights(1000) + b"t", {"block": 256}),
    "arithmetic, wide": (ARITHMETIC, FLOAT8, lambda: weights(1500), {}),
    "sparse": (ARITHMETIC, FLOAT32, lambda: pruned(700, 2, 2, SIGNED).tobytes() + b"t", {}),
    "zstd": (ZSTD, BFLOAT16, lambda: weights(600), {"level": 3}),
    "scale model": (
        ARITHMETIC, FLOAT8, lambda: with_zeros(matrix(60, 64, 4), 4), {"level": 1, "row": 64}
    ),
    "tiles": (ARITHMETIC, FLOAT8, lambda: gaussian(30, 64, 4), {"level": 1, "row": 64}),
    "tiles, joined": (
        ARITHMETIC, BFLOAT16, lambda: gaussian(11, 100) + b"t", {"level": 1, "row": 100}
    ),
    "constant": (ARITHMETIC, FLOAT32, lambda: bytes(4003), {"block": 256}),
    "tail alone": (HUFFMAN, FLOAT32, lambda: b"abc", {}),
    "empty": (HUFFMAN, FLOAT32, bytes, {}),
}  # fmt: skip


def make(name: str, **more) -> tuple[bytes, bytes]:
    codec, dtype, content, options = FRAMES[name]
    raw = content()
    return core.encode(raw, codec, dtype, **{**options, **more}), raw


def flips(frame: bytes, first: int, last: int, step: int = 1):
    """Yield a frame with each bit of bytes [first, last), or each step-th, flipped."""
    for bit in range(8 * first, 8 * last, step):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def version_of(frame: bytes) -> int:
    return frame[4]


def has_model(frame: bytes) -> bool:
    return bool(frame[7] & 64)


def refuse(frame: bytes, error: type[CodecError]) -> None:
    """Check that everything that takes a frame raises exactly `error`."""
    out = np.empty(64, np.uint8)
    for call in (
        lambda: bf16codecs.decode(frame),
        lambda: bf16codecs.inspect(frame),
        lambda: core.decode(frame),
        lambda: core.decode_into(frame, out),
        lambda: core.decode_blocks(frame, 0, 1, out),
    ):
        with pytest.raises(CodecError) as caught:
            call()
        assert caught.type is error


def refuse_head(frame: bytes, error: type[CodecError]) -> None:
    """Check that opening the index of its blocks raises the error as well."""
    refuse(frame, error)
    with pytest.raises(CodecError) as caught:
        core.Index(frame)
    assert caught.type is error
