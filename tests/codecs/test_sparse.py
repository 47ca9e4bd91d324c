"""Weights with many zeros come back exactly, and take what they should; others are as before."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bf16codecs
import reference_decoder
from bf16codecs import BF16Arithmetic, BF16Huffman
from contents import PLAIN, SHAPES, SIGNED, SUBNORMAL, pruned, weights
from looping import for_each
from native_core import core

DTYPES = ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
HUFFMAN, ARITHMETIC = 2, 3
WAYS = [(HUFFMAN, 0), (ARITHMETIC, 0), (ARITHMETIC, 1)]


def modes_of(frame: bytes) -> list[list[str]]:
    return [[plane["mode"] for plane in b["planes"]] for b in bf16codecs.inspect(frame)["blocks"]]


def is_sparse(frame: bytes) -> bool:
    return any("sparse" in modes for modes in modes_of(frame))


@st.composite
def zero_heavy(draw) -> tuple[np.ndarray, int]:
    """Draw items of any dtype of which any share are zeros, in places of any kind."""
    dtype = draw(st.integers(0, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.one_of(st.integers(0, 400), st.integers(0, 20_000)))
    width = SHAPES[dtype][0]
    items = pruned(n, dtype, 1).copy()
    share = draw(st.sampled_from([0, 0.04, 0.07, 0.5, 0.9, 0.999, 1]))
    is_zero = rng.random(n) < share
    if draw(st.booleans()):
        is_zero.sort()  # all zeros at the end
    sign = items & items.dtype.type(1 << 8 * width - 1)
    items[is_zero] = sign[is_zero] if draw(st.booleans()) else 0
    for _ in range(draw(st.sampled_from([0, 0, 3, 100]))):
        if n:
            items[rng.integers(n)] = draw(st.integers(0, 9))
    return items, dtype


@given(
    made=zero_heavy(),
    way=st.sampled_from(WAYS),
    block=st.sampled_from([0, 256, 1024, 4096]),
    checksum=st.booleans(),
    by_byte=st.booleans(),
)
def test_any_zeros_come_back_by_both_decoders(made, way, block, checksum, by_byte):
    items, dtype = made
    codec, level = way
    raw, options = items.tobytes() + b"t", {"block": block, "checksum": checksum, "level": level}
    frame = core.encode(raw, codec, dtype, by_byte=by_byte, **options)
    assert core.decode(frame) == raw
    assert reference_decoder.decode(frame) == raw
    assert len(frame) <= core.bound(len(raw), codec, dtype, block)
    if is_sparse(frame):
        assert frame[4] == 2
        assert not by_byte


@for_each("how", [PLAIN, SIGNED, SUBNORMAL])
@for_each("one_of", [2, 4, 10])
def test_weights_with_zeros_are_sparse(one_of, how):
    for dtype in range(4):
        raw = pruned(20_000, dtype, one_of, how).tobytes()
        for codec in (HUFFMAN, ARITHMETIC):
            frame = core.encode(raw, codec, dtype)
            assert frame[4] == 2
            assert set(modes_of(frame)[0][1:]) == {"sparse"}
            assert core.decode(frame) == raw


@for_each("dtype", range(6))
def test_frames_without_sparse_planes_have_version_1(dtype):
    for raw in (weights(5000), bytes(10_000), pruned(5000, dtype, 1).tobytes()):
        for codec in (HUFFMAN, ARITHMETIC):
            frame = core.encode(raw, codec, dtype)
            assert not is_sparse(frame)
            assert frame[4] == 1
    raw = pruned(5000, dtype).tobytes()
    for options in ({"codec": 1}, {"codec": 4, "level": 3}, {"codec": 3, "by_byte": True}):
        frame = core.encode(raw, dtype=dtype, **options)
        assert frame[4] == 1
        assert core.decode(frame) == raw


def entropy(counts: np.ndarray) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


@for_each("dtype", ["bfloat16", "float32"])
@for_each("kept", [0.5, 0.25])
def test_size_is_that_of_the_mask_and_of_the_rest(kept, dtype):
    rng, n = np.random.default_rng(3), 1 << 19
    items = rng.normal(0, 0.02, n).astype(TYPES[dtype])
    mask = rng.random(n) < kept
    items[~mask] = 0
    width = 8 * items.itemsize
    exponents = (items.view(f"u{items.itemsize}") >> (width - 9) & 255)[mask]
    rest = entropy(np.bincount(exponents.astype(np.int64))) + width - 8
    ideal = n * (entropy(np.bincount(mask)) + mask.mean() * rest) / 8
    # A code of whole bits does not fit a mask of unequal halves.
    for codec in (BF16Arithmetic, BF16Huffman) if kept == 0.5 else (BF16Arithmetic,):
        frame = codec(dtype=dtype).encode(items.tobytes())
        assert ideal < len(frame) < 1.01 * ideal


def test_products_with_a_mask_take_one_bit_for_each_negative_zero():
    n = 1 << 18
    items = np.random.default_rng(4).normal(0, 0.02, n).astype(ml_dtypes.bfloat16)
    mask = np.random.default_rng(5).random(n) < 0.5
    signed = items * mask.astype(ml_dtypes.bfloat16)
    plain = np.where(mask, items, np.zeros(1, ml_dtypes.bfloat16))
    assert (np.signbit(signed) & (signed == 0)).any()
    sizes = [len(BF16Arithmetic().encode(each.tobytes())) for each in (signed, plain)]
    assert sizes[0] - sizes[1] == -(-(~mask).sum() // 8)


def test_best_is_not_larger_than_fast():
    for dtype in range(4):
        for how in (PLAIN, SIGNED):
            raw = pruned(30_000, dtype, 2, how).tobytes()
            fast = core.encode(raw, ARITHMETIC, dtype)
            best = core.encode(raw, ARITHMETIC, dtype, level=1, row=64)
            assert len(best) <= 1.001 * len(fast)
            assert core.decode(best) == raw


def test_blocks_without_zeros_beside_blocks_with():
    items = pruned(5000)
    items[1024:2048] = np.frombuffer(weights(1024), "<u2")
    items[2048:3072] = 0
    frame = core.encode(items.tobytes(), ARITHMETIC, 0, block=1024)
    modes = modes_of(frame)
    assert [planes[1] for planes in modes] == ["sparse", "stored", "constant", "sparse", "sparse"]
    assert core.decode(frame) == items.tobytes()


@for_each("dtype", [0, 2])
def test_parts_of_frames(dtype):
    raw, width = pruned(9000, dtype, 2, SIGNED).tobytes(), SHAPES[dtype][0]
    frame = core.encode(raw, ARITHMETIC, dtype, block=1024)
    for first, last in ((0, 1), (3, 5), (8, 9), (0, 9)):
        begin, end = 1024 * first * width, min(len(raw), 1024 * last * width)
        out = np.empty(end - begin, np.uint8)
        core.decode_blocks(frame, first, last, out)
        assert out.tobytes() == raw[begin:end]


def test_a_converted_model_keeps_its_narrow_planes():
    """BF16 weights in FP32 have signs alone in the last plane, which a code of its own serves."""
    items = (pruned(1 << 16, 0, 2, SIGNED).astype("<u4") << 16).tobytes()
    frame = core.encode(items, ARITHMETIC, 2)
    assert modes_of(frame)[0][2:] == ["constant", "rans_pairs"]
    assert core.decode(frame) == items


def test_damage_is_found():
    raw = pruned(3000, 0, 2, SUBNORMAL).tobytes()
    frame = core.encode(raw, ARITHMETIC, 0)
    assert is_sparse(frame)
    for at in range(24, len(frame), 7):
        damaged = bytearray(frame)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(bf16codecs.errors.CodecError):
            core.decode(bytes(damaged))
