"""Blocks that are decoded alone, and ranges of them."""

from __future__ import annotations

import numpy as np
import pytest

from bf16codecs.errors import (
    CodecError,
    CorruptDataError,
    TruncatedDataError,
)
from contents import gaussian
from frames import (
    FRAMES,
    make,
    version_of,
)
from looping import for_each
from makers import frames as build
from native_core import core
from reference_planes import CONSTANT


@for_each("name", FRAMES)
@for_each("checksum", [True, False])
def test_every_range_of_blocks_is_the_slice(name, checksum):
    frame, raw = make(name, checksum=checksum, block=256)
    index = core.Index(frame)
    n, size = index.n_blocks, index.block_items * index.item_size
    assert index.raw_size == len(raw)
    assert index.offsets[-1] == index.frame_size == len(frame)
    assert len(index.offsets) == n + 1
    for first in range(n):
        for last in {first + 1, first + 2, n} & {*range(n + 1)}:
            part = raw[first * size : None if last == n else last * size]
            out = bytearray(len(part))
            assert core.decode_blocks(frame, first, last, out) == len(part)
            assert out == part
            out = np.empty(len(part), np.uint8)
            payload = frame[index.offsets[first] : index.offsets[last]]
            index.decode_block_range(payload, first, last, out)
            assert out.tobytes() == part


@for_each("dtype", [0, 4])
def test_blocks_of_any_section(dtype):
    """A model describes sections of 2^22 items, and later ones by changes to those before."""
    raw = gaussian(1024, 1000, dtype) * 9
    frame = core.encode(raw, 3, dtype, level=1, row=1000, block=1 << 16)
    assert version_of(frame) == 2
    index = core.Index(frame)
    size = index.block_items * index.item_size
    out = np.empty(len(raw), np.uint8)
    core.decode_into(frame, out)
    assert out.tobytes() == raw
    for first, last in ((63, 64), (64, 65), (63, 65), (128, 130), (index.n_blocks - 1, None)):
        part = raw[first * size : last and last * size]
        payload = frame[index.offsets[first] : index.offsets[last or index.n_blocks]]
        index.decode_block_range(payload, first, last or index.n_blocks, out[: len(part)])
        assert out[: len(part)].tobytes() == part


def test_wrong_ranges_and_sizes_of_blocks():
    frame, _ = make("arithmetic, blocks")
    index = core.Index(frame)
    out = bytearray(512)
    payload = frame[index.offsets[0] : index.offsets[1]]
    for first, last in ((0, 0), (1, 1), (2, 1), (4, 4), (4, 5), (0, 5), (0, 2**40)):
        with pytest.raises(IndexError):
            core.decode_blocks(frame, first, last, out)
        with pytest.raises(IndexError):
            index.decode_block_range(payload, first, last, out)
    for first, last in ((-1, 1), (0, -1), (0, 2**64), (0.0, 1)):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            core.decode_blocks(frame, first, last, out)
    for size in (0, 1, 511, 513, 1024):
        with pytest.raises(ValueError, match="512"):
            core.decode_blocks(frame, 0, 1, bytearray(size))
        with pytest.raises(ValueError, match="512"):
            index.decode_block_range(payload, 0, 1, bytearray(size))
    index.decode_block_range(payload, 0, 1, out)
    for length in range(len(payload)):
        with pytest.raises(TruncatedDataError):
            index.decode_block_range(payload[:length], 0, 1, out)
    with pytest.raises(ValueError, match="longer"):
        index.decode_block_range(payload + b"\0", 0, 1, out)
    with pytest.raises(CodecError):
        index.decode_block_range(payload[::-1], 0, 1, out)
    for wrong in (bytes(512), "text", None, memoryview(bytes(512))):
        with pytest.raises((TypeError, BufferError, ValueError)):
            core.decode_blocks(frame, 0, 1, wrong)


def test_damage_in_one_block_leaves_the_others_readable():
    frame, raw = make("arithmetic, blocks")
    index = core.Index(frame)
    damaged = bytearray(frame)
    damaged[index.offsets[2] - 1] ^= 1
    out = bytearray(512)
    for b, good in enumerate((True, False, True)):
        if good:
            core.decode_blocks(damaged, b, b + 1, out)
            assert out == raw[512 * b : 512 * (b + 1)]
        else:
            with pytest.raises(CorruptDataError, match=f"block {b} of 4"):
                core.decode_blocks(damaged, b, b + 1, out)


def test_constant_blocks_are_bounded_by_the_block_size():
    """The smallest block decodes to 4 MiB at most, so a frame's size bounds its decoded size."""
    block = build.block((CONSTANT, b"\1"), (CONSTANT, b"\2"))
    frame = build.frame(1 << 23, [block, block], layout=16, k=21)
    assert core.decode(frame) == b"\2\1" * (1 << 22)
