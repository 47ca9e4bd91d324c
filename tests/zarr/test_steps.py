"""Arrays whose chunks hold steps: in both formats, in shards, by other libraries, and in part."""

import json

import ml_dtypes
import numpy as np
import pytest
import zarr
from zarr.registry import get_codec_class

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman
from bf16codecs.errors import CodecError
from bf16codecs.zarr import BF16ArithmeticCodec, BF16BlocksCodec, BF16HuffmanCodec
from bits import assert_same_bits
from counting_store import CountingStore
from looping import for_each
from native_core import core
from versions import ancestors, fields, weights

pytestmark = [
    pytest.mark.usefixtures("pipeline"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in equal"),
]

FIELD = fields(20, 30, 50)  # 20 hours, in chunks of 8
CODECS = [
    BF16Huffman("float32", steps=8),
    BF16Arithmetic("float32", steps=8),
    BF16Arithmetic("float32", level="best", checksum=False, steps=8),
]
codecs = for_each("codec", CODECS)
formats = for_each("zarr_format", [2, 3])


def create(store, data, codec, chunks, **options):
    options = {"compressors": codec, **options}
    return zarr.create_array(store, data=data, chunks=chunks, fill_value=0, **options)


def in_blocks(codec):
    return {"serializer": BF16BlocksCodec(codec), "compressors": None}


def check(array, data):
    assert_same_bits(array[:], data)
    assert_same_bits(array[5], data[5])
    assert_same_bits(array[3:19:4, ::7, 2:5], data[3:19:4, ::7, 2:5])
    assert_same_bits(array.oindex[[1, 9, 13], 2:9, 4], data[[1, 9, 13], 2:9, 4])
    assert_same_bits(array.vindex[[1, 14], [2, 29], [0, 9]], data[[1, 14], [2, 29], [0, 9]])


@codecs
@formats
def test_arrays_are_compressed_by_steps(new_folder, codec, zarr_format):
    folder = new_folder()
    array = create(folder, FIELD, codec, (8, 30, 50), zarr_format=zarr_format)
    for a in (array, zarr.open_array(folder, mode="r")):
        check(a, FIELD)
    config = codec.get_config()
    config.pop("steps")
    plain = create({}, FIELD, type(codec).from_config(config), (8, 30, 50), zarr_format=zarr_format)
    assert array.nbytes_stored() < 0.75 * plain.nbytes_stored()
    key = "c/1/0/0" if zarr_format == 3 else "1.0.0"
    assert bf16codecs.inspect((folder / key).read_bytes())["steps"] == 8


@codecs
@for_each("options", [lambda c: {"compressors": c}, in_blocks], ids=["c", "blocks"])
@for_each("shards", [None, (16, 30, 50)])
def test_in_shards_and_in_blocks(new_folder, codec, options, shards):
    folder = new_folder()
    array = create(folder, FIELD, None, (8, 30, 50), **options(codec), shards=shards)
    for a in (array, zarr.open_array(folder, mode="r")):
        check(a, FIELD)


@codecs
def test_steps_are_written_one_by_one(codec):
    for options in ({"compressors": codec}, in_blocks(codec)):
        array = zarr.create_array(
            {}, shape=FIELD.shape, chunks=(8, 30, 50), dtype="f4", fill_value=0, **options
        )
        for step, values in enumerate(FIELD):
            array[step] = values
        check(array, FIELD)
        array.append(FIELD[:3])
        assert_same_bits(array[19:], np.concatenate([FIELD[19:], FIELD[:3]]))


def test_weights_of_a_training_run():
    data = weights(8, 100, 64)
    array = create({}, data, BF16Arithmetic(steps=8), (8, 50, 64))
    assert_same_bits(array[:], data)
    assert array.nbytes_stored() < 0.5 * data.nbytes


@formats
def test_xarray(new_folder, zarr_format):
    xarray = pytest.importorskip("xarray")
    folder = new_folder()
    codec = BF16Arithmetic("float32", steps=8)
    dataset = xarray.Dataset({"t2m": (("time", "latitude", "longitude"), FIELD)})
    encoding = {"t2m": {"compressors": codec, "chunks": (8, 30, 50)}}
    dataset.to_zarr(folder, zarr_format=zarr_format, encoding=encoding, consolidated=False)
    reopened = xarray.open_zarr(folder, consolidated=False)["t2m"]
    assert_same_bits(reopened.values, FIELD)
    assert_same_bits(reopened.isel(time=5).values, FIELD[5])
    assert_same_bits(reopened.isel(time=slice(6, 18, 5), longitude=7).values, FIELD[6:18:5, :, 7])


@formats
def test_dask(new_folder, zarr_format):
    dask_array = pytest.importorskip("dask.array")
    folder = new_folder()
    array = create(
        folder, FIELD, BF16Arithmetic("float32", steps=8), (8, 30, 50), zarr_format=zarr_format
    )
    lazy = dask_array.from_array(array, chunks=(4, 30, 50))
    assert_same_bits(lazy[3:17].compute(scheduler="threads"), FIELD[3:17])
    assert_same_bits(dask_array.from_zarr(str(folder)).compute(scheduler="sync"), FIELD)


@codecs
def test_metadata_have_steps_where_there_are_several(tmp_path, codec):
    for options in ({"compressors": codec}, in_blocks(codec)):
        create(tmp_path, FIELD, None, (8, 30, 50), overwrite=True, **options)
        assert '"steps": 8' in (tmp_path / "zarr.json").read_text()
        config = codec.get_config()
        config.pop("steps")
        one = type(codec).from_config(config)
        options = {"compressors": one} if "compressors" in options else in_blocks(one)
        create(tmp_path, FIELD, None, (8, 30, 50), overwrite=True, **options)
        assert "steps" not in (tmp_path / "zarr.json").read_text()


@for_each("cls", [BF16HuffmanCodec, BF16ArithmeticCodec])
def test_classes_of_zarr_take_steps(cls):
    codec = cls(dtype="float32", steps=np.int64(8))
    assert codec.to_dict()["configuration"]["steps"] == 8
    assert json.loads(json.dumps(codec.to_dict())) == codec.to_dict()
    assert cls.from_dict(codec.to_dict()) == codec
    assert get_codec_class(codec.to_dict()["name"]).from_dict(codec.to_dict()) == codec
    assert "steps" not in cls(steps=1).to_dict()["configuration"]
    assert cls(steps=1) == cls()
    check(create({}, FIELD, codec, (8, 30, 50)), FIELD)
    for steps, error in ((0, ValueError), (65535, ValueError), (True, TypeError), ("8", TypeError)):
        with pytest.raises(error, match="steps must be"):
            cls(steps=steps)
        with pytest.raises(error, match="steps must be"):
            cls.from_dict({"name": codec.to_dict()["name"], "configuration": {"steps": steps}})


@codecs
def test_chunks_that_steps_do_not_divide_are_refused_when_an_array_is_made(codec):
    for options in ({"compressors": codec}, in_blocks(codec)):
        with pytest.raises(ValueError, match="are not 8 steps of whole float32 items"):
            zarr.create_array({}, shape=(70, 5), chunks=(7, 5), dtype="f4", **options)
        # Sizes below a step's items as well.
        with pytest.raises(ValueError, match="are not 8 steps of whole float32 items"):
            zarr.create_array({}, shape=(8, 5), chunks=(8, 5), dtype=ml_dtypes.bfloat16, **options)
        # Any divisor will do.
        zarr.create_array({}, shape=(4, 10), chunks=(4, 10), dtype="f4", **options)


@codecs
@for_each("options", [{"shards": (14, 5)}, {"zarr_format": 2}])
def test_in_shards_and_format_2_they_are_refused_on_writing(codec, options):
    """Inside shards, zarr 3.4 also asks the codec when the array is created."""
    common = {"shape": (14, 5), "chunks": (7, 5), "dtype": "f4", "compressors": codec}
    with pytest.raises(ValueError, match="140 bytes are not 8 steps of whole float32 items"):
        zarr.create_array({}, **common, **options)[:] = 1


@pytest.fixture
def large():
    """A chunk of 16 steps of 1 MiB: 2 blocks each, and 25 rows in the last."""
    store = CountingStore()
    data = fields(16, 281, 1024)
    codec = BF16Arithmetic("float32", steps=16)
    array = create(store, data, None, data.shape, **in_blocks(codec))
    store.requests.clear()
    return store, data, array


def frame_of(store):
    return store.content["c/0/0/0"].to_bytes()


@for_each(
    "selection, versions, places",
    [
        (np.s_[0], [0], range(3)),
        (np.s_[7], [7], range(3)),
        (np.s_[9, 5], [9], [0]),
        (np.s_[9, -1, -5:], [9], [2]),
        (np.s_[5:7, 130], [5, 6], [1]),
        (np.s_[::8, ::280, 3], [0, 8], [0, 2]),
    ],
)
def test_fetches_the_blocks_of_the_versions_on_the_way(large, selection, versions, places):
    store, data, array = large
    store.requests.clear()
    assert_same_bits(array[selection], data[selection])
    wanted = {a for v in versions for a in (v, *ancestors(v))}
    offsets = core.Index(frame_of(store)).offsets
    blocks = [3 * v + place for v in wanted for place in places]
    head = sum(length for request, length in store.requests if request.start < offsets[0])
    assert store.fetched() - head == sum(offsets[b + 1] - offsets[b] for b in blocks)


def test_a_damaged_step_stays_alone(large):
    store, data, array = large
    frame = bytearray(frame_of(store))
    offsets = core.Index(bytes(frame)).offsets
    frame[offsets[3 * 6 + 1] + 30] ^= 1  # step 6, from which 7 comes
    store.content["c/0/0/0"] = store.content["c/0/0/0"].from_bytes(bytes(frame))
    for step in range(16):
        if step in (6, 7):
            with pytest.raises(CodecError, match="block 19 of 48"):
                array[step]
            assert_same_bits(array[step, :128], data[step, :128])
        else:
            assert_same_bits(array[step], data[step])
    with pytest.raises(CodecError, match="block 19 of 48"):
        array[:]


def test_frames_with_a_base_outside_are_refused(tmp_path):
    data = fields(1, 30, 50)
    base = fields(1, 30, 50, seed=1)
    codec = BF16Arithmetic("float32")
    frame = bf16codecs.encode_delta(codec, data, base)
    for options in ({"compressors": codec}, in_blocks(codec)):
        array = create(tmp_path, data, None, data.shape, overwrite=True, **options)
        (tmp_path / "c/0/0/0").write_bytes(frame)
        with pytest.raises(bf16codecs.errors.BaseMismatchError, match="base="):
            array[:]
