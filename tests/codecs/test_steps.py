"""Codecs with steps: a buffer of versions, each coded against an earlier one of the same buffer."""

import copy
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.registry import get_codec

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd
from contents import lcg_bytes
from looping import for_each
from tiers import by_tier
from versions import fields, weights

CODECS = [
    BF16Huffman(steps=2),
    BF16Huffman("float32", checksum=False, steps=24),
    BF16Arithmetic(steps=65534),
    BF16Arithmetic("float32", steps=24),
    BF16Arithmetic("float32", level="best", checksum=False, steps=24),
]
codecs = for_each("codec", CODECS)


def plain(codec):
    """Return the codec without steps."""
    config = codec.get_config()
    return type(codec).from_config({key: config[key] for key in config if key != "steps"})


@codecs
def test_is_a_codec_as_the_others_are(codec):
    config = json.loads(json.dumps(codec.get_config()))
    assert config["steps"] == codec.steps
    assert list(config)[-1] == "steps"
    assert json.loads(json.dumps(codec))["configuration"]["steps"] == codec.steps
    same = [get_codec(config), eval(repr(codec)), copy.copy(codec), copy.deepcopy(codec)]
    same += [pickle.loads(pickle.dumps(codec, p)) for p in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for twin in same:
        assert twin == codec
        assert hash(twin) == hash(codec)
        assert repr(twin) == repr(codec)
    assert codec != plain(codec)
    assert hash(codec) != hash(plain(codec))
    with pytest.raises(TypeError, match="immutable"):
        codec["configuration"]["steps"] = 3


@for_each("cls", [BF16Huffman, BF16Arithmetic])
def test_one_step_is_as_before(cls):
    for one in (cls(steps=1), cls(steps=np.int64(1)), cls.from_config({"steps": 1})):
        assert one == cls()
        assert one.steps == 1
        assert "steps" not in repr(one)
        assert "steps" not in one.get_config()
        assert one.encode(bytes(2001)) == cls().encode(bytes(2001))


def test_bad_numbers_of_steps_are_refused():
    for cls in (BF16Huffman, BF16Arithmetic):
        for steps in (0, -1, 65535, 1 << 70):
            with pytest.raises(ValueError, match="steps must be between 1 and 65534"):
                cls(steps=steps)
        for steps in (True, np.True_, "2", 2.0, None):
            with pytest.raises(TypeError, match="steps must be an integer"):
                cls(steps=steps)
            with pytest.raises(TypeError, match="steps must be an integer"):
                cls.from_config({"steps": steps})
    for cls in (BF16Split, BF16Zstd):
        with pytest.raises(ValueError, match="unknown configuration: 'steps'"):
            cls.from_config({"steps": 2})
    with pytest.raises(ValueError, match="unknown configuration: 'step'"):
        BF16Huffman.from_config({"step": 2})


@for_each("nbytes", [1, 23, 95, 97, 100, 24 * 4096 + 2])
def test_buffers_that_steps_do_not_divide_are_refused(nbytes):
    for codec in (BF16Huffman("float32", steps=24), BF16Arithmetic("float32", steps=24)):
        with pytest.raises(ValueError, match=f"{nbytes} bytes? are not 24 steps of whole float32"):
            codec.encode(bytes(nbytes))
    assert BF16Huffman("float32", steps=24).encode(b"")


def test_differences_to_a_base_have_one_step():
    codec = BF16Huffman(steps=2)
    with pytest.raises(ValueError, match="steps=1"):
        bf16codecs.encode_delta(codec, bytes(4000), bytes(4000))


@for_each("order", ["C", "F"])
@for_each("shape", [(24, 3000), (24, 30, 100), (24, 5, 6, 100), (48, 1500)])
def test_fields_come_back_smaller(shape, order):
    array = np.asarray(fields(24, shape[0] // 24 * int(np.prod(shape[1:]))).reshape(shape))
    if order == "F":  # then time is the last axis
        array = array.T
    for codec in CODECS[1:2] + CODECS[3:]:
        frame = codec.encode(array)
        assert codec.decode(frame) == array.tobytes(order="A")
        assert bf16codecs.inspect(frame)["steps"] == 24
        assert len(frame) < 0.7 * len(plain(codec).encode(array))
        assert len(frame) <= bf16codecs.bound(array.nbytes, codec)


@for_each("dtype", ["bfloat16", "float16", "float32", "float64", "float8_e5m2"])
@for_each("level", ["fast", "best"])
def test_weights_come_back_smaller(dtype, level):
    array = weights(10, 64, 300, dtype=dtype)
    codec = BF16Arithmetic(dtype, level=level, steps=10)
    frame = codec.encode(array)
    assert codec.decode(frame) == array.tobytes()
    assert len(frame) < len(plain(codec).encode(array))


def test_rows_are_those_of_a_step():
    """Row after row, and column after column, has another scale; a step alone has no rows."""
    scales = np.exp2(np.arange(64) % 7)[:, None] * np.exp2(np.arange(96) * 3 % 5)
    array = (weights(8, 64, 96, dtype="f4") * scales).astype("f4")
    codec = BF16Arithmetic("float32", level="best", steps=8)
    known, unknown = (len(codec.encode(a)) for a in (array, array.tobytes()))
    assert known <= 1.001 * unknown
    assert codec.encode(array.reshape(8, -1)) == codec.encode(array.tobytes())


@given(
    steps=st.integers(2, 40),
    items=st.integers(0, 700),
    dtype=st.sampled_from(["bfloat16", "float32", "float8_e4m3fn"]),
    level=st.sampled_from(["huffman", "fast", "best"]),
    seed=st.integers(0, 9),
)
def test_any_bytes_round_trip_within_the_bound(steps, items, dtype, level, seed):
    codec = BF16Huffman(dtype, steps=steps)
    if level != "huffman":
        codec = BF16Arithmetic(dtype, level=level, steps=steps)
    nbytes = steps * items * np.dtype(codec.dtype).itemsize
    same = lcg_bytes(nbytes // steps, seed) * steps
    for data in (lcg_bytes(nbytes, seed), same, bytes(nbytes)):
        frame = codec.encode(data)
        assert codec.decode(frame) == data
        assert len(frame) <= bf16codecs.bound(nbytes, codec)


@for_each("items", by_tier([1, 7, 127, 128], [1, 7, 127, 128, 300]))
def test_incompressible_steps_stay_within_what_readers_accept(items):
    data = lcg_bytes(4 * items * 5000)
    frame = BF16Arithmetic("float32", steps=5000).encode(data)
    assert len(frame) <= bf16codecs.bound(len(data), BF16Arithmetic("float32", steps=5000))
    assert len(frame) < 1.2 * len(data) + 4096
    # Steps that are too small for versions of their own have none.
    assert "steps" not in bf16codecs.inspect(frame)


def test_a_later_step_can_be_damaged():
    array = fields(8, 5000)
    frame = bytearray(BF16Arithmetic("float32", steps=8).encode(array))
    frame[-100] ^= 1
    with pytest.raises(bf16codecs.errors.CorruptDataError, match="block 7 of 8"):
        bf16codecs.decode(frame)
