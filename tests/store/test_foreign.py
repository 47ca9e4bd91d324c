"""Stores and datasets of other programs: read correctly, or refused in one line."""

from __future__ import annotations

import itertools
import shutil
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import tiers
from bf16codecs import hdf5
from bf16codecs.convert import (
    hdf5_to_safetensors,
    safetensors_to_hdf5,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import CorruptDataError, StoreError
from bf16codecs.model import open_model
from edit_store import edit_array, edit_json
from lazy_models import in_memory
from looping import noted
from models import file_bytes, write_model
from store_cases import put_back


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tensors = [("a", "BF16", (64, 32)), ("b", "F32", (40, 8)), ("n", "I16", (9,))]
    return write_model(tmp_path / "m.safetensors", tensors)


@pytest.fixture
def store(source: Path) -> Path:
    safetensors_to_zarr(source, source.with_name("m.zarr"), chunk_size=1024, codec="none")
    return source.with_name("m.zarr")


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_separators_of_chunk_keys_are_two(source, zarr_format, tmp_path):
    store = tmp_path / "s.zarr"
    safetensors_to_zarr(source, store, zarr_format=zarr_format, codec="none")
    shutil.copytree(store, tmp_path / "secret")
    for separator in ("/../../secret/", "", "//", "\\", 5, None, ["/"]):
        encoding = {"name": "default", "configuration": {"separator": separator}}

        def change(root, separator=separator, encoding=encoding):
            if zarr_format == 3:
                a = root["consolidated_metadata"]["metadata"]["a"]
                a.update(chunk_key_encoding=encoding)
            else:
                root["metadata"]["a/.zarray"].update(dimension_separator=separator)

        with noted(separator), put_back(store):
            edit_json(store, "zarr.json" if zarr_format == 3 else ".zmetadata", change)
            with open_model(store) as model, pytest.raises(StoreError, match="separator"):
                model["a"]
            for read in (verify_store, lambda s: zarr_to_safetensors(s, tmp_path / "back")):
                with pytest.raises(StoreError, match="separator"):
                    read(store)


@pytest.mark.parametrize("member", ["attributes", "consolidated_metadata"])
def test_metadata_of_another_kind_are_refused(store, member):
    for value in ([1], "text", 7, True):
        edit_json(store, "zarr.json", lambda root, value=value: root.update({member: value}))
        for read in (verify_store, open_model):
            with noted(value), pytest.raises(StoreError, match=r"m\.zarr"):
                read(store)


def test_codecs_of_another_kind_are_refused(store):
    for value in ([], [5], "bytes", None, [["bytes"]]):
        edit_array(store, "a", lambda a, value=value: a.update(codecs=value))
        with noted(value), pytest.raises(StoreError, match="tensor 'a': damaged array metadata"):
            verify_store(store)


def test_mandatory_metadata_are_demanded(store):
    edit_array(store, "a", lambda a: a.pop("fill_value"))
    with pytest.raises(StoreError, match="fill_value"):
        verify_store(store)


def test_zarrs_array_of_a_tensor_cannot_be_written(store):
    with open_model(LocalStore(store)) as model, pytest.raises(ValueError, match="read-only"):
        model["a"].zarr[0] = 0


def test_raw_chunks_with_bytes_behind_them_are_refused_wherever_they_are(store):
    chunk = store / "a" / "c.0.0"
    chunk.write_bytes(chunk.read_bytes() + b"x")
    for place in (store, in_memory(store)):
        with open_model(place) as model, pytest.raises(CorruptDataError, match="more than"):
            model["a"][:]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_that_does_not_say_whose_it_is_is_compared_with_the_header(
    source, tmp_path, zarr_format
):
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(source, store, codec="none", zarr_format=zarr_format)

    def edit(root):
        if zarr_format == 2:
            of_root, of_a = (root["metadata"][path] for path in (".zattrs", "a/.zattrs"))
        else:
            of_root = root["attributes"]
            of_a = root["consolidated_metadata"]["metadata"]["a"]["attributes"]
        of_root["bf16codecs"]["tensors"]["n"] = "safetensors/header/0"
        del of_a["bf16codecs"]

    edit_json(store, ".zmetadata" if zarr_format == 2 else "zarr.json", edit)
    for place in (store, in_memory(store)):
        with open_model(place) as model:
            assert model["a"][...].dtype == "bfloat16"
            for read in (lambda model: model["n"][...], lambda model: model.load()):
                with pytest.raises(StoreError, match="'n' is I16"):
                    read(model)


def test_commands_for_hdf5_take_no_address():
    with pytest.raises(StoreError, match="not an HDF5 file"):
        hdf5_to_safetensors("memory://m.zarr", "out")


def test_a_long_header_of_safetensors_is_read(tmp_path):
    text = "x" * 9_000_001
    path = tmp_path / "m.safetensors"
    path.write_bytes(file_bytes({"__metadata__": {"text": text}}))
    with open_model(path) as model:
        assert model.metadata() == {"text": text}


def with_user_block(file: Path) -> Path:
    """Copy an HDF5 file behind a user block of 512 bytes."""
    target = file.with_name("block.h5")
    with h5py.File(target, "w", userblock_size=512) as copy, h5py.File(file) as original:
        for name in original:
            original.copy(name, copy)
        copy.attrs.update(original.attrs)
    return target


def test_hdf5_files_behind_a_user_block(source, tmp_path):
    safetensors_to_hdf5(source, tmp_path / "m.h5", chunk_size=1024)
    blocked = with_user_block(tmp_path / "m.h5")
    hdf5_to_safetensors(blocked, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("blocked", [False, True])
def test_chunks_that_a_store_lacks_are_no_fill_values(source, tmp_path, blocked):
    file = tmp_path / "m.h5"
    safetensors_to_hdf5(source, file, chunk_size=1024, codec="none")
    with h5py.File(file, "r+") as f:
        del f["b"]
        f.create_dataset("b", (40, 8), "<f4", chunks=(20, 8))[:20] = 1
    file = with_user_block(file) if blocked else file
    with open_model(file) as model:
        assert (model["b"][:20] == 1).all()
        with pytest.raises(StoreError, match="missing"):
            model["b"][-1]


def test_chunks_that_are_larger_than_their_array(store, source, tmp_path):
    compressors = [None, zarr.codecs.ZstdCodec(), zarr.codecs.GzipCodec()]
    shapes = [(5, 50), (1, 50), (100, 32), (100, 100), (64, 5)]
    group = zarr.open_group(store)
    values, attributes = group["a"][...], dict(group["a"].attrs)
    for i, (chunks, compressor) in enumerate(itertools.product(shapes, compressors)):
        if i % tiers.by_tier(4, 1):  # of five and three, each comes
            continue
        options = {"chunks": chunks, "compressors": compressor, "attributes": attributes}
        zarr.create_array(group.store, name="a", data=values, overwrite=True, **options)
        zarr.consolidate_metadata(group.store)
        with noted(chunks, compressor):
            verify_store(store, source)
            zarr_to_safetensors(store, tmp_path / "back", overwrite=True)
            assert (tmp_path / "back").read_bytes() == source.read_bytes()
            with open_model(store) as model:
                assert model["a"][...].tobytes() == model.load()["a"].tobytes() == values.tobytes()


BIG = zarr.codecs.BytesCodec(endian="big")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"serializer": BIG}, "is big-endian"),
        ({"filters": zarr.codecs.TransposeCodec(order=(1, 0))}, "is not in C order"),
        ({"shards": (40, 8), "chunks": (20, 8), "serializer": BIG}, "is big-endian"),
        ({"zarr_format": 2, "order": "F"}, "is not in C order"),
        ({"zarr_format": 2, "dtype": ">f4"}, "is big-endian"),
    ],
)
def test_another_order_of_items_or_bytes_is_refused(source, tmp_path, options, message):
    store = tmp_path / "m.zarr"
    zarr_format = options.get("zarr_format", 3)
    safetensors_to_zarr(source, store, codec="none", zarr_format=zarr_format)
    group = zarr.open_group(store)
    values, attributes = group["b"][...], dict(group["b"].attrs)
    options = {"dtype": values.dtype, "shape": values.shape, "compressors": None, **options}
    array = zarr.create_array(
        group.store, name="b", attributes=attributes, overwrite=True, **options
    )
    array[...] = values
    zarr.consolidate_metadata(group.store)
    with open_model(store) as model:
        assert model["a"][...].size
        for read in (model.load, lambda: model["b"], lambda: model["b"][...]):
            with pytest.raises(StoreError, match=f"'b'.*{message}"):
                read()
    for read_all in (verify_store, lambda path: zarr_to_safetensors(path, tmp_path / "back")):
        with pytest.raises(StoreError, match=message):
            read_all(store)


