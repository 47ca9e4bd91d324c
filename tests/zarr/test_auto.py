"""Data types that codecs take from arrays, and their stored names."""

import json
import warnings

import numpy as np
import pytest
import zarr

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd
from bf16codecs.errors import DtypeMismatchWarning
from bf16codecs.zarr import BF16BlocksCodec
from bits import assert_same_bits
from looping import for_each

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in equal")

CLASSES = [BF16Split, BF16Huffman, BF16Arithmetic, BF16Zstd]
classes = for_each("cls", CLASSES)
dtypes = for_each("dtype", ["bfloat16", "float32", "float8_e5m2", "int64", "bool"])
LAYOUTS = {"int64": "float64", "bool": "float8_e4m3fn"}


def numbers(dtype):
    return np.random.default_rng(0).normal(0, 3, (64, 30)).astype(dtype)


def only_frame(folder):
    (chunk,) = (p for p in folder.rglob("*") if p.is_file() and p.name[0] not in ".z")
    return chunk.read_bytes()


@classes
@dtypes
@pytest.mark.usefixtures("pipeline")
def test_format_3_stores_the_data_type(new_folder, cls, dtype):
    data, layout, folder = numbers(dtype), LAYOUTS.get(dtype, dtype), new_folder()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DtypeMismatchWarning)
        array = zarr.create_array(
            folder, data=data, chunks=data.shape, compressors=cls(dtype="auto")
        )
    (_, stored) = json.loads((folder / "zarr.json").read_text())["codecs"]
    assert stored == dict(cls(dtype=layout))
    assert bf16codecs.inspect(only_frame(folder))["dtype"] == layout
    assert_same_bits(zarr.open_array(folder)[:], data)
    array.resize((128, 30))
    array[64:] = data
    assert_same_bits(zarr.open_array(folder)[64:], data)


@pytest.mark.usefixtures("pipeline")
def test_format_3_inside_shards_and_with_steps(tmp_path):
    data = numbers("float32")
    zarr.create_array(
        tmp_path,
        data=data,
        chunks=(16, 30),
        shards=(64, 30),
        compressors=BF16Huffman("auto", steps=16),
    )
    (sharding,) = json.loads((tmp_path / "zarr.json").read_text())["codecs"]
    assert sharding["configuration"]["codecs"][1] == dict(BF16Huffman("float32", steps=16))
    assert_same_bits(zarr.open_array(tmp_path)[:], data)


@classes
@dtypes
@pytest.mark.usefixtures("pipeline")
def test_the_blocks_codec_stores_the_data_type(new_folder, cls, dtype):
    data, layout, folder = numbers(dtype), LAYOUTS.get(dtype, dtype), new_folder()
    blocks = BF16BlocksCodec(cls(dtype="auto"))
    zarr.create_array(folder, data=data, serializer=blocks, compressors=None)
    (stored,) = json.loads((folder / "zarr.json").read_text())["codecs"]
    assert stored["configuration"]["codec"] == dict(cls(dtype=layout))
    assert_same_bits(zarr.open_array(folder)[3:5], data[3:5])


def test_the_blocks_codec_is_arithmetic_as_conversions_are(tmp_path):
    array = zarr.create_array(
        tmp_path, data=numbers("float32"), serializer=BF16BlocksCodec(), compressors=None
    )
    assert array.serializer == BF16BlocksCodec(BF16Arithmetic("float32"))
    without = BF16BlocksCodec.from_dict({"name": "bf16codecs.blocks"})
    assert without == BF16BlocksCodec("huffman"), "what metadata mean has not changed"


@classes
@dtypes
def test_format_2_stores_auto_and_readers_ignore_it(new_folder, cls, dtype):
    data, codec, folder = numbers(dtype), cls(dtype="auto"), new_folder()
    zarr.create_array(folder, data=data, chunks=data.shape, compressors=codec, zarr_format=2)
    assert json.loads((folder / ".zarray").read_text())["compressor"] == codec.get_config()
    assert bf16codecs.inspect(only_frame(folder))["dtype"] == LAYOUTS.get(dtype, dtype)
    assert_same_bits(zarr.open_array(folder)[:], data)
    other = json.loads((folder / ".zarray").read_text())
    other["compressor"]["dtype"] = "float64"
    (folder / ".zarray").write_text(json.dumps(other))
    assert_same_bits(zarr.open_array(folder)[:], data)


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize(
    "options",
    [
        {"compressors": BF16Arithmetic(), "zarr_format": 2},
        {"compressors": BF16Arithmetic()},
        {"serializer": BF16BlocksCodec(BF16Arithmetic()), "compressors": None},
    ],
    ids=["format 2", "format 3", "blocks"],
)
def test_arrays_of_another_data_type_get_a_warning(tmp_path, options):
    data = numbers("float32")
    with pytest.warns(DtypeMismatchWarning, match="give dtype='float32', or dtype='auto'") as found:
        zarr.create_array(tmp_path, data=data, **options)
    assert {w.filename for w in found if w.category is DtypeMismatchWarning} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error", DtypeMismatchWarning)
        assert_same_bits(zarr.open_array(tmp_path)[:], data)
        for dtype in ("bfloat16", "uint8", "uint16", "int32"):
            zarr.create_array(tmp_path / dtype, data=numbers(dtype), **options)
