"""Stores that were written once stay readable, by every command and by zarr and h5py alone."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, ZipStore

import bf16codecs
from bf16codecs.convert import hdf5_to_safetensors, verify_store, zarr_to_safetensors
from bf16codecs.safetensors import open_source
from folders import files_in, names_in
from make_golden_stores import FOLDER, STORES, originals

goldens = pytest.mark.parametrize("name", STORES)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the files that the stores were made of."""
    folder = tmp_path_factory.mktemp("originals")
    for name, content in originals().items():
        (folder / name).write_bytes(content)
    return folder


@goldens
def test_golden_store_restores_its_files(name, tmp_path):
    convert = hdf5_to_safetensors if name.endswith(".h5") else zarr_to_safetensors
    convert(FOLDER / name, tmp_path / "restored")
    assert files_in(tmp_path / "restored") == originals()


@goldens
def test_golden_store_verifies(name, source):
    assert verify_store(FOLDER / name, source).tensors == 8


@goldens
def test_golden_store_is_read_lazily(name, source):
    files = open_source(source).files
    tensors = {t.name: (f, t) for f in files for t in f.header.tensors}
    with bf16codecs.open_model(FOLDER / name) as model:
        assert set(model.keys()) == set(tensors)
        arrays = model.load()
        for tensor, (file, info) in tensors.items():
            raw = np.empty(info.nbytes, np.uint8)
            file.read_into(file.header.data_start + info.start, raw)
            assert arrays[tensor].tobytes() == raw.tobytes()
            assert model[tensor].get_dtype() == info.dtype
        part = model["model.embed.weight"][17:40:3, 5]
        whole = arrays["model.embed.weight"]
        assert part.tobytes() == whole[17:40:3, 5].tobytes()


@goldens
def test_golden_store_is_read_without_this_package_being_asked(name):
    tensor = "model/embed/weight"
    with bf16codecs.open_model(FOLDER / name) as model:
        expected = model["model.embed.weight"][...]
    if name.endswith(".h5"):
        pytest.importorskip("hdf5plugin")  # has the Zstandard filter
        with h5py.File(FOLDER / name) as file:
            dataset = file[tensor].id
            found = np.empty(dataset.shape, np.uint16)
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, found, mtype=dataset.get_type())
    else:
        path = FOLDER / name
        with (
            ZipStore(path, mode="r")
            if path.is_file()
            else LocalStore(path, read_only=True) as store
        ):
            found = np.asarray(zarr.open_group(store, mode="r")[tensor])
    assert found.tobytes() == expected.tobytes()


def test_no_golden_store_is_missing_or_left_over():
    assert names_in(FOLDER) == set(STORES)
