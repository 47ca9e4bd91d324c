"""Codec objects handed to zarr for arrays of format 3, and the codec classes behind them."""

import json
import pickle
import tomllib

import ml_dtypes
import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, ShardingCodec
from zarr.registry import get_codec_class

from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd, RunLength
from bf16codecs.bench.synthetic import RECIPES
from bf16codecs.errors import CorruptDataError
from bf16codecs.zarr import (
    BF16ArithmeticCodec,
    BF16HuffmanCodec,
    BF16SplitCodec,
    BF16ZstdCodec,
    RunLengthCodec,
)
from bits import assert_same_bits
from checkout import ROOT
from looping import for_each
from tiers import by_tier

# zarr compares every chunk with the fill value; ml_dtypes warns when it compares NaNs.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in equal")

BF16 = np.dtype(ml_dtypes.bfloat16)
CODECS = [
    BF16Split(by="byte"),
    BF16Huffman(),
    BF16Arithmetic(checksum=False, grid=False),
    BF16Zstd(level=5),
    RunLength(),
]
FRAME_CLASSES = [BF16SplitCodec, BF16HuffmanCodec, BF16ArithmeticCodec, BF16ZstdCodec]
V3_CLASSES = [*FRAME_CLASSES, RunLengthCodec]
codecs = for_each("codec", CODECS)
DTYPES = ["bfloat16", "complex64"], ["bfloat16", "float8_e5m2", "float32", "complex64"]
dtypes = for_each("dtype", by_tier(*DTYPES))
classes = for_each("cls", V3_CLASSES)
DATA = np.random.default_rng(0).normal(0, 0.02, (70, 30))


def codecs_on_disk(path):
    return json.loads((path / "zarr.json").read_text())["codecs"]


@codecs
@dtypes
@for_each("wrap", [lambda c: c, lambda c: [c]], ids=["c", "[c]"])
@pytest.mark.usefixtures("pipeline")
def test_create_array(new_folder, dtype, codec, wrap):
    data, folder = DATA.astype(dtype), new_folder()
    array = zarr.create_array(
        folder, data=data, chunks=(16, 30), compressors=wrap(codec), fill_value=0
    )
    for a in (array, zarr.open_array(folder, mode="r")):
        assert_same_bits(a[:], data)
        assert_same_bits(a[5:60:7, ::3], data[5:60:7, ::3])
    assert codecs_on_disk(folder)[1:] == [dict(codec)]


@for_each("codec", [BF16Huffman(), BF16Arithmetic(), BF16Arithmetic(level="best")])
def test_codecs_see_the_rows_of_chunks(new_folder, codec):
    """Grids of columns are found only in rows."""
    normal = np.random.default_rng(0).normal(0, 0.02, (256, 512)).astype(np.float32)
    data, folder = RECIPES["int8-columns"](normal).astype(BF16), new_folder()
    chunks = {"chunks": (256, 256), "compressors": codec, "fill_value": 0}
    array = zarr.create_array(folder, data=data, **chunks)
    assert_same_bits(array[:], data)
    expected = [codec.encode(np.ascontiguousarray(part)) for part in np.split(data, 2, axis=1)]
    assert [(folder / f"c/0/{i}").read_bytes() for i in range(2)] == expected
    assert len(expected[0]) < 0.75 * len(codec.encode(data[:, :256].tobytes()))


@codecs
@pytest.mark.usefixtures("pipeline")
def test_a_frame_that_claims_more_than_a_chunk_is_not_decoded(new_folder, codec):
    """A gigabyte would be 3 kB of constant blocks."""
    folder = new_folder()
    array = zarr.create_array(
        folder, shape=(100,), chunks=(100,), dtype="uint8", compressors=codec, fill_value=0
    )
    array[:] = 1
    (folder / "c/0").write_bytes(codec.encode(bytes(5000)))
    with pytest.raises(CorruptDataError, match="of 5000 bytes where a chunk has"):
        array[:]


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_texts_of_any_length(tmp_path):
    array = zarr.create_array(tmp_path, shape=(1,), dtype=str, compressors=BF16Huffman())
    array[:] = "x" * 100_000
    assert array[0] == "x" * 100_000


@codecs
@for_each("given_as", ["object", "format 3 class", "dict", "json"])
def test_codecs_argument(new_folder, codec, given_as):
    folder = new_folder()
    data = DATA.astype(BF16)
    given = {
        "object": codec,
        "format 3 class": get_codec_class(codec.codec_id).from_dict(codec),
        "dict": dict(codec),
        "json": json.loads(json.dumps(codec)),
    }[given_as]
    bytes_codec = {"name": "bytes", "configuration": {"endian": "little"}}
    array = zarr.open(
        store=folder,
        shape=data.shape,
        dtype=data.dtype,
        chunks=(16, 30),
        codecs=[bytes_codec, given],
        zarr_format=3,
    )
    array[:] = data
    assert_same_bits(zarr.open(folder, mode="r")[:], data)
    assert codecs_on_disk(folder) == [bytes_codec, dict(codec)]


