"""Stores of early releases stay readable, by every command and by zarr and h5py alone."""

from __future__ import annotations

import importlib.util
import io
import json
import pickle
import struct
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, ZipStore

import bf16codecs
from bf16codecs.convert import (
    append_to_run,
    hdf5_to_safetensors,
    run_to_safetensors,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.store.files import open_safetensors
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.objects import read_checkpoint
from bf16codecs.store.opening import open_store
from folders import copy_of, files_in, names_in
from make_golden_stores import (
    FOLDER,
    LOSSY_STORES,
    OBJECTS,
    PUBLISHED,
    RUNS,
    STEPS,
    STORES,
    originals,
    version_of,
)

goldens = pytest.mark.parametrize("name", STORES)
runs = pytest.mark.parametrize("name", RUNS)


@pytest.fixture
def source(tmp_path: Path, name: str) -> Path:
    """Return the folder of a store's source files."""
    (tmp_path / "originals").mkdir()
    for file, content in originals(name).items():
        (tmp_path / "originals" / file).write_bytes(content)
    return tmp_path / "originals"


@goldens
def test_golden_store(name, source, tmp_path):
    """It verifies, restores its files, and is read lazily."""
    convert = hdf5_to_safetensors if name.endswith(".h5") else zarr_to_safetensors
    expected, restored = originals(name), tmp_path / "restored"
    convert(FOLDER / name, restored)
    found = {"model.safetensors": restored.read_bytes()} if restored.is_file() else {}
    assert (found or files_in(restored)) == expected
    original = open_safetensors(source)
    tensors = {t.name: (f, t) for f, header in enumerate(original.headers) for t in header.tensors}
    assert verify_store(FOLDER / name, source).tensors == len(tensors) >= 8
    with bf16codecs.open_model(FOLDER / name) as model:
        assert set(model.keys()) == set(tensors)
        arrays = model.load()
        for tensor, (file, info) in tensors.items():
            raw = np.empty(info.nbytes, np.uint8)
            original.read_range(file, original.headers[file].data_start + info.start, raw)
            assert arrays[tensor].tobytes() == raw.tobytes()
            assert model[tensor].get_dtype() == info.dtype
        assert model.loss is None
        part = model["model.embed.weight"][17:40:3, 5]
        whole = arrays["model.embed.weight"]
        assert part.tobytes() == whole[17:40:3, 5].tobytes()


def test_golden_stores_are_read_without_this_package_being_asked():
    for name in STORES:
        version = version_of(name)
        tensor = f"new.{version}" if version else "model.embed.weight"
        with bf16codecs.open_model(FOLDER / name) as model:
            expected, path = model[tensor][...], attributes_of(name)["tensors"][tensor]
        assert_read_alone(name, path, expected)


def opened_by_zarr(name: str) -> Any:
    file = FOLDER / name
    return ZipStore(file, mode="r") if file.is_file() else LocalStore(file, read_only=True)


def attributes_of(name: str) -> Any:
    """Read this package's attributes of a store with zarr or h5py alone."""
    if name.endswith(".h5"):
        with h5py.File(FOLDER / name) as file:
            return json.loads(file.attrs["bf16codecs"])
    with opened_by_zarr(name) as store:
        return zarr.open_group(store, mode="r").attrs["bf16codecs"]


def assert_read_alone(name: str, path: str, expected: np.ndarray) -> None:
    """Read an array with zarr or h5py alone."""
    if not name.endswith(".h5"):
        with opened_by_zarr(name) as store:
            found = np.asarray(zarr.open_group(store, mode="r")[path])
    elif importlib.util.find_spec("hdf5plugin"):
        importlib.import_module("hdf5plugin")  # has the Zstandard filter
        with h5py.File(FOLDER / name) as file:
            dataset = file[path].id
            found = np.empty(dataset.shape, f"u{dataset.get_type().get_size()}")
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, found, mtype=dataset.get_type())
    else:
        return
    assert found.tobytes() == expected.tobytes(), (name, path)


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
        assert model.loss == restored.loss
        halves = model["master"][...].astype("f2")
    with ZipStore(FOLDER / name, mode="r") as store:
        assert zarr.open_group(store, mode="r")["master"][...].tobytes() == halves.tobytes()


