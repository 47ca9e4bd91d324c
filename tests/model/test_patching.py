"""With `patch_safetensors`, safetensors opens stores that lie where its files were."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs.convert import pack_hugging_face, safetensors_to_hdf5, safetensors_to_zarr
from bf16codecs.errors import CodecError, StoreError
from bf16codecs.model.patching import patch_safetensors, unpatch_safetensors
from checkout import package_environment
from lazy_models import weights, write_safetensors
from model_folders import SHARDS, write_folder

safetensors = pytest.importorskip("safetensors")
numpy_files = pytest.importorskip("safetensors.numpy")
bound_earlier = safetensors.safe_open


TENSORS = {"a": weights((40, 30)), "b": weights((7,), "float32")}


@pytest.fixture
def patched() -> Iterator[None]:
    patch_safetensors()
    yield
    unpatch_safetensors()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_safetensors(tmp_path / "model.safetensors", TENSORS, {"format": "pt"})


def assert_tensors(found: dict[str, Any]) -> None:
    assert sorted(found) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].tobytes() == tensor.tobytes()


@pytest.mark.parametrize("suffix", [".zarr", ".zarr.zip", ".h5"])
@pytest.mark.parametrize("is_beside", [True, False])
def test_a_store_in_place_of_a_file(
    patched: None, model: Path, suffix: str, is_beside: bool
) -> None:
    store = model.with_name(f"model{suffix}")
    convert = safetensors_to_hdf5 if suffix == ".h5" else safetensors_to_zarr
    convert(model, store)
    model.unlink()
    if not is_beside:
        store.rename(model)
    assert_tensors(numpy_files.load_file(model))
    with safetensors.safe_open(os.fspath(model), framework="numpy") as f:
        assert f.metadata() == {"format": "pt"}
        assert list(f.keys()) == ["a", "b"]
        assert f.get_slice("a")[3:5].tobytes() == TENSORS["a"][3:5].tobytes()
    assert isinstance(f, safetensors.safe_open)


def test_files_are_opened_as_before(patched: None, model: Path) -> None:
    safetensors_to_zarr(model, model.with_name("model.zarr"))
    write_safetensors(model, {"a": weights((2, 2)), "new": weights((3,))})
    with safetensors.safe_open(model, "np") as f:
        assert sorted(f.keys()) == ["a", "new"]
        assert type(f).__module__ != "bf16codecs.model.patching"
        assert isinstance(f, safetensors.safe_open)
    model.write_bytes(b"damaged")
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(model, "np")
    with pytest.raises(FileNotFoundError):
        safetensors.safe_open(model.with_name("none") / "model.safetensors", "np")
    with pytest.raises(FileNotFoundError):
        safetensors.safe_open(model.with_name("other.safetensors"), "np")


def test_shards_of_a_packed_folder(patched: None, tmp_path: Path) -> None:
    original = write_folder(tmp_path / "original")
    pack_hugging_face(original, tmp_path / "packed")
    files = [
        *SHARDS,
        "adapter_model.safetensors",
        "unet/deep/diffusion_pytorch_model.fp16.safetensors",
    ]
    for name in files:
        assert not (tmp_path / "packed" / name).exists()
        expected = numpy_files.load_file(original / name)
        found = numpy_files.load_file(tmp_path / "packed" / name)
        assert expected.keys() == found.keys()
        for tensor in expected:
            assert expected[tensor].tobytes() == found[tensor].tobytes()
    with safetensors.safe_open(tmp_path / "packed" / SHARDS[0], "np") as f:
        again = pickle.loads(pickle.dumps(f))
        assert list(again.keys()) == list(f.keys()) == ["embed.weight"]
        for error in (KeyError, safetensors.SafetensorError):
            with pytest.raises(error, match=r"no tensor 'norm\.weight'"):
                f.get_tensor("norm.weight")
        f.__exit__(None, None, None)
        with pytest.raises(safetensors.SafetensorError, match="is closed"):
            f.get_tensor("embed.weight")
    with pytest.raises(safetensors.SafetensorError, match="backend"):
        safetensors.safe_open(tmp_path / "packed" / SHARDS[0], "np", backend="none")


def test_a_shard_of_a_store_with_a_base(patched: None, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        for number, shard in enumerate(SHARDS):
            tensor = {f"w{number}": weights((200, 64), seed=number) * np.float32(2)}
            write_safetensors(tmp_path / name / shard, tensor)
    base = tmp_path / "old" / "model.zarr"
    safetensors_to_zarr(tmp_path / "old", base)
    safetensors_to_zarr(tmp_path / "new", tmp_path / "new.zarr", base=base)
    found = numpy_files.load_file(tmp_path / SHARDS[1])
    assert (
        found["w1"].tobytes() == numpy_files.load_file(tmp_path / "new" / SHARDS[1])["w1"].tobytes()
    )


def test_names_that_were_imported_earlier_and_back(model: Path) -> None:
    original = safetensors.safe_open
    for _ in range(2):
        patch_safetensors()
    assert bound_earlier is safetensors.safe_open is numpy_files.safe_open
    assert safetensors.safe_open is not original
    unpatch_safetensors()
    assert bound_earlier is safetensors.safe_open is numpy_files.safe_open is original
    unpatch_safetensors()


IN_CHILDREN = """
import multiprocessing, sys
import safetensors.numpy

