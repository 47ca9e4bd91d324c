"""Codec objects handed to zarr for arrays of format 2, in every call that takes them."""

import json
import pickle

import ml_dtypes
import numcodecs
import numpy as np
import pytest
import zarr

from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd, RunLength
from bits import assert_same_bits
from looping import for_each
from tiers import by_tier

# zarr compares every chunk with the fill value; ml_dtypes warns when it compares NaNs.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in equal")

BF16 = np.dtype(ml_dtypes.bfloat16)
CODECS = [BF16Split(), BF16Huffman(), BF16Arithmetic(checksum=False), BF16Zstd(5), RunLength()]
DATA = np.random.default_rng(0).normal(0, 0.02, (70, 30))
codecs = for_each("codec", CODECS)
dtypes = for_each("dtype", by_tier(["bfloat16", "int64"], ["bfloat16", "float32", "int64"]))


def compressor_on_disk(path):
    return json.loads((path / ".zarray").read_text())["compressor"]


@codecs
@dtypes
@for_each("wrap", [lambda c: c, lambda c: [c]], ids=["c", "[c]"])
@for_each("order", ["C", "F"])
def test_create_array(new_folder, dtype, codec, wrap, order):
    data, folder = DATA.astype(dtype), new_folder()
    array = zarr.create_array(
        folder,
        shape=data.shape,
        dtype=data.dtype,
        chunks=(16, 30),
        compressors=wrap(codec),
        order=order,
        zarr_format=2,
    )
    array[:] = data
    reopened = zarr.open_array(folder, mode="r")
    for a in (array, reopened):
        assert_same_bits(a[:], data)
        assert_same_bits(a[5:60:7, ::3], data[5:60:7, ::3])
        assert a.compressors == (codec,)
    assert compressor_on_disk(folder) == codec.get_config()


@codecs
@for_each("function", [zarr.open, zarr.open_array])
def test_compressor_argument(new_folder, codec, function):
    folder = new_folder()
    data = np.arange(600, dtype="f4").reshape(20, 30).astype(BF16)
    array = function(
        store=folder,
        mode="w",
        shape=data.shape,
        dtype=data.dtype,
        chunks=(7, 30),
        compressor=codec,
        zarr_format=2,
    )
    array[:] = data
    assert_same_bits(zarr.open(folder, mode="r")[:], data)
    assert compressor_on_disk(folder) == codec.get_config()


@codecs
def test_create(new_folder, codec):
    folder = new_folder()
    data = np.arange(600, dtype="f4").astype(BF16)
    array = zarr.create(600, store=folder, dtype=BF16, compressor=codec, zarr_format=2)
    array[:] = data
    assert_same_bits(zarr.open(folder, mode="r")[:], data)
    assert compressor_on_disk(folder) == codec.get_config()


@codecs
@dtypes
def test_save_array(new_folder, dtype, codec):
    data, folder = DATA.astype(dtype), new_folder()
    zarr.save_array(folder, data, compressor=codec, zarr_format=2)
    assert_same_bits(zarr.load(folder), data)
    assert compressor_on_disk(folder) == codec.get_config()


@codecs
def test_format_2_by_default(new_folder, codec):
    folder = new_folder()
    data = np.arange(100).astype(BF16)
    with zarr.config.set({"default_zarr_format": 2}):
        array = zarr.open(store=folder, shape=(100,), dtype=BF16, compressor=codec)
        array[:] = data
    assert_same_bits(zarr.open(folder)[:], data)
    assert compressor_on_disk(folder) == codec.get_config()


@codecs
@dtypes
def test_groups(new_folder, dtype, codec):
    data, folder = DATA.astype(dtype), new_folder()
    group = zarr.create_group(folder, zarr_format=2)
    group.create_array("a", data=data, compressors=codec)
    group.create_array("b", data=data, compressors=[codec], fill_value=None)
    zarr.consolidate_metadata(folder)
    for name in "ab":
        reopened = zarr.open_group(folder, mode="r")[name]
        assert_same_bits(reopened[:], data)
        assert reopened.compressors == (codec,)


