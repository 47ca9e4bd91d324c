"""Stores that were written once stay readable, by every command and by zarr and h5py alone."""

from __future__ import annotations

import json
import struct
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
from make_golden_stores import FOLDER, LOSSY_STORES, STORES, originals, version_of

goldens = pytest.mark.parametrize("name", STORES)


@pytest.fixture
def source(tmp_path: Path, name: str) -> Path:
    """Return the folder of the files that a store was made of."""
    (tmp_path / "originals").mkdir()
    for file, content in originals(name).items():
        (tmp_path / "originals" / file).write_bytes(content)
    return tmp_path / "originals"


@goldens
def test_golden_store_restores_its_files(name, tmp_path):
    convert = hdf5_to_safetensors if name.endswith(".h5") else zarr_to_safetensors
    expected, restored = originals(name), tmp_path / "restored"
    convert(FOLDER / name, restored)
    found = {"model.safetensors": restored.read_bytes()} if restored.is_file() else {}
    assert (found or files_in(restored)) == expected


@goldens
def test_golden_store_verifies(name, source):
    files = open_source(source).files
    tensors = sum(len(file.header.tensors) for file in files)
    assert verify_store(FOLDER / name, source).tensors == tensors >= 8


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
    version = version_of(name)
    tensor = f"new/{version}" if version else "model/embed/weight"
    with bf16codecs.open_model(FOLDER / name) as model:
        expected = model[tensor.replace("/", ".")][...]
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


def in_half_precision(raw: bytes) -> bytes:
    """Return a safetensors file with its finite FP32 numbers rounded, by Python alone."""
    start = 8 + int.from_bytes(raw[:8], "little")
    out = bytearray(raw)
    for info in json.loads(raw[8:start]).values():
        if info.get("dtype") == "F32":
            first, stop = (start + offset for offset in info["data_offsets"])
            numbers = struct.unpack(f"<{(stop - first) // 4}f", raw[first:stop])
            halves = [struct.unpack("<e", struct.pack("<e", number))[0] for number in numbers]
            out[first:stop] = struct.pack(f"<{len(halves)}f", *halves)
    return bytes(out)


@pytest.mark.parametrize("name", LOSSY_STORES)
def test_lossy_golden_store(name, source, tmp_path):
    restored = zarr_to_safetensors(FOLDER / name, tmp_path / "restored")
    found, files = files_in(tmp_path / "restored"), originals(name)
    assert found == {n: raw if "index" in n else in_half_precision(raw) for n, raw in files.items()}
    assert found != files
    assert restored.loss is not None
    assert 0 < restored.loss.relative_of_normal <= 2.0**-11
    assert verify_store(FOLDER / name, source).tensors == 8
    with bf16codecs.open_model(FOLDER / name) as model:
        assert model["master"].dtype == np.float32
        halves = model["master"][...].astype("f2")
    with ZipStore(FOLDER / name, mode="r") as store:
        assert zarr.open_group(store, mode="r")["master"][...].tobytes() == halves.tobytes()


def test_no_golden_store_is_missing_or_left_over():
    assert names_in(FOLDER) == {*STORES, *LOSSY_STORES}


def test_layouts_are_those_of_their_names():
    for name in STORES:
        with bf16codecs.open_model(FOLDER / name) as model:
            info = model._home.opened.info
            assert info.layout == int(name[len("layout")])
            base = STORES[name][1].get("base")
            assert (None if info.base is None else info.base.path) == base
            if info.layout == 2:
                # All that the layout has is in each of them.
                embed, low = info.paths["model.embed.weight"], info.paths["low"]
                assert info.paths["head.weight"] == embed
                assert low == f"{info.paths['master']}#bfloat16"
                assert len(info.differences) == (0 if base is None else 5)