def load(path):
    return sorted(safetensors.numpy.load_file(path))

def fails(path):
    try:
        load(path)
    except FileNotFoundError:
        return True

if __name__ == "__main__":
    from bf16codecs.model.patching import patch_safetensors, unpatch_safetensors
    path = sys.argv[1]
    assert fails(path)
    patch_safetensors()
    for method in sys.argv[2:]:
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(load, (path,)) == ["a", "b"], method
    unpatch_safetensors()
    for method in sys.argv[2:]:
        if method != "forkserver":
            with multiprocessing.get_context(method).Pool(1) as pool:
                assert pool.apply(fails, (path,)), method
"""


def test_in_processes_however_they_are_started(tmp_path: Path, model: Path) -> None:
    import multiprocessing

    safetensors_to_zarr(model, tmp_path / "model.zarr")
    model.unlink()
    (tmp_path / "program.py").write_text(IN_CHILDREN)
    methods = multiprocessing.get_all_start_methods()
    subprocess.run(
        [sys.executable, tmp_path / "program.py", model, *methods],
        check=True,
        env=package_environment(),
    )


def test_what_another_library_puts_around_it(model: Path) -> None:
    safetensors_to_zarr(model, model.with_name("model.zarr"))
    write_safetensors(model.with_name("other.safetensors"), TENSORS)
    model.unlink()
    patch_safetensors()
    ours = safetensors.safe_open
    safetensors.safe_open = lambda *args, **options: ours(*args, **options)
    try:
        for _ in range(2):
            with safetensors.safe_open(model, "np") as f:
                assert sorted(f.keys()) == ["a", "b"]
            unpatch_safetensors()
            with pytest.raises(FileNotFoundError):
                safetensors.safe_open(model, "np")
            with safetensors.safe_open(model.with_name("other.safetensors"), "np") as f:
                assert isinstance(f, bound_earlier)
            patch_safetensors()
    finally:
        safetensors.safe_open = ours
        unpatch_safetensors()


@pytest.mark.parametrize("name", ["model.h5", "model.zarr", "model.zarr.zip", "tf_model.h5"])
def test_files_of_others_beside_it(patched: None, model: Path, name: str) -> None:
    model.unlink()
    if name == "model.zarr":
        (model.parent / name).mkdir()
        (model.parent / name / "zarr.json").write_text(
            '{"zarr_format": 3, "node_type": "group", "attributes": {}}'
        )
    else:
        (model.parent / name).write_bytes(b"other")
    with pytest.raises(FileNotFoundError):
        numpy_files.load_file(model)


def test_a_path_of_modules_that_is_no_text(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(
        f"import sys, pathlib\nsys.path.append(pathlib.Path({str(tmp_path)!r}))\n{IN_CHILDREN}"
    )
    safetensors_to_zarr(model, tmp_path / "model.zarr")
    model.unlink()
    subprocess.run(
        [sys.executable, tmp_path / "program.py", model, "spawn"],
        check=True,
        env=package_environment(),
    )


def test_two_stores_with_a_file_of_the_name(patched: None, model: Path) -> None:
    for name in ("a.zarr", "b.h5"):
        convert = safetensors_to_hdf5 if name == "b.h5" else safetensors_to_zarr
        convert(model, model.with_name(name))
    model.unlink()
    with pytest.raises(StoreError, match=r"a\.zarr and b\.h5 both have a file of this name"):
        numpy_files.load_file(model)
    model.with_name("b.h5").unlink()
    assert_tensors(numpy_files.load_file(model))


def test_damage_is_an_error_that_programs_catch(patched: None, model: Path) -> None:
    store = model.with_name("model.zarr")
    safetensors_to_zarr(model, store)
    model.unlink()
    chunks = [
        path for path in store.rglob("*") if path.is_file() and "safetensors" not in path.parts
    ]
    chunk = max((p for p in chunks if p.suffix != ".json"), key=lambda path: path.stat().st_size)
    chunk.write_bytes(chunk.read_bytes()[:-10])
    for error in (safetensors.SafetensorError, CodecError):
        with pytest.raises(error, match="'a'"):
            numpy_files.load_file(model)
