"""The codec classes as numcodecs codecs and as dicts, and the functions on frames."""

import array
import copy
import json
import pickle
from contextlib import suppress

import ml_dtypes
import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.registry import get_codec

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd
from bf16codecs.codecs import decode_array
from looping import for_each

BF16 = ml_dtypes.bfloat16
DTYPES = ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
CLASSES = [BF16Split, BF16Huffman, BF16Arithmetic, BF16Zstd]
CODECS = [
    BF16Split(),
    BF16Split(by="byte"),
    BF16Huffman(),
    BF16Huffman(checksum=False),
    BF16Arithmetic(),
    BF16Arithmetic(checksum=False),
    BF16Zstd(),
    BF16Zstd(level=9, checksum=False),
    BF16Huffman(dtype="float32"),
    BF16Arithmetic(dtype="float8_e5m2"),
    BF16Zstd(dtype="float64"),
    BF16Arithmetic(level="best"),
    BF16Arithmetic(level="best", checksum=False, dtype="float32"),
]

codecs = for_each("codec", CODECS)
classes = for_each("cls", CLASSES)


def best(**options) -> BF16Arithmetic:
    return BF16Arithmetic(level="best", **options)


def weights(n, dtype=BF16):
    return np.random.default_rng(n).normal(0, 0.02, n).astype(dtype)


def arrays():
    """Return arrays like those that numcodecs tests its own codecs with."""
    rng = np.random.default_rng(7)
    every = np.arange(65536, dtype="u2")
    return [
        np.arange(1000, dtype="i4"),
        np.linspace(1000, 1001, 1000, dtype="f8"),
        rng.normal(1000, 1, size=(100, 10)),
        rng.normal(0, 0.02, size=(90, 11)).astype("f4"),
        np.asfortranarray(rng.normal(0, 0.02, size=(90, 11)).astype("f2")),
        rng.normal(0, 0.02, size=(9, 10, 11)).astype("f4").copy(order="F"),
        rng.integers(0, 256, size=3001, dtype="u1"),
        np.zeros(5000, "u2"),
        np.array(b"abc"),
        every,
        every.reshape(256, 256, order="F"),
    ]


@for_each("original", arrays)
@codecs
def test_every_kind_of_buffer_round_trips(codec, original):
    expected = original.tobytes(order="A")
    frame = codec.encode(original)
    # Codecs with grids or models make use of rows, of which bytes have none.
    has_rows = getattr(codec, "level", "") == "best" or getattr(codec, "grid", False)
    of_bytes = codec.encode(expected) if has_rows else frame
    for buf in (expected, bytearray(expected), memoryview(expected), array.array("b", expected)):
        assert bytes(codec.encode(buf)) == bytes(of_bytes)
    for buf in (bytes(frame), bytearray(frame), memoryview(frame), np.frombuffer(frame, "u1")):
        assert codec.decode(buf) == expected
    out = np.empty_like(original)
    assert codec.decode(frame, out=out) is out
    assert out.tobytes(order="A") == expected
    out = bytearray(len(expected))
    assert codec.decode(frame, out=out) is out
    assert out == expected
    assert decode_array(frame).tobytes() == expected


def test_numcodecs_own_checks():
    common = pytest.importorskip("numcodecs.tests.common", reason="left out of this numcodecs")
    for codec in CODECS:
        for original in arrays():
            common.check_encode_decode(original, codec)
        common.check_config(codec)
        common.check_err_decode_object_buffer(codec)
        common.check_err_encode_object_buffer(codec)


