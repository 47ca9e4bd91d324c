"""dtype="auto", and warnings for arrays of another data type than the codec's."""

import json
import warnings

import numpy as np
import pytest
from numcodecs.registry import get_codec

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd, bound, encode_delta
from bf16codecs.errors import DtypeMismatchWarning
from looping import for_each

DTYPES = ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
CLASSES = [BF16Split, BF16Huffman, BF16Arithmetic, BF16Zstd]
#: Layouts by data type: its own, or one of the same width.
LAYOUTS = {
    **dict(zip(DTYPES, DTYPES, strict=True)),
    ">f4": "float32",
    "uint8": "float8_e4m3fn",
    "int16": "bfloat16",
    "uint32": "float32",
    "int64": "float64",
    "complex64": "float32",
    "bool": "float8_e4m3fn",
    "V2": "bfloat16",
}
classes = for_each("cls", CLASSES)


def numbers(dtype, shape=(40, 50)):
    values = np.random.default_rng(3).normal(0, 3, shape)
    return values.astype(dtype if np.dtype(dtype).kind != "c" else "f8").astype(dtype)


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@classes
@for_each("dtype, layout", LAYOUTS.items())
def test_auto_takes_the_dtype_of_the_array(cls, dtype, layout, no_warnings):
    array = numbers(dtype) if dtype != "V2" else numbers("u2").view("V2")
    frame = cls(dtype="auto").encode(array)
    assert frame == cls(dtype=layout).encode(array.view(f"V{array.itemsize}"))
    assert bf16codecs.inspect(frame)["dtype"] == layout
    assert cls(dtype="auto").decode(frame) == array.tobytes()


@classes
def test_auto_takes_bytes_for_bfloat16(cls, no_warnings):
    data = numbers("float32").tobytes()
    for buf in (data, bytearray(data), memoryview(data)):
        assert cls(dtype="auto").encode(buf) == cls().encode(data)


def test_with_rows_and_steps():
    array = numbers("float32", (6, 20, 30))
    for cls, options in (
        (BF16Arithmetic, {"level": "best"}),
        (BF16Arithmetic, {"level": "best", "steps": 3}),
        (BF16Huffman, {"steps": 6}),
        (BF16Zstd, {"level": 9}),
        (BF16Split, {"by": "byte"}),
    ):
        frame = cls(dtype="auto", **options).encode(array)
        assert frame == cls(dtype="float32", **options).encode(array)
    with pytest.raises(ValueError, match="not 7 steps of whole float32 items"):
        BF16Huffman("auto", steps=7).encode(array)


def test_differences():
    base = numbers("float32")
    after = base * np.float32(1.001)
    frame = encode_delta(BF16Arithmetic("auto"), after, base)
    assert frame == encode_delta(BF16Arithmetic("float32"), after, base)
    assert bf16codecs.decode(frame, base=base) == after.tobytes()


@classes
def test_configurations(cls):
    codec = cls(dtype="auto")
    assert get_codec(json.loads(json.dumps(codec.get_config()))) == codec
    assert eval(repr(codec)) == codec
    assert codec.dtype == "auto"
    assert codec.for_dtype(np.dtype("f8")) == cls(dtype="float64")
    assert cls().for_dtype(np.dtype("f8")) == cls(), "what was said counts"


@classes
def test_the_bound_holds_for_every_data_type(cls):
    for dtype in DTYPES:
        for nbytes in (0, 1, 17, 4096, 1 << 20):
            assert bound(nbytes, cls(dtype="auto")) >= bound(nbytes, cls(dtype=dtype))


@for_each("dtype", DTYPES)
@classes
def test_numbers_of_another_type_get_a_warning(cls, dtype):
    other = "float32" if dtype != "float32" else "bfloat16"
    array = numbers(dtype)
    advice = f"for {other} encodes {dtype}.*give dtype='{dtype}', or dtype='auto'$"
    with pytest.warns(DtypeMismatchWarning, match=advice) as caught:
        frame = cls(dtype=other).encode(array)
    assert [w.filename for w in caught] == [__file__]
    assert frame == cls(dtype=other).encode(array.tobytes()), "the same frame as ever"
    with pytest.warns(DtypeMismatchWarning, match=advice) as caught:
        encode_delta(cls(dtype=other), array, array)
    assert [w.filename for w in caught] == [__file__]


@classes
def test_buffers_without_a_float_dtype_get_no_warning(cls, no_warnings):
    array = numbers("float32")
    for buf in (array.tobytes(), memoryview(array), array.view("u1"), array.view("V4")):
        cls().encode(buf)
    for dtype in ("u2", "i2", "i4", "i8", "bool", "complex64"):
        cls().encode(numbers(dtype))
    cls().encode(numbers("bfloat16"))
    cls(dtype="float32").encode(array.astype(">f4"))


def test_a_warning_comes_once_from_one_place():
    array = numbers("float32")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(5):
            BF16Huffman().encode(array)
        BF16Huffman().encode(array)
    assert len(caught) == 2


@for_each(
    "make, error, message",
    [
        (lambda: BF16Huffman("bf16"), ValueError, r"auto, not 'bf16' \(did you mean 'bfloat16'"),
        (lambda: BF16Huffman(3), TypeError, r"a string, one of bfloat16, .*, auto, not 3 \(int\)$"),
        (lambda: BF16Split(by=3), TypeError, r"a string, 'field' or 'byte', not 3 \(int\)$"),
        (lambda: BF16Arithmetic(level=3), TypeError, r"a string, 'fast' or 'best', not 3 \(int\)$"),
        (lambda: BF16Zstd("fast"), TypeError, r"integer, between 1 and 22, not 'fast' \(str\)$"),
        (lambda: BF16Huffman(steps="2"), TypeError, r"between 1 and 65534, not '2' \(str\)$"),
    ],
)
def test_messages_list_allowed_values(make, error, message):
    with pytest.raises(error, match=message):
        make()
