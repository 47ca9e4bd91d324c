"""The data types bfloat16 and float8 in Zarr: names, fill values, byte order, other readers."""

import itertools
import json
import pickle

import numpy as np
import pytest
import zarr
from zarr.dtype import data_type_registry, parse_dtype

from bf16codecs import BF16Huffman
from bf16codecs.zarr import BFloat16, Float8E4M3FN, Float8E5M2, register
from bits import bits
from looping import for_each

# zarr compares every chunk with the fill value; ml_dtypes warns when it compares NaNs.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in equal")

TYPES = {"bfloat16": BFloat16, "float8_e4m3fn": Float8E4M3FN, "float8_e5m2": Float8E5M2}
CANONICAL_NAN = {"bfloat16": 0x7FC0, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E}
names = for_each("name", TYPES)
formats = for_each("zarr_format", [2, 3])


def every_value(name):
    dtype = np.dtype(name)
    return np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)


def metadata(store):
    name = "zarr.json" if (store / "zarr.json").exists() else ".zarray"
    return json.loads((store / name).read_text())


@names
@formats
def test_fill_values_keep_every_bit_pattern(name, zarr_format):
    dtype, values = TYPES[name](), every_value(name)
    text = json.dumps([dtype.to_json_scalar(v, zarr_format=zarr_format) for v in values])
    back = [dtype.from_json_scalar(v, zarr_format=zarr_format) for v in json.loads(text)]
    assert {type(value) for value in back} == {np.dtype(name).type}
    np.testing.assert_array_equal(bits(np.array(back)), bits(values))


@for_each(
    "name, pattern, expected",
    [
        ("bfloat16", 0x3FC0, 1.5),
        ("bfloat16", 0x8000, -0.0),
        ("bfloat16", 0x0001, 2.0**-133),
        ("bfloat16", 0x7F80, "Infinity"),
        ("bfloat16", 0xFF80, "-Infinity"),
        ("bfloat16", 0x7FC0, "NaN"),
        ("bfloat16", 0x7FFF, "0x7fff"),
        ("bfloat16", 0xFFC0, "0xffc0"),
        ("bfloat16", 0x7F81, "0x7f81"),
        ("float8_e4m3fn", 0x7F, "NaN"),
        ("float8_e4m3fn", 0xFF, "0xff"),
        ("float8_e4m3fn", 0x7E, 448.0),
        ("float8_e5m2", 0x7C, "Infinity"),
        ("float8_e5m2", 0x7E, "NaN"),
        ("float8_e5m2", 0x7D, "0x7d"),
        ("float8_e5m2", 0xFC, "-Infinity"),
    ],
)
def test_notation_of_fill_values_in_format_3(name, pattern, expected):
    written = TYPES[name]().to_json_scalar(every_value(name)[pattern], zarr_format=3)
    assert json.dumps(written) == json.dumps(expected)


def test_format_2_has_its_own_notation_for_other_nans():
    # tensorstore would read "0x7fff" as the number 32767 there.
    assert BFloat16().to_json_scalar(every_value("bfloat16")[0x7FFF], zarr_format=2) == (
        "NaN(0x7fff)"
    )
    assert BFloat16().to_json_scalar(float("nan"), zarr_format=2) == "NaN"


@names
@formats
@for_each(
    "bad, error",
    [
        ("0x7", ValueError),
        ("0x7fc00000", ValueError),
        ("0xzzzz", ValueError),
        ("nan", ValueError),
        ("1.5", ValueError),
        ("", ValueError),
        (None, TypeError),
        ([1.0], TypeError),
        ({}, TypeError),
        (True, TypeError),
    ],
)
def test_other_fill_values_are_refused(name, zarr_format, bad, error):
    with pytest.raises(error, match=name):
        TYPES[name]().from_json_scalar(bad, zarr_format=zarr_format)


def test_no_infinity_where_the_type_has_none():
    for text in ("Infinity", "-Infinity"):
        with pytest.raises(ValueError, match="float8_e4m3fn"):
            Float8E4M3FN().from_json_scalar(text, zarr_format=3)


