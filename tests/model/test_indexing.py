"""A lazy tensor is indexed like its array, with chunks of every form."""

import contextlib

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bf16codecs
import tiers
from bf16codecs._arrays import indexing, library
from bf16codecs.convert import safetensors_to_hdf5
from bits import assert_same_bits
from lazy_models import weights, write_safetensors, write_store
from looping import noted

pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value encountered in equal"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]

# 2.3 blocks of 512 KiB; chunks of 64 KiB, 700 KB (an edge chunk with padding) and one for all.
ARRAY = weights((60, 50, 100), "float32")
CHUNKS = {"small": 1 << 16, "edge": 700_000, "one": 1 << 22}


def in_form(tmp_path, form):
    """Write the array as tensor "w" in some form."""
    if form == "safetensors":
        return write_safetensors(tmp_path / "w.safetensors", {"w": ARRAY})
    if form in CHUNKS:
        return write_store(tmp_path / "w.zarr", {"w": ARRAY}, chunk_size=CHUNKS[form])
    if form == "hdf5":
        source = write_safetensors(tmp_path / "w.safetensors", {"w": ARRAY})
        safetensors_to_hdf5(source, tmp_path / "w.h5", chunk_size=700_000)
        return tmp_path / "w.h5"
    if form == "zip":
        return write_store(tmp_path / "w.zarr.zip", {"w": ARRAY}, chunk_size=700_000)
    if form == "format 2":
        return write_store(tmp_path / "w.zarr", {"w": ARRAY}, chunk_size=700_000, zarr_format=2)
    if form in ("none", "zstd", "split"):
        return write_store(tmp_path / "w.zarr", {"w": ARRAY}, chunk_size=700_000, codec=form)
    path = write_store(tmp_path / "w.zarr", {"w": ARRAY})
    options = {
        "rechunked": {"chunks": (7, 20, 30), "compressors": bf16codecs.BF16Huffman("float32")},
        "column chunks": {
            "chunks": (60, 25, 10),
            "serializer": zarr.codecs.BytesCodec(endian="little"),
        },
        "slashes": {"chunk_key_encoding": {"name": "default", "separator": "/"}},
        "v2 keys": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
        "blosc": {"compressors": zarr.codecs.BloscCodec()},
        "gzip": {"compressors": zarr.codecs.GzipCodec(level=1)},
        "sharded": {"chunks": (30, 25, 50), "shards": (60, 50, 100)},
        "standard zstd": {"compressors": zarr.codecs.ZstdCodec(checksum=True)},
    }[form]
    group = zarr.open_group(path)
    zarr.create_array(group.store, name="w", data=ARRAY, overwrite=True, **options)
    zarr.consolidate_metadata(group.store)
    return path


DIRECT = [
    *("safetensors", "hdf5", "small", "edge", "one", "zip", "format 2", "none", "zstd", "split"),
    *("rechunked", "column chunks", "slashes", "v2 keys", "standard zstd"),
]
BY_ZARR = ["blosc", "gzip", "sharded"]


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    """The array in each form."""
    with contextlib.ExitStack() as stack:
        tensors = {}
        for form in (*DIRECT, *BY_ZARR):
            path = in_form(tmp_path_factory.mktemp("forms"), form)
            tensors[form] = stack.enter_context(bf16codecs.open_model(path))["w"]
        yield tensors


def test_which_forms_are_read_by_zarr(tensors):
    for form, tensor in tensors.items():
        assert isinstance(tensor._array, library.LibraryArray) == (form in BY_ZARR), form


MASK = ARRAY > 0.04
ROWS = np.array([59, 0, 7, 7, -1])

SELECTIONS = [
    np.s_[:],
    np.s_[...],
    np.s_[()],
    np.s_[7],
    np.s_[-1],
    np.s_[3:20],
    np.s_[20:3],
    np.s_[::-1],
    np.s_[-5:2:-7, 3:9, ::4],
    np.s_[5, 6, 7],
    np.s_[5, ..., 7],
    np.s_[5, 6, 7, ...],
    np.s_[..., 3],
    np.s_[:, 7],
    np.s_[:, :, 99:],
    np.s_[None, 3:5, None, ..., None],
    np.s_[10:10],
    [59, 0, 7, 7, -1],
    [],
    ROWS,
    np.s_[ROWS, 3:40:9],
    np.s_[:, ROWS[2:], 5],
    np.s_[5, :, ROWS],
    np.s_[ROWS.reshape(5, 1), :, 1],
    np.s_[ROWS, ROWS % 50, ROWS % 60],
    np.s_[ROWS, :, ROWS],
    np.s_[[1, 2], [[3], [4]], None, 5:8],
    np.s_[np.array(3), np.uint8(4)],
    np.s_[np.arange(60) % 7 == 0, 2:4],
    MASK,
    np.s_[MASK[:, :, 3], 2:4],
    np.s_[True, 3],
    np.s_[np.zeros(60, bool)],
]