@codecs
@dtypes
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_groups(new_folder, dtype, codec):
    data, folder = DATA.astype(dtype), new_folder()
    group = zarr.create_group(folder)
    group.create_array("a", data=data, compressors=codec, fill_value=0)
    group.create_array("b", data=data, compressors=[codec, zarr.codecs.Crc32cCodec()])
    zarr.consolidate_metadata(folder)
    for name in "ab":
        assert_same_bits(zarr.open_group(folder, mode="r")[name][:], data)


@codecs
@dtypes
@for_each("by", ["shards", "codec"])
@pytest.mark.usefixtures("pipeline")
def test_sharding(new_folder, dtype, codec, by):
    data, folder = DATA.astype(dtype), new_folder()
    if by == "shards":
        layout = {"chunks": (8, 10), "shards": (32, 30), "compressors": codec}
    else:
        sharding = ShardingCodec(chunk_shape=(8, 10), codecs=[BytesCodec(endian="little"), codec])
        layout = {"chunks": (32, 30), "serializer": sharding, "compressors": None}
    zarr.create_array(folder, data=data, **layout)
    array = zarr.open_array(folder, mode="r")
    assert_same_bits(array[:], data)
    assert_same_bits(array[3:50:9, 12:], data[3:50:9, 12:])
    (inner,) = codecs_on_disk(folder)
    assert inner["name"] == "sharding_indexed"
    assert inner["configuration"]["codecs"][1:] == [dict(codec)]


@codecs
@pytest.mark.usefixtures("pipeline")
def test_every_bfloat16(codec):
    data = np.arange(65536, dtype="u2").reshape(256, 256).view(BF16)
    array = zarr.create_array({}, data=data, compressors=codec, fill_value="NaN")
    assert_same_bits(array[:], data)


@codecs
def test_scalar_and_empty_arrays(codec):
    for data in (np.array(2.5).astype(BF16), np.zeros((0, 4), BF16)):
        array = zarr.create_array({}, data=data, compressors=codec)
        assert_same_bits(np.asarray(array[()] if data.ndim == 0 else array[:]), data)


@codecs
@dtypes
def test_arrays_pickle(new_folder, dtype, codec):
    data, folder = DATA.astype(dtype), new_folder()
    array = zarr.create_array(folder, data=data, compressors=codec)
    twin = pickle.loads(pickle.dumps(array))
    assert_same_bits(twin[:], data)
    assert twin.metadata.codecs == array.metadata.codecs


@codecs
@dtypes
def test_order_in_memory(dtype, codec):
    data = DATA.astype(dtype)
    array = zarr.create_array(
        {}, data=np.asfortranarray(data), compressors=codec, config={"order": "F"}
    )
    assert_same_bits(array[:], data)


@codecs
@pytest.mark.usefixtures("pipeline")
def test_partial_writes_and_resizing(codec):
    array = zarr.create_array({}, shape=(10, 10), chunks=(4, 4), dtype=BF16, compressors=codec)
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
    data = DATA.astype("f4")
    dask_array.from_array(data, chunks=(10, 30)).to_zarr(str(folder), compressors=codec)
    assert_same_bits(dask_array.from_zarr(str(folder)).compute(scheduler="sync"), data)
    assert codecs_on_disk(folder)[1:] == [dict(codec)]


@codecs
@for_each("wrap", [lambda c: c, lambda c: [c]], ids=["c", "[c]"])
def test_xarray(new_folder, codec, wrap):
    xarray = pytest.importorskip("xarray")
    folder = new_folder()
    data = DATA.astype("f4")
    dataset = xarray.Dataset({"w": (("row", "column"), data)})
    encoding = {"w": {"compressors": wrap(codec)}}
    dataset.to_zarr(folder, zarr_format=3, encoding=encoding, consolidated=False)
    reopened = xarray.open_zarr(folder, consolidated=False)
    assert_same_bits(reopened["w"].values, data)
    assert codecs_on_disk(folder / "w")[1:] == [dict(codec)]
    again = folder / "again"
    reopened.to_zarr(again, zarr_format=3, consolidated=False)
    assert codecs_on_disk(again / "w")[1:] == [dict(codec)]