@names
def test_scalars_are_cast(name):
    dtype, native = TYPES[name](), np.dtype(name).type
    for value in (1, 1.0, np.float32(1), np.int64(1), np.array(1.0), native(1)):
        cast = dtype.cast_scalar(value)
        assert type(cast) is native
        assert cast == 1
    assert bits(dtype.cast_scalar("NaN")) == CANONICAL_NAN[name]
    assert bits(dtype.cast_scalar(float("nan"))) == CANONICAL_NAN[name]
    assert bits(dtype.default_scalar()) == 0
    for value in ("one", "0x"):
        with pytest.raises(ValueError, match=name):
            dtype.cast_scalar(value)
    for value in (None, b"1", [1.0], np.zeros(2), 1j):
        with pytest.raises(TypeError, match=name):
            dtype.cast_scalar(value)


@names
@formats
def test_metadata(new_folder, name, zarr_format):
    folder = new_folder()
    array = zarr.create_array(folder, shape=(4,), dtype=name, zarr_format=zarr_format)
    assert metadata(folder)["dtype" if zarr_format == 2 else "data_type"] == name
    for a in (array, zarr.open_array(folder), pickle.loads(pickle.dumps(array))):
        assert a.dtype == np.dtype(name)
        assert type(a.metadata.dtype if zarr_format == 2 else a.metadata.data_type) is TYPES[name]


@names
def test_found_by_name_and_by_numpy_dtype(name):
    for spec in (name, np.dtype(name), np.dtype(name).type):
        assert parse_dtype(spec, zarr_format=3) == TYPES[name]()
    assert TYPES[name]().item_size == np.dtype(name).itemsize
    assert TYPES[name].from_native_dtype(np.dtype(name)).to_native_dtype() == np.dtype(name)
    for spec in ("float32", {"name": name, "configuration": {}}, 3, None):
        with pytest.raises(ValueError, match=name):
            TYPES[name].from_json(spec, zarr_format=3)
        with pytest.raises(ValueError, match=name):
            TYPES[name].from_json({"name": spec, "object_codec_id": None}, zarr_format=2)
    with pytest.raises(ValueError, match=name):
        TYPES[name].from_native_dtype(np.dtype("f4"))