@codecs
@dtypes
def test_as_a_filter(dtype, codec):
    data = DATA.astype(dtype)
    array = zarr.create_array(
        {}, data=data, filters=[codec], compressors=numcodecs.Zlib(), zarr_format=2
    )
    assert_same_bits(array[:], data)


@codecs
def test_every_bfloat16(codec):
    data = np.arange(65536, dtype="u2").reshape(256, 256).view(BF16)
    array = zarr.create_array({}, data=data, compressors=codec, zarr_format=2)
    assert_same_bits(array[:], data)


@codecs
def test_scalar_and_empty_arrays(codec):
    for data in (np.array(2.5).astype(BF16), np.zeros((0, 4), BF16)):
        array = zarr.create_array({}, data=data, compressors=codec, zarr_format=2)
        assert_same_bits(array[()] if data.ndim == 0 else array[:], data)


@codecs
@dtypes
def test_arrays_pickle(new_folder, dtype, codec):
    data, folder = DATA.astype(dtype), new_folder()
    array = zarr.create_array(folder, data=data, compressors=codec, zarr_format=2)
    twin = pickle.loads(pickle.dumps(array))
    assert_same_bits(twin[:], data)
    assert twin.compressors == (codec,)


@codecs
def test_partial_writes_and_resizing(codec):
    array = zarr.create_array(
        {}, shape=(10, 10), chunks=(4, 4), dtype=BF16, compressors=codec, zarr_format=2
    )
    expected = np.zeros((10, 10), BF16)
    for target in (array, expected):
        target[3:7, 2:9] = 1.5
        target[9, 9] = -2
    assert_same_bits(array[:], expected)
    array.resize((12, 5))
    assert_same_bits(array[:10], expected[:, :5])


@codecs
def test_dask(new_folder, codec):
    dask_array = pytest.importorskip("dask.array")
    folder = new_folder()
    data = np.arange(1200, dtype="f4").reshape(40, 30)
    chunked = dask_array.from_array(data, chunks=(10, 30))
    chunked.to_zarr(str(folder), compressors=codec, zarr_format=2)
    assert_same_bits(dask_array.from_zarr(str(folder)).compute(scheduler="sync"), data)
    assert compressor_on_disk(folder) == codec.get_config()


@codecs
@for_each("wrap", [lambda c: c, lambda c: [c]], ids=["c", "[c]"])
def test_xarray(new_folder, codec, wrap):
    xarray = pytest.importorskip("xarray")
    folder = new_folder()
    data = np.random.default_rng(0).normal(0, 1, (20, 30)).astype("f4")
    dataset = xarray.Dataset({"w": (("row", "column"), data)})
    dataset.to_zarr(folder, zarr_format=2, encoding={"w": {"compressors": wrap(codec)}})
    reopened = xarray.open_zarr(folder)
    assert_same_bits(reopened["w"].values, data)
    assert compressor_on_disk(folder / "w") == codec.get_config()
    again = folder / "again"
    reopened.to_zarr(again, zarr_format=2)
    assert compressor_on_disk(again / "w") == codec.get_config()


@codecs
def test_calls_that_cannot_take_a_codec_refuse_it(new_folder, codec):
    folder = new_folder()
    make = {"shape": (10,), "dtype": "f4"}
    with pytest.raises(TypeError):
        zarr.open(store=folder / "a", compressors=codec, zarr_format=2, **make)
    with pytest.raises(ValueError, match="codecs"):
        zarr.open(store=folder / "b", codecs=[codec], zarr_format=2, **make)
    with pytest.raises(TypeError, match="must be a single codec"):
        zarr.create_array(folder / "c", compressors=[codec, codec], zarr_format=2, **make)
    assert not list(folder.rglob(".zarray"))
