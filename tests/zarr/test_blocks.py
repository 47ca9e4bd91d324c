"""The serializer whose chunks are read block by block: its arrays are exact."""

import json
import pickle

import ml_dtypes
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.dtype import parse_dtype
from zarr.storage import LocalStore, ZipStore

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd
from bf16codecs.zarr import BF16BlocksCodec
from bits import assert_same_bits, bits
from looping import for_each
from selections import selections
from tiers import by_tier

pytestmark = [
    pytest.mark.usefixtures("pipeline"),
    # zarr compares every chunk with the fill value; ml_dtypes warns when it compares NaNs.
    pytest.mark.filterwarnings("ignore:invalid value encountered in equal"),
]

BF16 = np.dtype(ml_dtypes.bfloat16)
CODECS = [
    BF16Split(),
    BF16Huffman(),
    BF16Arithmetic(checksum=False),
    BF16Arithmetic(level="best"),
    BF16Zstd(level=5),
]
codecs = for_each("codec", CODECS)
BLOCK_BYTES = 1 << 19


def weights(shape, dtype=BF16):
    return np.random.default_rng(0).normal(0, 0.02, shape).astype(dtype)


def create(store, data, codec="huffman", **options):
    options = {"chunks": data.shape, "compressors": None, "fill_value": 0, **options}
    return zarr.create_array(store, data=data, serializer=BF16BlocksCodec(codec), **options)


@codecs
@for_each("dtype", ["bfloat16", *by_tier([], ["float8_e4m3fn", "float32"]), "complex64", "int16"])
def test_arrays_round_trip(new_folder, codec, dtype):
    data, folder = weights((70, 30), dtype), new_folder()
    array = create(folder, data, codec, chunks=(16, 20))
    for a in (array, zarr.open_array(folder, mode="r"), pickle.loads(pickle.dumps(array))):
        assert_same_bits(a[:], data)
        assert_same_bits(a[5:60:7, ::3], data[5:60:7, ::3])
        assert_same_bits(a.oindex[[1, 40, 3], 2:9], data[[1, 40, 3], 2:9])
        assert_same_bits(a.vindex[[1, 40], [2, 29]], data[[1, 40], [2, 29]])


@pytest.fixture
def large_arrays():
    """Return an array of 2.8 blocks, and arrays of zarr with these numbers."""
    large = weights((37, 101, 97), "float32")
    codec = BF16Arithmetic(dtype="float32")
    one = create({}, large, codec)
    return large, {"one chunk": one, "several": create({}, large, codec, chunks=(37, 60, 97))}


@given(data=st.data(), name=st.sampled_from(["one chunk", "several"]))
def test_selections_are_numpys(large_arrays, data, name):
    large, arrays = large_arrays
    array = arrays[name]
    selection = tuple(data.draw(selections(length)) for length in large.shape)
    assert_same_bits(array[selection], large[selection])
    rows = data.draw(st.lists(st.integers(0, 36), min_size=1, max_size=5))
    columns = data.draw(selections(97))
    assert_same_bits(array.oindex[rows, 3, columns], large[rows, 3][:, columns])
    points = tuple(
        np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=4, max_size=4)))
        for n in large.shape
    )
    assert_same_bits(array.vindex[points], large[points])
    mask = np.zeros(large.shape, bool)
    mask[points] = True
    assert_same_bits(array.get_mask_selection(mask), large[mask])


def test_missing_chunks_have_the_fill_value():
    array = zarr.create_array(
        {},
        shape=(2048, 2048),
        chunks=(1024, 2048),
        dtype=BF16,
        serializer=BF16BlocksCodec(),
        compressors=None,
        fill_value="0x7fff",
    )
    data = np.full((2048, 2048), 0x7FFF, "u2").view(BF16)
    array[:1024] = data[:1024] = weights((1024, 2048))
    for selection in (np.s_[1500, 3:7], np.s_[:, 7], np.s_[1000:1100:3], np.s_[:]):
        assert_same_bits(array[selection], data[selection])