@for_each("cls", [*CLASSES, best])
@for_each("dtype", DTYPES)
@for_each("nbytes", [*range(18), 131071, 131072, 131073, 300_001])
def test_odd_lengths(cls, dtype, nbytes):
    data = weights(nbytes // 2 + 1).tobytes()[:nbytes]
    codec = cls(dtype=dtype)
    frame = codec.encode(data)
    assert codec.decode(frame) == data
    assert len(frame) <= bf16codecs.bound(nbytes, codec)


@given(
    cls=st.sampled_from([*CLASSES, best]),
    dtype=st.sampled_from(DTYPES),
    data=st.one_of(
        st.binary(max_size=400),
        st.builds(
            lambda part, times, tail: part * times + tail,
            st.binary(min_size=1, max_size=40),
            st.integers(0, 5000),
            st.binary(max_size=9),
        ),
    ),
)
def test_any_bytes_round_trip_within_the_bound(cls, dtype, data):
    codec = cls(dtype=dtype)
    frame = codec.encode(data)
    assert bf16codecs.decode(frame) == data
    assert len(frame) <= bf16codecs.bound(len(data), codec)


@codecs
@for_each("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
@for_each("order", ["C", "F"])
def test_ml_dtypes_arrays_in_either_order(codec, name, order):
    dtype = np.dtype(name)
    bits = np.arange(60 * 50, dtype=f"u{dtype.itemsize}").reshape(60, 50)
    original = bits.copy(order=order).view(dtype)
    frame = codec.encode(original)
    assert codec.decode(frame) == original.tobytes(order="A")
    out = np.empty_like(original)
    codec.decode(frame, out=out)
    np.testing.assert_array_equal(out.view(bits.dtype), bits)


@codecs
def test_zero_dimensional_and_empty_arrays(codec):
    scalar = np.array(1.5).astype(BF16)
    assert codec.decode(codec.encode(scalar)) == scalar.tobytes()
    out = np.empty((), BF16)
    codec.decode(codec.encode(scalar), out=out)
    assert out == scalar
    for shape in [(0,), (3, 0, 2)]:
        assert codec.decode(codec.encode(np.empty(shape, BF16))) == b""


@codecs
def test_arrays_that_are_not_contiguous_are_refused(codec):
    with pytest.raises(ValueError, match="contiguous"):
        codec.encode(weights(100)[::2])
    with pytest.raises(ValueError, match="contiguous"):
        codec.decode(codec.encode(bytes(100)), out=np.empty(100, BF16)[::2])


@codecs
def test_objects_that_are_no_buffers_of_bytes_are_refused(codec):
    frame = codec.encode(np.arange(10))
    with pytest.raises(TypeError, match="object arrays"):
        codec.encode(np.array(["foo", "bar"], dtype=object))
    with pytest.raises(TypeError, match="object arrays"):
        codec.decode(frame, out=np.empty(10, dtype=object))
    with pytest.raises(TypeError):
        codec.encode("text")
    with pytest.raises(TypeError):
        codec.encode(3)


@codecs
def test_out_must_be_writable_and_of_the_decoded_size(codec):
    frame = codec.encode(weights(100))
    for nbytes in (0, 198, 199, 201, 400):
        out = bytearray(b"\xaa" * nbytes)
        with pytest.raises(ValueError, match="200"):
            codec.decode(frame, out=out)
        assert out == b"\xaa" * nbytes
    read_only = np.empty(100, BF16)
    read_only.flags.writeable = False
    for out in (read_only, bytes(200)):
        with pytest.raises(ValueError, match="read-only"):
            codec.decode(frame, out=out)


@codecs
def test_any_codec_decodes_the_frames_of_the_others(codec):
    data = weights(1000).tobytes()
    for other in CODECS:
        assert codec.decode(other.encode(data)) == data


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
    assert (facts["raw_size"], facts["encoded_size"]) == (2000, len(frame))


def test_bound_takes_codecs_and_names():
    for cls in CLASSES:
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


@codecs
def test_config_round_trips_through_json(codec):
    config = json.loads(json.dumps(codec.get_config()))
    assert config["id"] == codec.codec_id
    assert get_codec(config) == codec
    assert type(codec).from_config(config) == codec
    config.pop("id")
    assert type(codec).from_config(config) == codec


@for_each(
    "stored, codec",
    [
        ('{"id": "bf16codecs.split", "dtype": "bfloat16", "by": "byte"}', BF16Split(by="byte")),
        ('{"id": "bf16codecs.huffman", "dtype": "float32", "checksum": true}', CODECS[8]),
        ('{"id": "bf16codecs.arithmetic", "dtype": "bfloat16", "level": "fast"}', CODECS[4]),
        ('{"id": "bf16codecs.zstd", "level": 9, "checksum": false}', CODECS[7]),
        ('{"id": "bf16codecs.huffman"}', CODECS[2]),
    ],
)
def test_configurations_stay_readable(stored, codec):
    assert get_codec(json.loads(stored)) == codec


@codecs
def test_repr_copies_and_pickles_are_equal(codec):
    same = [eval(repr(codec)), copy.copy(codec), copy.deepcopy(codec)]
    same += [pickle.loads(pickle.dumps(codec, p)) for p in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for twin in same:
        assert type(twin) is type(codec)
        assert twin == codec
        assert hash(twin) == hash(codec)
        assert repr(twin) == repr(codec)
        assert twin.encode(b"12345") == codec.encode(b"12345")


def test_repr_and_defaults():
    assert repr(BF16Split()) == "BF16Split(dtype='bfloat16', by='field')"
    assert repr(BF16Huffman()) == "BF16Huffman(dtype='bfloat16', checksum=True)"
    assert repr(BF16Arithmetic()) == "BF16Arithmetic(dtype='bfloat16', level='fast', checksum=True)"
    assert repr(BF16Zstd()) == "BF16Zstd(level=3, dtype='bfloat16', checksum=True)"


def test_codecs_differ_by_class_and_parameters():
    assert len({*CODECS, *CODECS}) == len(CODECS)
    assert BF16Huffman() != BF16Arithmetic()
    assert BF16Huffman() != BF16Huffman(dtype="float32")
    assert BF16Huffman() != "huffman"
    assert BF16Huffman() != numcodecs.Zlib()


@codecs
def test_is_the_dict_of_zarr_format_3(codec):
    config = codec.get_config()
    name = config.pop("id")
    assert isinstance(codec, numcodecs.abc.Codec)
    assert isinstance(codec, dict)
    assert dict(codec) == {"name": name, "configuration": config}
    assert json.loads(json.dumps(codec)) == {"name": name, "configuration": config}


@codecs
@for_each("part", ["codec", "configuration"])
def test_cannot_be_changed(codec, part):
    target = codec if part == "codec" else codec["configuration"]
    before = dict(target)
    with pytest.raises(TypeError, match="immutable"):
        target["name"] = "zlib"
    with pytest.raises(TypeError, match="immutable"):
        del target["dtype"]
    with pytest.raises(TypeError, match="immutable"):
        target |= {"name": "zlib"}
    for change in (
        lambda: target.update(name="zlib"),
        lambda: target.pop("name", None),
        lambda: target.popitem(),
        lambda: target.setdefault("more", 1),
        lambda: target.clear(),
    ):
        with pytest.raises(TypeError, match="immutable"):
            change()
    assert target == before
    with pytest.raises(AttributeError):
        codec.dtype = "float32"


@for_each(
    "make, error, message",
    [
        (lambda: BF16Split(by="bit"), ValueError, "'field' or 'byte'"),
        (lambda: BF16Split(by=1), TypeError, "by must be a string"),
        (lambda: BF16Huffman(checksum=1), TypeError, "checksum must be True or False"),
        (lambda: BF16Huffman(checksum="no"), TypeError, "checksum must be True or False"),
        (lambda: BF16Arithmetic(level="slow"), ValueError, "'fast' or 'best'"),
        (lambda: BF16Arithmetic(level=1), TypeError, "level must be a string"),
        (lambda: BF16Zstd(level=0), ValueError, "between 1 and 22"),
        (lambda: BF16Zstd(level=23), ValueError, "between 1 and 22"),
        (lambda: BF16Zstd(level="3"), TypeError, "level must be an integer"),
        (lambda: BF16Zstd(level=3.0), TypeError, "level must be an integer"),
        (lambda: BF16Zstd(level=True), TypeError, "level must be an integer"),
    ],
)
def test_invalid_parameters_are_refused_at_construction(make, error, message):
    with pytest.raises(error, match=message):
        make()


@classes
def test_invalid_dtypes_and_configurations_are_refused(cls):
    for dtype in ("int8", "BFLOAT16", "", np.dtype("i4"), int):
        with pytest.raises(ValueError, match="dtype must be one of bfloat16"):
            cls(dtype=dtype)
    with pytest.raises(ValueError, match=r"not 'bf16' \(did you mean 'bfloat16'\?\)$"):
        cls(dtype="bf16")
    with pytest.raises(TypeError, match="buf must be a buffer or a NumPy array, not str: "):
        cls().encode("abc")
    for dtype in (None, 2, b"bfloat16"):
        with pytest.raises(TypeError, match="dtype must be a string"):
            cls(dtype=dtype)
    with pytest.raises(ValueError, match="unknown configuration: 'block'"):
        cls.from_config({"block": 1})
    with pytest.raises(ValueError, match="'zlib'"):
        cls.from_config({"id": "zlib"})


@classes
def test_dtypes_may_be_given_as_numpy_knows_them(cls):
    assert cls(dtype=BF16) == cls(dtype=np.dtype("bfloat16")) == cls()
    assert cls(dtype=np.float32) == cls(dtype="float32")


def test_parameters_can_be_read():
    assert BF16Split(by="byte").by == "byte"
    assert BF16Huffman("float32", False).checksum is False
    assert BF16Huffman("float32").dtype == "float32"
    assert BF16Arithmetic().level == "fast"
    assert BF16Zstd(np.int64(7)).level == 7
    assert BF16Zstd(checksum=np.True_).checksum is True


@classes
def test_dtype_changes_the_planes_and_weights_shrink(cls):
    data = weights(100_000)
    sizes = {dtype: len(cls(dtype=dtype).encode(data)) for dtype in DTYPES}
    if cls is BF16Split:
        assert data.nbytes < min(sizes.values())
        assert max(sizes.values()) < 1.01 * data.nbytes
    else:
        assert sizes["bfloat16"] < 0.72 * data.nbytes
        assert sizes["bfloat16"] < sizes["float8_e5m2"]


def test_splits_by_field_and_by_byte_differ():
    data = weights(1000)
    assert BF16Split(by="field").encode(data) != BF16Split(by="byte").encode(data)


def test_checksums_find_a_changed_byte():
    data = weights(10_000)
    for cls in (BF16Huffman, BF16Arithmetic, BF16Zstd):
        frame = bytearray(cls().encode(data))
        frame[-100] ^= 1
        with pytest.raises(bf16codecs.errors.CodecError):
            bf16codecs.decode(frame)


def test_without_checksums_a_changed_bit_often_goes_unnoticed():
    data = weights(10_000)
    positions = np.random.default_rng(0).integers(100, 10_000, 60).tolist()
    for codec in (
        *(cls(checksum=False) for cls in (BF16Huffman, BF16Arithmetic, BF16Zstd)),
        BF16Arithmetic(level="best", checksum=False),
    ):
        frame, unnoticed = bytes(codec.encode(data)), 0
        for at in positions:
            with suppress(bf16codecs.errors.CodecError):
                other = bf16codecs.decode(frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :])
                unnoticed += 1
                assert len(other) == data.nbytes
        assert unnoticed > len(positions) / 4, codec