@pytest.mark.parametrize("shuffles", [1, 2])
def test_filters_that_are_repeated_are_left_to_hdf5(tmp_path, shuffles):
    hdf5.filters.require_zstd()
    values = np.arange(600, dtype="<f4").reshape(30, 20)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((10, 20))
    for _ in range(shuffles):
        properties.set_shuffle()
    properties.set_filter(hdf5.filters.ZSTD_FILTER_ID, 0, (3,))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        space = h5py.h5s.create_simple(values.shape)
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, dcpl=properties)
        file["x"][:] = values
    with h5py.File(tmp_path / "x.h5") as file:
        assert (hdf5.read_tensor(file["x"]) == values).all()
        assert (hdf5.read_tensor(file["x"], np.s_[5:9, 3]) == values[5:9, 3]).all()


def test_a_file_that_is_closed_while_it_is_read_gives_nothing_of_another(tmp_path):
    """HDF5's descriptor may be another file's once HDF5 has closed it."""
    values = np.full((4000, 500), 7, np.uint8)
    tensors = [("a", "U8", values.shape)]
    source = write_model(tmp_path / "m.safetensors", tensors)
    content = bytearray(source.read_bytes())
    content[-values.size :] = values.tobytes()
    source.write_bytes(content)
    safetensors_to_hdf5(source, tmp_path / "m.h5", codec="none", chunk_size=values.size)
    other = tmp_path / "other"
    other.write_bytes(bytes(8 << 20))
    for _ in range(10):
        model = open_model(tmp_path / "m.h5")
        tensor = model["a"]
        found: list[np.ndarray] = []
        readers = [threading.Thread(target=lambda: found.append(tensor[:])) for _ in range(3)]  # noqa: B023
        for reader in readers:
            reader.start()
        model.close()
        with open(other, "rb"):
            for reader in readers:
                reader.join()
        assert all((array == 7).all() for array in found)


def test_a_link_that_leads_nowhere_is_not_overwritten(source, tmp_path):
    link = tmp_path / "link.zarr"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        safetensors_to_zarr(source, link, overwrite=True)
    assert link.is_symlink()
