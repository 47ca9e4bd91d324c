"""A store is not replaced while it has files that a user put there."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from based_models import write_nearby
from bf16codecs.convert import rebase_store, safetensors_to_zarr, verify_store
from folders import content_of
from invoked import refused
from looping import for_each
from models import write_model

TENSORS = [("a.w", "BF16", (64, 40)), ("b", "F32", (7,))]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_model(tmp_path / "base.safetensors", TENSORS)


@pytest.fixture
def fine(tmp_path: Path, base: Path) -> Path:
    write_nearby(base, tmp_path / "fine.safetensors")
    return tmp_path / "fine.safetensors"


@pytest.mark.parametrize("zarr_format", [2, 3])
@for_each("name", ["config.json", "README.md", "notes/today.txt", "a/notes.txt", ".hidden"])
def test_files_of_the_user(base: Path, fine: Path, name: str, zarr_format: int) -> None:
    store = fine.with_name(f"{name.replace('/', '-')}.zarr")
    safetensors_to_zarr(fine, store, base=base, zarr_format=zarr_format)
    (store / name).parent.mkdir(exist_ok=True)
    (store / name).write_text("mine")
    before = content_of(store)
    message = f"'{name}' in it is not the store's: move it elsewhere first"
    with pytest.raises(FileExistsError, match=message):
        rebase_store(store)
    with pytest.raises(FileExistsError, match=message):
        safetensors_to_zarr(base, store, overwrite=True)
    assert message in refused("st2zarr", "--overwrite", base, store)
    assert message in refused("bf16codecs", "rebase", store)
    assert content_of(store) == before
    (store / name).unlink()
    rebase_store(store)
    verify_store(store, fine)


def test_members_of_the_user(base: Path) -> None:
    store = base.with_name("m.zarr.zip")
    safetensors_to_zarr(base, store)
    with zipfile.ZipFile(store, "a") as archive:
        archive.writestr("config.json", "{}")
    before = store.read_bytes()
    with pytest.raises(FileExistsError, match=r"'config\.json' in it is not the store's"):
        safetensors_to_zarr(base, store, overwrite=True)
    assert store.read_bytes() == before


@for_each("name", [".DS_Store", "a/.DS_Store", "b/anything"])
def test_what_is_not_missed(base: Path, name: str) -> None:
    store = base.with_name("m.zarr")
    safetensors_to_zarr(base, store, overwrite=True)
    (store / name).parent.mkdir(exist_ok=True)
    (store / name).write_text("")
    safetensors_to_zarr(base, store, overwrite=True)
    verify_store(store, base)


def test_a_damaged_store_is_replaced(base: Path) -> None:
    store = base.with_name("m.zarr")
    safetensors_to_zarr(base, store)
    (store / "a" / "w" / "zarr.json").unlink()
    safetensors_to_zarr(base, store, overwrite=True)
    verify_store(store, base)
