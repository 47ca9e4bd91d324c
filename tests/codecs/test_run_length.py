"""Run lengths as a numcodecs codec and as a dict."""

from __future__ import annotations

import array
import copy
import json
import pickle

import ml_dtypes
import numcodecs
import numpy as np
import pytest
from numcodecs.registry import get_codec

import bf16codecs
from bf16codecs import RunLength
from looping import for_each

CODEC = RunLength()
HALVES = np.random.default_rng(0).normal(0, 0.02, (90, 11)).astype("f2")


def arrays() -> list[np.ndarray]:
    return [
        np.arange(1000, dtype="i4"),
        np.zeros(5000, "u2"),
        np.full(4001, 255, "u1"),
        HALVES,
        np.asfortranarray(HALVES),
        HALVES.astype(ml_dtypes.bfloat16),
        np.array(2.5, "f4"),
        np.empty((3, 0, 2), "f4"),
    ]


@for_each("original", arrays)
def test_every_kind_of_buffer_round_trips(original):
    expected = original.tobytes(order="A")
    encoded = CODEC.encode(original)
    for buf in (expected, bytearray(expected), memoryview(expected), array.array("b", expected)):
        assert CODEC.encode(buf) == encoded
    for buf in (encoded, bytearray(encoded), memoryview(encoded), np.frombuffer(encoded, "u1")):
        assert CODEC.decode(buf) == expected
    out = np.empty_like(original)
    assert CODEC.decode(encoded, out=out) is out
    assert out.tobytes(order="A") == expected


def test_numcodecs_own_checks():
    common = pytest.importorskip("numcodecs.tests.common", reason="left out of this numcodecs")
    for original in arrays()[:5]:
        common.check_encode_decode(original, CODEC)
    common.check_config(CODEC)
    common.check_err_decode_object_buffer(CODEC)
    common.check_err_encode_object_buffer(CODEC)


def test_out_must_be_writable_and_of_the_decoded_size():
    encoded = CODEC.encode(bytes(200))
    for nbytes in (0, 199, 201):
        out = bytearray(b"\xaa" * nbytes)
        with pytest.raises(ValueError, match=f"^out has {nbytes} bytes, the data have 200$"):
            CODEC.decode(encoded, out=out)
        assert out == b"\xaa" * nbytes
    with pytest.raises(ValueError, match="read-only"):
        CODEC.decode(encoded, out=bytes(200))
    with pytest.raises(ValueError, match="contiguous"):
        CODEC.decode(encoded, out=np.empty(400, "u1")[::2])
    with pytest.raises(ValueError, match="contiguous"):
        CODEC.encode(np.zeros(400, "u1")[::2])


def test_configuration_round_trips():
    assert json.loads(json.dumps(CODEC)) == {"name": "bf16codecs.rle", "configuration": {}}
    assert CODEC.get_config() == {"id": "bf16codecs.rle"}
    assert isinstance(CODEC, numcodecs.abc.Codec)
    twins = [get_codec(CODEC.get_config()), eval(repr(CODEC)), copy.deepcopy(CODEC)]
    for twin in [*twins, pickle.loads(pickle.dumps(CODEC))]:
        assert type(twin) is RunLength
        assert twin == CODEC
        assert hash(twin) == hash(CODEC)
    assert bf16codecs.BF16Huffman() != CODEC
    with pytest.raises(ValueError, match=r"^bf16codecs\.rle: unknown configuration: 'level'$"):
        RunLength.from_config({"level": 1})
    with pytest.raises(TypeError, match="RunLength is immutable"):
        CODEC["name"] = "zlib"


def test_bound_takes_it():
    assert bf16codecs.bound(1001, CODEC) == 1502
    with pytest.raises(ValueError, match="must not be negative"):
        bf16codecs.bound(-1, CODEC)
