"""Folders of models: an index of any name is kept, and files that are not read are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bf16codecs.convert import (
    append_to_run,
    hdf5_to_safetensors,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import SourceMismatchError
from folders import files_in
from invoked import CONVERTERS, done, refused
from looping import noted
from model_folders import SHARDS, write_sharded

INDEX = "model.safetensors.index.fp16.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a model of two files with the index of a variant."""
    (tmp_path / "step-1").mkdir()
    write_sharded(tmp_path / "step-1", ".fp16")
    return tmp_path / "step-1"


def test_indexes_of_variants_come_back(folder: Path, tmp_path: Path) -> None:
    for name, (store, restore) in CONVERTERS.items():
        with noted(name):
            done(store, folder, tmp_path / name)
            done(restore, tmp_path / name, tmp_path / f"{name}-back")
            assert files_in(tmp_path / f"{name}-back") == files_in(folder)
            verify_store(tmp_path / name, folder)
            done(store, folder / INDEX, tmp_path / name, "--overwrite")
            verify_store(tmp_path / name, folder / INDEX)
    (folder / INDEX).unlink()
    with pytest.raises(SourceMismatchError, match=r"it has an index, and .* has none: name"):
        verify_store(tmp_path / "m.zarr", folder)


def test_indexes_of_variants_in_runs(folder: Path, tmp_path: Path) -> None:
    safetensors_to_run([folder], tmp_path / "run.zarr")
    append_to_run(folder, tmp_path / "run.h5", 1, as_hdf5=True)
    zarr_to_safetensors(tmp_path / "run.zarr", tmp_path / "a", step=1)
    hdf5_to_safetensors(tmp_path / "run.h5", tmp_path / "b", step=1)
    assert files_in(tmp_path / "a") == files_in(tmp_path / "b") == files_in(folder)


def test_a_restored_model_is_no_index(folder: Path, tmp_path: Path) -> None:
    """By its name, the target would be the index of a variant, and is to be a folder."""
    safetensors_to_zarr(folder, tmp_path / "m.zarr")
    with pytest.raises(ValueError, match=r"the name of a file.*: name a folder .*, such as model$"):
        zarr_to_safetensors(tmp_path / "m.zarr", tmp_path / INDEX)


def test_what_a_store_does_not_have_is_named(folder: Path, tmp_path: Path) -> None:
    others = ("config.json", "extra/", "merges.txt", "tokenizer.json", "vocab.json")
    for name in others:
        (folder / name).mkdir() if name.endswith("/") else (folder / name).touch()
    (folder / ".gitattributes").touch()
    for store in (folder / "own.zarr", tmp_path / "m.zarr"):
        for overwrite in (False, True):
            summary = safetensors_to_zarr(folder, store, overwrite=overwrite)
            assert [n for n in summary.left_out if n != "own.zarr/"] == list(others), store
            assert ("own.zarr/" in summary.left_out) is (store.parent == tmp_path)
    assert safetensors_to_hdf5(folder / INDEX, tmp_path / "m.h5").left_out == ()
    (folder / "own.zarr").rename(tmp_path / "own.zarr")
    folder.rename(tmp_path / "step-2")
    two = tmp_path / "step-2"
    assert append_to_run(two, tmp_path / "grown.zarr").left_out == others
    assert append_to_run(two, tmp_path / "grown.zarr", 3).left_out == others
    write_sharded(tmp_path, ".fp16")
    both = safetensors_to_run([two, tmp_path / INDEX], tmp_path / "run.zarr", steps=[2, 3])
    assert both.left_out == tuple(f"step-2/{name}" for name in others)


def test_the_command_names_a_few(folder: Path, tmp_path: Path) -> None:
    first, *rest = done("st2zarr", folder, tmp_path / "m.zarr").splitlines()
    assert first.endswith(", verified")
    assert rest == []
    for name in ("a", "b", "c", "d\n", "e", "f"):
        (folder / name).touch()
    told = "not in the store: a, b, c, d\\n and 2 more"
    assert done("st2zarr", folder, tmp_path / "n.zarr").splitlines()[1:] == [told]
    assert done("st2h5", folder, tmp_path / "n.h5").splitlines()[1:] == [told]
    assert done("st2zarr", folder, tmp_path / "q.zarr", "--quiet") == ""
    out = json.loads(done("st2zarr", folder, tmp_path / "n.zarr", "--overwrite", "--json"))
    assert out["left_out"] == ["a", "b", "c", "d\n", "e", "f"]
    back = json.loads(done("zarr2st", tmp_path / "n.zarr", tmp_path / "back", "--json"))
    assert back["left_out"] == []


@pytest.mark.parametrize("place", ["", ".cache/huggingface/download", "../../blobs"])
def test_downloads_that_have_not_ended(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    write_sharded(folder)
    for name in ("model.safetensors.index.json", SHARDS[1]):
        (folder / name).unlink()
    assert "a download" not in refused("st2zarr", folder, tmp_path / "m.zarr")
    (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / place / "1a2b.incomplete").touch()
    line = refused("st2zarr", folder, tmp_path / "m.zarr")
    assert line.endswith("; a download has not ended, 1a2b.incomplete: repeat it to get the rest")
    (folder / SHARDS[0]).unlink()
    assert "a download has not ended" in refused("st2zarr", folder, tmp_path / "m.zarr")