def test_xarray_reads_bfloat16(tmp_path):
    xarray = pytest.importorskip("xarray")
    data = np.arange(65536, dtype="u2").reshape(256, 256).view(BF16)
    group = zarr.create_group(tmp_path)
    group.create_array(
        "w",
        data=data,
        compressors=BF16Huffman(),
        fill_value="0x7fff",
        dimension_names=("row", "column"),
    )
    assert_same_bits(xarray.open_zarr(tmp_path, consolidated=False)["w"].values, data)


@codecs
def test_calls_that_cannot_take_a_codec_refuse_it(new_folder, codec):
    folder = new_folder()
    make = {"shape": (10,), "dtype": "f4", "zarr_format": 3}
    with pytest.raises(ValueError, match="compressor"):
        zarr.open(store=folder / "a", compressor=codec, **make)
    with pytest.raises(ValueError, match="compressor"):
        zarr.save_array(folder / "b", np.zeros(10), compressor=codec, zarr_format=3)
    with pytest.raises(TypeError):
        zarr.open(store=folder / "c", compressors=codec, **make)
    with pytest.raises(TypeError, match="ArrayArrayCodec"):
        zarr.create_array(folder / "d", filters=codec, **make)
    with pytest.raises(TypeError, match="ArrayBytesCodec"):
        zarr.create_array(folder / "e", serializer=codec, **make)
    assert not list(folder.rglob("zarr.json"))


@codecs
def test_format_3_classes_describe_themselves(codec):
    cls = get_codec_class(codec.codec_id)
    assert cls in V3_CLASSES
    v3 = cls.from_dict(codec)
    assert v3.to_dict() == dict(codec)
    assert json.loads(json.dumps(v3.to_dict())) == dict(codec)
    twins = [cls.from_dict(v3.to_dict()), pickle.loads(pickle.dumps(v3)), eval(repr(v3))]
    for twin in twins:
        assert type(twin) is cls
        assert twin == v3
        assert hash(twin) == hash(v3)
    assert v3 == cls(**codec["configuration"])


@classes
def test_format_3_classes_check_their_configuration(cls):
    name = cls().to_dict()["name"]
    assert cls.from_dict({"name": name}) == cls()
    assert cls.from_dict({"name": name, "configuration": {}}) == cls()
    with pytest.raises(ValueError, match="unknown configuration: 'block'"):
        cls.from_dict({"name": name, "configuration": {"block": 1}})
    with pytest.raises(ValueError, match="gzip"):
        cls.from_dict({"name": "gzip", "configuration": {}})
    with pytest.raises(AttributeError):
        cls().dtype = "float32"


@for_each("cls", FRAME_CLASSES)
def test_format_3_classes_check_their_data_type(cls):
    assert cls(dtype=BF16).dtype == "bfloat16"
    with pytest.raises(ValueError, match="dtype must be one of"):
        cls(dtype="int8")


@classes
def test_encoded_size_is_not_known_beforehand(cls):
    assert cls.is_fixed_size is False
    with pytest.raises(NotImplementedError):
        cls().compute_encoded_size(100, None)


def test_damaged_chunks_raise(tmp_path):
    array = zarr.create_array(tmp_path, data=DATA.astype(BF16), compressors=BF16Arithmetic())
    chunk = tmp_path / "c" / "0" / "0"
    good = chunk.read_bytes()
    for bad in (good[:-1], good[:10], b"", good[:-1] + bytes([good[-1] ^ 1])):
        chunk.write_bytes(bad)
        with pytest.raises(ValueError, match=r"frame|block|data|checksum"):
            array[:]


@pytest.fixture
def entry_points(tmp_path):
    """A folder for PYTHONPATH with the package's entry points, as if it were installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = tmp_path / "path" / "bf16codecs-0.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bf16codecs\nVersion: 0.0.0\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {target}" for name, target in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return info.parent


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_open_where_the_package_was_never_imported(
    tmp_path, run_python, entry_points, zarr_format
):
    dtypes = ["float32", "bfloat16"]
    if tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 4):
        dtypes = ["float32"]  # earlier versions load no data types from entry points
    group = zarr.create_group(tmp_path / "store", zarr_format=zarr_format)
    for codec in CODECS:
        for dtype in dtypes:
            name = f"{codec.codec_id}-{dtype}"
            group.create_array(name, data=DATA.astype(dtype), compressors=codec)
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import zarr
for name, array in zarr.open_group(sys.argv[2], mode="r").arrays():
    print(name, float(array[:].astype("f8").sum()))
"""
    done = run_python(code, str(entry_points), str(tmp_path / "store"))
    sums = dict(line.split() for line in done.stdout.splitlines())
    assert sums == {name: str(float(a[:].astype("f8").sum())) for name, a in group.arrays()}
    assert len(sums) == len(CODECS) * len(dtypes)