@runs
def test_golden_run_restores_its_files(name, source, tmp_path):
    convert = hdf5_to_safetensors if name.endswith(".h5") else zarr_to_safetensors
    run_to_safetensors(FOLDER / name, tmp_path / "restored")
    assert files_in(tmp_path / "restored") == originals(name)
    assert verify_store(FOLDER / name).tensors == 38
    for number in STEPS:
        one = source / f"step-{number}.safetensors"
        convert(f"{FOLDER / name}@{number}", tmp_path / "one", overwrite=True)
        assert (tmp_path / "one").read_bytes() == one.read_bytes()
        verify_store(f"{FOLDER / name}@{number}", one)


@runs
def test_golden_run_is_read_lazily_and_by_others_alone(name, source):
    with bf16codecs.open_run(FOLDER / name) as run:
        assert run.steps == STEPS
        arrays = {tensor: run[tensor][...] for tensor in run}
        for place, number in enumerate(STEPS):
            with bf16codecs.open_model(source / f"step-{number}.safetensors") as model:
                for tensor, array in model.load().items():
                    assert run[number][tensor][...].tobytes() == array.tobytes()
                    key = ("changes@0", "changes@30")[place >= 3] if tensor == "changes" else tensor
                    assert arrays[key][place].tobytes() == array.tobytes()
                    assert number in run[key].steps
        assert run["late"].steps == [10, 20, 30]
        assert np.isnan(arrays["late"][[0, 4]].astype("f4")).all()
    # Tensors are stored once only while they are the same.
    info = StoreInfo.from_attributes({"bf16codecs": attributes_of(name)}, name).run
    paths = [info.paths_at(index) for index in range(5)]
    assert [i for i, p in enumerate(paths) if p["head.weight"] != p["embed.weight"]] == [2]
    assert [i for i, p in enumerate(paths) if p["low"] != "master#bfloat16"] == [3]
    for tensor in ("embed.weight", "master", "late"):
        assert_read_alone(name, tensor.replace(".", "/"), arrays[tensor])


@pytest.mark.parametrize("name", [name for name in RUNS if not name.endswith(".zip")])
def test_golden_run_grows(name, source, tmp_path):
    run, last = copy_of(FOLDER / name, tmp_path / name), source / "step-40.safetensors"
    append_to_run(last, run, 50)
    append_to_run(last, run, 60)
    verify_store(run)
    with bf16codecs.open_run(run) as opened:
        assert opened.steps == [*STEPS, 50, 60]
        with bf16codecs.open_run(FOLDER / name) as before:
            for tensor in before:
                assert opened[tensor][:5].tobytes() == before[tensor][...].tobytes()


@pytest.mark.parametrize("name", [name for name in STORES if "checkpoint" in name])
def test_objects_of_golden_checkpoints(name):
    with bf16codecs.open_model(FOLDER / name) as model:
        sizes = model.objects()
        raw = {key: model.object_bytes(key) for key in sizes}
    with closing(open_store(FOLDER / name)) as reader:
        names = dict(read_checkpoint(reader).names)
    assert {key: len(content) for key, content in raw.items()} == sizes
    assert {key: unpickled(content) for key, content in raw.items()} == {
        key: value for key, (_, value) in OBJECTS.items()
    }
    assert {key: names.pop(key) for key in OBJECTS} == {k: keys for k, (keys, _) in OBJECTS.items()}
    assert names.pop("model.embed.weight") == ("model", "embed.weight")
    assert all(keys == (key,) for key, keys in names.items())


def unpickled(raw: bytes) -> object:
    """Unpickle a file of `torch.save`, which is safe for our own files."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        return pickle.loads(archive.read(member))


def test_no_golden_store_is_missing_or_left_over():
    assert names_in(FOLDER) == {*STORES, *LOSSY_STORES, *RUNS, *PUBLISHED}


def test_layouts_are_those_of_their_names():
    for name in STORES:
        info = StoreInfo.from_attributes({"bf16codecs": attributes_of(name)}, name)
        assert info.layout == int(name[len("layout")])
        base = STORES[name][1].get("base")
        assert (None if info.base is None else info.base.path) == base, name
        if info.layout == 2:
            # Each of them has every feature of the layout.
            embed, low = info.paths["model.embed.weight"], info.paths["low"]
            assert info.paths["head.weight"] == embed, name
            assert low == f"{info.paths['master']}#bfloat16", name
            assert len(info.differences) == (0 if base is None else 5), name