@names
@for_each("zarr_format, shards", [(2, None), (3, None), (3, 2)])
def test_every_value_round_trips(new_folder, name, zarr_format, shards):
    data, folder = every_value(name), new_folder()
    layout = {"chunks": (data.size // 4,), "shards": shards and (data.size // shards,)}
    zarr.create_array(
        folder,
        data=data,
        compressors=BF16Huffman(dtype=name),
        zarr_format=zarr_format,
        fill_value=float("nan"),
        **layout,
    )
    np.testing.assert_array_equal(bits(zarr.open_array(folder)[:]), bits(data))


@formats
@for_each("fill", [0x7FC0, 0x7FFF, 0xFF81, 0x8000, 0x7F80, 0x3FC0])
def test_missing_chunks_read_as_the_exact_fill_value(new_folder, zarr_format, fill):
    value, folder = every_value("bfloat16")[fill], new_folder()
    zarr.create_array(
        folder, shape=(10,), dtype="bfloat16", fill_value=value, zarr_format=zarr_format
    )
    array = zarr.open_array(folder)
    assert bits(array.fill_value) == fill
    assert set(bits(array[:]).tolist()) == {fill}


@formats
@for_each("name", ["bfloat16", "float8_e4m3fn"])
@for_each("fill", ["NaN", "other NaN"])
def test_with_a_nan_fill_value_no_chunk_is_dropped(new_folder, zarr_format, name, fill):
    """zarr leaves out chunks that equal the fill value, and -0.0 equals 0.0 here."""
    dtype, folder = np.dtype(name), new_folder()
    bit_type = f"u{dtype.itemsize}"
    sign = 1 << (8 * dtype.itemsize - 1)
    nan = {"NaN": CANONICAL_NAN[name], "other NaN": sign | CANONICAL_NAN[name]}[fill]
    data = np.repeat(np.array([0, sign, CANONICAL_NAN[name], nan], bit_type), 8).view(dtype)
    zarr.create_array(
        folder,
        data=data,
        chunks=(8,),
        fill_value=np.array(nan, bit_type).view(dtype)[()],
        compressors=BF16Huffman(dtype=name),
        zarr_format=zarr_format,
    )
    np.testing.assert_array_equal(bits(zarr.open_array(folder)[:]), bits(data))


def test_float8_e5m2_keeps_negative_zeros_with_fill_value_zero(tmp_path):
    """To NumPy this type is a float, so zarr compares its zeros bit by bit."""
    data = np.repeat(np.array([0, 0x80], "u1"), 8).view("float8_e5m2")
    zarr.create_array(tmp_path, data=data, chunks=(8,), fill_value=0)
    np.testing.assert_array_equal(bits(zarr.open_array(tmp_path)[:]), bits(data))


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_byte_order_of_array_and_chunks(tmp_path, endian, order):
    data = every_value("bfloat16").reshape(256, 256)
    dtype = data.dtype.newbyteorder(order)
    array = zarr.create_array(
        tmp_path,
        shape=data.shape,
        dtype=dtype,
        chunks=(100, 100),
        serializer={"name": "bytes", "configuration": {"endian": endian}},
        compressors=None,
        fill_value=float("nan"),
    )
    array[:] = data.astype(dtype)
    np.testing.assert_array_equal(bits(zarr.open_array(tmp_path)[:].astype(data.dtype)), bits(data))
    first = (tmp_path / "c" / "0" / "0").read_bytes()
    assert first[:6].hex() == {"little": "000001000200", "big": "000000010002"}[endian]


def test_format_2_refuses_big_endian_bfloat16(tmp_path):
    dtype = np.dtype("bfloat16").newbyteorder(">")
    with pytest.raises(ValueError, match="big-endian"):
        zarr.create_array(tmp_path, shape=(4,), dtype=dtype, zarr_format=2)
    assert not (tmp_path / ".zarray").exists()


def test_names_that_are_taken_stay_so():
    class Other(BFloat16):
        pass

    before = data_type_registry.contents["bfloat16"]
    data_type_registry.contents["bfloat16"] = Other
    try:
        register()
        assert data_type_registry.contents["bfloat16"] is Other
    finally:
        data_type_registry.contents["bfloat16"] = before


@names
@formats
@for_each("compressed", [False, True])
def test_tensorstore_reads_ours(new_folder, name, zarr_format, compressed):
    ts = pytest.importorskip("tensorstore")
    data, folder = every_value(name).reshape(16, -1), new_folder()
    compressors = None
    if compressed:
        compressors = "auto" if zarr_format == 3 else {"id": "zlib", "level": 1}
    zarr.create_array(
        folder,
        data=data,
        chunks=(5, data.shape[1]),
        compressors=compressors,
        fill_value=float("nan"),
        zarr_format=zarr_format,
    )
    driver = "zarr" if zarr_format == 2 else "zarr3"
    theirs = ts.open(
        {"driver": driver, "kvstore": {"driver": "file", "path": str(folder)}}
    ).result()
    assert theirs.dtype.name == name
    np.testing.assert_array_equal(bits(theirs.read().result()), bits(data))


@for_each(
    "name, zarr_format, fill",
    [
        *itertools.product(TYPES, (2, 3), (0, -0.0, 1.5, "NaN")),
        ("bfloat16", 3, "0x7fff"),
        ("float8_e4m3fn", 3, "0xff"),
        ("float8_e5m2", 3, "0xfe"),
    ],
)
def test_we_read_tensorstores(new_folder, name, zarr_format, fill):
    ts = pytest.importorskip("tensorstore")
    data, folder = every_value(name), new_folder()
    chunks = [data.size // 5]  # of which one is half written, and others are missing
    if zarr_format == 2:
        shape = {"dtype": name, "shape": [data.size], "chunks": chunks, "compressor": None}
    else:
        grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
        shape = {"data_type": name, "shape": [data.size], "chunk_grid": grid}
    kvstore = {"driver": "file", "path": str(folder)}
    driver = "zarr" if zarr_format == 2 else "zarr3"
    spec = {"driver": driver, "kvstore": kvstore, "metadata": {**shape, "fill_value": fill}}
    theirs = ts.open(spec, create=True).result()
    theirs[: data.size // 2] = data[: data.size // 2]
    array = zarr.open_array(folder, mode="r")
    assert array.dtype == data.dtype
    np.testing.assert_array_equal(bits(array[:]), bits(theirs.read().result()))
    np.testing.assert_array_equal(bits(array[: data.size // 2]), bits(data[: data.size // 2]))