@pytest.mark.parametrize("tail", [1, 2, 3])
@pytest.mark.filterwarnings(
    "ignore:The data type .RawBytes:zarr.errors.UnstableSpecificationWarning"
)
def test_elements_that_are_no_whole_items(tail):
    """Elements of 3 bytes straddle blocks, and the frame's tail belongs to the last block."""
    count = BLOCK_BYTES + tail
    data = np.random.default_rng(0).bytes(3 * count)
    data = np.frombuffer(data, "V3")
    array = create({}, data, BF16Huffman(), fill_value=b"---")
    for selection in (np.s_[:9], np.s_[-1:], np.s_[BLOCK_BYTES // 3 - 2 : BLOCK_BYTES // 3 + 2]):
        assert array[selection].tobytes() == data[selection].tobytes()
    assert array[:].tobytes() == data.tobytes()


def test_zero_dimensional_and_empty_arrays():
    for data in (np.array(1.5).astype(BF16), np.zeros((0, 3), BF16)):
        chunks = tuple(max(1, n) for n in data.shape)
        assert_same_bits(create({}, data, chunks=chunks)[()], data)


def test_every_bfloat16():
    data = np.arange(65536, dtype="u2").repeat(10).view(BF16)
    array = create({}, data, fill_value="NaN")
    assert_same_bits(array[:], data)
    assert_same_bits(array[300_000:310_000:3], data[300_000:310_000:3])


@pytest.mark.parametrize("order", ["<", ">"])
def test_chunks_are_little_endian(tmp_path, order):
    dtype = BF16.newbyteorder(order)
    data = np.arange(65536, dtype="u2").repeat(10).view(BF16)
    array = zarr.create_array(
        tmp_path,
        shape=data.shape,
        chunks=data.shape,
        dtype=dtype,
        serializer=BF16BlocksCodec(),
        compressors=None,
        fill_value="NaN",
    )
    array[:] = data.astype(dtype)
    stored = bf16codecs.decode((tmp_path / "c" / "0").read_bytes())
    assert stored == bits(data).astype("<u2").tobytes()
    for a in (array, zarr.open_array(tmp_path)):
        assert_same_bits(a[:].astype(BF16), data)
        assert_same_bits(a[3:400_000:100_000].astype(BF16), data[3:400_000:100_000])


def test_fortran_order_in_memory():
    data = weights((700, 900))
    array = create({}, np.asfortranarray(data), config={"order": "F"})
    assert_same_bits(array[:], data)
    assert_same_bits(array[5:9, 3:800:7], data[5:9, 3:800:7])


@codecs
def test_inside_shards(new_folder, codec):
    data, folder = weights((1200, 1100)), new_folder()
    array = create(folder, data, codec, chunks=(600, 550), shards=(1200, 1100))
    for a in (array, zarr.open_array(folder)):
        assert_same_bits(a[:], data)
        assert_same_bits(a[599:602, ::7], data[599:602, ::7])
    array[5:10, 3] = data[5:10, 3] = weights(5)
    assert_same_bits(array[:12], data[:12])


@pytest.mark.parametrize("kind", ["local", "zip"])
def test_other_stores(tmp_path, kind):
    data = weights((1024, 2048))
    cls, path, mode = {
        "local": (LocalStore, tmp_path / "a.zarr", {}),
        "zip": (ZipStore, tmp_path / "a.zip", {"mode": "w"}),
    }[kind]
    with cls(path, **mode) as store:
        create(store, data)
    with cls(path, read_only=True) as store:
        array = zarr.open_array(store, mode="r")
        assert_same_bits(array[700, 3:50], data[700, 3:50])
        assert_same_bits(array[:], data)


def test_works_behind_another_codec():
    data = weights((1024, 2048))
    array = create({}, data, compressors=zarr.codecs.Crc32cCodec())
    assert_same_bits(array[700, 3:50], data[700, 3:50])


def test_partial_writes():
    data = weights((1024, 2048))
    array = create({}, data)
    array[10:900:3, 5] = data[10:900:3, 5] = weights(297)
    assert_same_bits(array[:, 5], data[:, 5])
    assert_same_bits(array[:], data)


def test_a_name_stands_for_the_layout_of_the_array(tmp_path):
    layouts = {
        "bfloat16": "bfloat16",
        "float16": "float16",
        "float32": "float32",
        "float64": "float64",
        "float8_e5m2": "float8_e5m2",
        "int8": "float8_e4m3fn",
        "uint16": "bfloat16",
        "int32": "float32",
        "int64": "float64",
        "complex64": "float32",
        "complex128": "float64",
    }
    for dtype, layout in layouts.items():
        zarr.create_array(
            tmp_path / dtype,
            shape=(4,),
            dtype=dtype,
            serializer=BF16BlocksCodec("zstd"),
            compressors=None,
        )
        stored = json.loads((tmp_path / dtype / "zarr.json").read_text())["codecs"]
        assert stored == [
            {
                "name": "bf16codecs.blocks",
                "configuration": {"codec": dict(BF16Zstd(dtype=layout))},
            }
        ]


@codecs
def test_describes_itself(codec):
    blocks = BF16BlocksCodec(codec)
    assert blocks.to_dict() == {
        "name": "bf16codecs.blocks",
        "configuration": {"codec": {"name": codec.codec_id, **codec}},
    }
    twins = [
        BF16BlocksCodec.from_dict(json.loads(json.dumps(blocks.to_dict()))),
        BF16BlocksCodec(dict(codec)),
        pickle.loads(pickle.dumps(blocks)),
        eval(repr(blocks)),
    ]
    for twin in twins:
        assert twin == blocks
        assert hash(twin) == hash(blocks)
    name = codec.codec_id.split(".")[1]
    assert BF16BlocksCodec(name) == BF16BlocksCodec(codec.codec_id)
    assert BF16BlocksCodec.from_dict(BF16BlocksCodec(name).to_dict()) == BF16BlocksCodec(name)
    assert BF16BlocksCodec.from_dict({"name": "bf16codecs.blocks"}) == BF16BlocksCodec("huffman")
    with pytest.raises(NotImplementedError):
        blocks.compute_encoded_size(100, None)


@for_each(
    "configuration, error, message",
    [
        ({"codec": "gzip"}, ValueError, "'gzip'"),
        ({"codec": {"name": "gzip", "configuration": {}}}, ValueError, "'gzip'"),
        ({"codec": 3}, TypeError, "codec must be"),
        ({"codec": None}, TypeError, "codec must be"),
        ({"codec": {"configuration": {}}}, ValueError, "name"),
        ({"codec": "zstd", "level": 3}, ValueError, "unknown configuration: 'level'"),
        ({"codec": {"name": "bf16codecs.zstd", "level": 3}}, ValueError, "configuration: 'level'"),
        (
            {"codec": {"name": "bf16codecs.zstd", "configuration": {"window": 3}}},
            ValueError,
            "unknown configuration: 'window'",
        ),
    ],
)
def test_invalid_configurations_are_refused(configuration, error, message):
    with pytest.raises(error, match=message):
        BF16BlocksCodec.from_dict({"name": "bf16codecs.blocks", "configuration": configuration})


def test_data_types_without_a_fixed_size_are_refused():
    with pytest.raises(TypeError, match="fixed size"):
        BF16BlocksCodec().validate(
            shape=(3,), dtype=parse_dtype(str, zarr_format=3), chunk_grid=None
        )


def test_damaged_chunks_raise(tmp_path):
    data = weights((1024, 2048))
    array = create(tmp_path, data)
    chunk = tmp_path / "c" / "0" / "0"
    good = chunk.read_bytes()
    middle = bytearray(good)
    middle[len(good) // 2] ^= 1
    wrong_size = BF16Huffman().encode(data[:-1])
    for bad in (b"", good[:10], good[: len(good) // 2], bytes(middle), wrong_size):
        chunk.write_bytes(bad)
        with pytest.raises(bf16codecs.errors.CodecError):
            array[:]
        with pytest.raises(bf16codecs.errors.CodecError):
            array[500:520]
    chunk.write_bytes(bytes(middle))
    assert_same_bits(array[0], data[0])