def test_selections_are_numpys(tensors):
    for form, tensor in tensors.items():
        # All forms share the way to their chunks, so that some need only a third of the selections.
        step = 1 if form in ("edge", "hdf5", "blosc") else tiers.by_tier(3, 1)
        for selection in SELECTIONS[::step]:
            expected = ARRAY[selection]
            with noted(form, selection):
                actual = tensor[selection]
                assert type(actual) is type(expected)
                assert actual.shape == expected.shape
                assert_same_bits(actual, expected)


@settings(max_examples=tiers.by_tier(5, 40))
@given(selection=hnp.basic_indices(ARRAY.shape, allow_newaxis=True))
def test_any_basic_selection_is_numpys(tensors, selection):
    for form, tensor in tensors.items():
        with noted(form):
            assert_same_bits(tensor[selection], ARRAY[selection])


@settings(max_examples=tiers.by_tier(5, 20))
@given(data=st.data())
def test_any_integer_arrays_are_numpys(tensors, data):
    shapes = hnp.array_shapes(max_dims=2, max_side=3)
    arrays = data.draw(hnp.integer_array_indices(ARRAY.shape, result_shape=shapes))
    picked = data.draw(st.sets(st.integers(0, 2), min_size=1))
    selection = tuple(arrays[a] if a in picked else slice(1, None, 17) for a in range(3))
    for form, tensor in tensors.items():
        with noted(form):
            assert_same_bits(tensor[selection], ARRAY[selection])


WRONG = [
    *(60, -61, np.s_[0, 50], np.s_[0, 0, 0, 0], [60], np.s_[..., ...], 1.5, "w"),
    *(np.zeros(3, bool), np.zeros((60, 3), bool), [1.5], np.s_[[1, 2], [1, 2, 3]]),
]


def test_wrong_selections_raise_what_numpy_raises(tensors):
    for selection in WRONG:
        with pytest.raises(IndexError):
            ARRAY[selection]
        for form, tensor in tensors.items():
            with noted(form, selection), pytest.raises(IndexError):
                tensor[selection]


@pytest.mark.parametrize("zarr_format", [3, 2])
@pytest.mark.parametrize("codec", ["huffman", "none"])
def test_scalars_and_empty_tensors(tmp_path, zarr_format, codec):
    arrays = {
        "scalar": weights(()),
        "empty": weights((0, 5)),
        "empty inside": weights((3, 0, 2), "float16"),
        "one": weights((1,), "float64"),
    }
    path = write_store(tmp_path / "m.zarr", arrays, zarr_format=zarr_format, codec=codec)
    with bf16codecs.open_model(path) as model:
        for name, array in arrays.items():
            tensor = model[name]
            assert (tensor.shape, tensor.size, tensor.nbytes) == (
                array.shape,
                array.size,
                array.nbytes,
            )
            assert_same_bits(np.asarray(tensor), array)
            assert_same_bits(tensor[...], array)
        assert type(model["scalar"][()]) is type(arrays["scalar"][()])
        assert model["scalar"][...].shape == ()
        assert model["scalar"][None, ...].shape == (1,)
        assert_same_bits(model["empty"][:, 3], arrays["empty"][:, 3])
        assert_same_bits(model["empty"][np.zeros((0, 5), bool)], arrays["empty"].ravel())
        with pytest.raises(IndexError):
            model["empty"][0]
        with pytest.raises(TypeError):
            len(model["scalar"])


def test_a_tail_that_is_no_whole_item(tmp_path):
    """Other software may use a codec for wide items on narrow ones; frames then end with a tail."""
    data = np.arange((1 << 20) + 3).astype("u1") | 1
    path = write_store(tmp_path / "w.zarr", {"w": data, "tiny": data[:3]})
    group = zarr.open_group(path)
    serializer = bf16codecs.zarr.BF16BlocksCodec(bf16codecs.BF16Huffman("float64"))
    for name, part in (("w", data), ("tiny", data[:3])):
        zarr.create_array(
            group.store,
            name=name,
            data=part,
            overwrite=True,
            serializer=serializer,
            compressors=None,
            chunks=part.shape,
        )
    zarr.consolidate_metadata(group.store)
    with bf16codecs.open_model(path) as model:
        for selection in (np.s_[:], np.s_[-1:], np.s_[-2], np.s_[-5:-1], np.s_[:9], np.s_[3:-2]):
            assert_same_bits(model["w"][selection], data[selection])
        assert_same_bits(model["tiny"][1:], data[1:3])


def test_points_take_no_memory_for_an_axis():
    picked = np.array([0, -1]), np.array([[1], [2]])
    rows, columns = indexing.parse_selection(picked, (1 << 53, 3)).indices
    assert rows.tolist() == [[0, (1 << 53) - 1]] * 2
    assert columns.tolist() == [[1, 1], [2, 2]]
