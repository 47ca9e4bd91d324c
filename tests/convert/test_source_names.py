"""Names of files that stores cannot keep are refused before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bf16codecs
from bf16codecs.convert import (
    append_to_run,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import SafetensorsError, StoreError
from bf16codecs.store import attributes as entries
from bf16codecs.store import layout
from bf16codecs.store.runs import layout as run_layout
from folders import files_in
from lazy_models import weights, write_safetensors, write_shards

ODD = [":", "\\", "\n", "\t", "\x7f", "\x85", "\u2028", "\u202e", os.fsdecode(b"\xff")]
named = pytest.mark.skipif(os.name == "nt", reason="files cannot have such names there")
ARRAYS = {"a": weights((8, 8))}

CONVERSIONS: dict[str, Callable[[Path, Path], Any]] = {
    "zarr": lambda src, folder: safetensors_to_zarr(src, folder / "m.zarr"),
    "zip": lambda src, folder: safetensors_to_zarr(src, folder / "m.zip"),
    "hdf5": lambda src, folder: safetensors_to_hdf5(src, folder / "m.h5"),
    "run": lambda src, folder: safetensors_to_run([src], folder / "r.zarr"),
    "run in hdf5": lambda src, folder: safetensors_to_run([src], folder / "r.h5", as_hdf5=True),
    "first step": lambda src, folder: append_to_run(src, folder / "new.zarr"),
    "append": lambda src, folder: append_to_run(src, folder / "old.zarr"),
    "append to hdf5": lambda src, folder: append_to_run(src, folder / "old.h5"),
}


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """Return a folder with runs of one step."""
    first = write_safetensors(tmp_path / "step1.safetensors", ARRAYS)
    (tmp_path / "stores").mkdir()
    safetensors_to_run([first], tmp_path / "stores" / "old.zarr", sync=False)
    safetensors_to_run([first], tmp_path / "stores" / "old.h5", as_hdf5=True, sync=False)
    return tmp_path / "stores"


@named
def test_a_name_that_is_not_plain(tmp_path: Path, stores: Path) -> None:
    before = files_in(stores)
    for character in ODD:
        source = write_safetensors(tmp_path / f"12{character}30-step9.safetensors", ARRAYS)
        for kind, convert in CONVERSIONS.items():
            with pytest.raises(SafetensorsError) as e:
                convert(source, stores)
            for part in (str(source), ascii(character), "keep names of files to restore them by"):
                assert part in str(e.value), (kind, ascii(character))
    assert files_in(stores) == before


def test_safetensors_under_another_name(tmp_path: Path) -> None:
    """Readers accept the names that conversions accept."""
    source = write_safetensors(tmp_path / "m.bin", {"a": weights((8, 8))})
    with bf16codecs.open_model(source) as model:
        assert set(model) == {"a"}
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    verify_store(tmp_path / "m.zarr", source)


@named
def test_shards_and_indexes(tmp_path: Path, stores: Path) -> None:
    shards = write_shards(tmp_path / "shards", [{"a": weights((8, 8))}, {"b": weights((8, 8))}])
    (index,) = shards.glob("*.json")
    index.rename(shards / f"step9:{index.name}")
    before = files_in(stores)
    for convert in CONVERSIONS.values():
        with pytest.raises(SafetensorsError, match=r"step9:.*\.json: its name has ':'"):
            convert(shards, stores)
    (index,) = shards.glob("*.json")
    index.unlink()
    for path in list(shards.glob("*.safetensors")):
        path.rename(shards / f"step9:{path.name}")
    for convert in CONVERSIONS.values():
        with pytest.raises(SafetensorsError, match=r"step9:.*\.safetensors: its name has ':'"):
            convert(shards, stores)
    assert files_in(stores) == before


@named
def test_files_that_are_not_stored_may_have_any_name(tmp_path: Path) -> None:
    plain = write_safetensors(tmp_path / "m.safetensors", ARRAYS)
    safetensors_to_zarr(plain, tmp_path / "m.zarr")
    odd_name = tmp_path / "12:30.safetensors"
    zarr_to_safetensors(tmp_path / "m.zarr", odd_name)
    verify_store(tmp_path / "m.zarr", odd_name)
    safetensors_to_zarr(plain, tmp_path / "fine.zarr", base=odd_name)
    zarr_to_safetensors(tmp_path / "fine.zarr", tmp_path / "back")


@named
def test_a_base_that_no_store_can_name(tmp_path: Path) -> None:
    plain = write_safetensors(tmp_path / "m.safetensors", ARRAYS)
    for character in ODD:
        folder = tmp_path / f"12{character}30"
        folder.mkdir()
        base = write_safetensors(folder / "base.safetensors", ARRAYS)
        if character.isprintable():
            safetensors_to_zarr(plain, tmp_path / "fine.zarr", base=base, overwrite=True)
            verify_store(tmp_path / "fine.zarr")
            continue
        before = files_in(tmp_path)
        with pytest.raises(StoreError, match=r"base\.safetensors: stores cannot name it"):
            safetensors_to_zarr(plain, tmp_path / "new.zarr", base=base)
        assert files_in(tmp_path) == before, ascii(character)


def test_nothing_is_written_that_no_reader_takes() -> None:
    """The last check before writing: a run with attributes that readers refuse would be lost."""
    for character in ODD:
        digests = entries.Digests("0" * 64)
        file = entries.StoredFile(f"12{character}30", 10, digests, "safetensors/header/0")
        run = run_layout.RunInfo(4, (run_layout.RunStep(3, (file,), None),))
        for info in (
            layout.StoreInfo((file,), None, {}),
            layout.StoreInfo((), None, {}, run=run),
        ):
            with pytest.raises(StoreError, match="not a plain file name"):
                info.to_attributes()
