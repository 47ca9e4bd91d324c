"""The functions on frames of any codec, and the settings of the native core."""

import ml_dtypes
import numcodecs
import numpy as np
import pytest

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd
from bf16codecs.codecs import decode_array
from looping import for_each
from native_core import ISAS

BF16 = ml_dtypes.bfloat16
CODECS = [BF16Split(), BF16Huffman(checksum=False), BF16Arithmetic(), BF16Zstd(dtype="float32")]
codecs = for_each("codec", CODECS)


def weights(n):
    return np.random.default_rng(n).normal(0, 0.02, n).astype(BF16)


@codecs
def test_truncated_and_foreign_data_are_refused(codec):
    frame = codec.encode(weights(1000))
    for length in (0, 1, 10, len(frame) // 2, len(frame) - 1):
        with pytest.raises(bf16codecs.errors.TruncatedDataError):
            codec.decode(frame[:length])
        with pytest.raises(bf16codecs.errors.TruncatedDataError):
            codec.decode(frame[:length], out=np.empty(1000, BF16))
        with pytest.raises(bf16codecs.errors.TruncatedDataError):
            decode_array(frame[:length])
    with pytest.raises(bf16codecs.errors.CorruptDataError):
        codec.decode(b"certainly no frame of this package, and long enough for one")


@codecs
def test_inspect_names_codec_and_sizes(codec):
    frame = codec.encode(weights(1000))
    facts = bf16codecs.inspect(frame)
    assert facts["codec"] == codec.codec_id.removeprefix("bf16codecs.")
    assert 2000 in facts.values()


def test_bound_takes_codecs_and_names():
    for cls in map(type, CODECS):
        name = cls.codec_id
        assert bf16codecs.bound(1000, name) == bf16codecs.bound(1000, cls())
        assert bf16codecs.bound(1000, name.split(".")[1]) == bf16codecs.bound(1000, cls())
        assert bf16codecs.bound(0, name) >= len(cls().encode(b""))
    with pytest.raises(ValueError, match="must be one of split, huffman"):
        bf16codecs.bound(1, "gzip")
    with pytest.raises(TypeError, match="codec must be"):
        bf16codecs.bound(1, numcodecs.Zlib())
    with pytest.raises(ValueError, match="negative"):
        bf16codecs.bound(-1, "huffman")
    with pytest.raises(ValueError, match=f"no buffer has {1 << 70} bytes"):
        bf16codecs.bound(1 << 70, "huffman")
    with pytest.raises(TypeError, match=r"nbytes must be an integer, not 1\.5"):
        bf16codecs.bound(1.5, "huffman")


def test_thread_count_does_not_change_frames():
    data = weights(400_000)
    before = bf16codecs.get_num_threads()
    try:
        frames = []
        for threads in (1, 2, 3):
            bf16codecs.set_num_threads(threads)
            assert bf16codecs.get_num_threads() == threads
            frames.append([codec.encode(data) for codec in CODECS])
            assert all(bf16codecs.decode(frame) == data.tobytes() for frame in frames[-1])
    finally:
        bf16codecs.set_num_threads(before)
    assert frames[0] == frames[1] == frames[2]


def test_numbers_of_threads_that_are_none():
    before = bf16codecs.get_num_threads()
    for number in ("2", 1.5, None, True):
        with pytest.raises(TypeError, match=r"^the number of threads must be an integer, not "):
            bf16codecs.set_num_threads(number)
    for number in (-1, 0, 1025, 1 << 40):
        with pytest.raises(ValueError, match=rf"^the number of threads .* 1024, not {number}$"):
            bf16codecs.set_num_threads(number)
    assert bf16codecs.get_num_threads() == before


def test_names_the_instruction_set_in_use():
    assert bf16codecs.active_isa() in ISAS
    assert set(ISAS) <= {"scalar", "avx2", "avx512", "avx512vbmi2", "neon"}
