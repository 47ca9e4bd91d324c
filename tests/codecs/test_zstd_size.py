"""BF16Zstd's frames are not larger than shuffled bytes in Zstandard."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest

from bf16codecs import BF16Zstd, inspect
from looping import for_each
from tiers import by_tier


@pytest.fixture(scope="module")
def weights(demo_model) -> bytes:
    """All weights of a small trained model, as one block of 1 MB."""
    content = demo_model.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


@for_each("level", by_tier([1, 3, 4, 9, 12, 19], range(1, 23)))
def test_no_larger_than_shuffle_and_zstandard(weights, level):
    by_hand = numcodecs.Zstd(level).encode(
        numcodecs.Shuffle(2).encode(np.frombuffer(weights, "u1"))
    )
    codec = BF16Zstd(level)
    frame = codec.encode(weights)
    assert len(frame) < len(by_hand)
    assert codec.decode(frame) == weights


def test_block_sizes():
    for dtype, level, items in (
        ("bfloat16", 3, 1 << 19),
        ("float16", 12, 1 << 19),
        ("bfloat16", 4, 1 << 18),
        ("bfloat16", 19, 1 << 18),
        ("float32", 3, 1 << 17),
    ):
        assert inspect(BF16Zstd(level, dtype).encode(b""))["block_items"] == items
