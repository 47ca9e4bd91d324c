"""A store is not replaced while it has files or attributes of a user."""

from __future__ import annotations

import json
import re
import zipfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from based_models import write_nearby
from bf16codecs.convert import (
    rebase_store,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
)
from bf16codecs.convert.foreign import foreign_name
from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import Kind
from bf16codecs.store.opening import open_store
from bf16codecs.store.zarr import copies, metadata
from folders import content_of
from invoked import refused
from looping import for_each
from models import write_model

TENSORS = [("a.w", "BF16", (64, 40)), ("b", "F32", (7,)), ("s", "F32", ())]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_model(tmp_path / "base.safetensors", TENSORS)


@pytest.fixture
def fine(tmp_path: Path, base: Path) -> Path:
    write_nearby(base, tmp_path / "fine.safetensors")
    return tmp_path / "fine.safetensors"


def assert_refused(store: Path, base: Path, name: str) -> None:
    """Assert that nothing replaces a store, since something in it is the user's."""
    before = content_of(store)
    command = "st2h5" if store.suffix == ".h5" else "st2zarr"
    convert = safetensors_to_hdf5 if store.suffix == ".h5" else safetensors_to_zarr
    message = f"contains '{re.escape(name)}', which is not the store's: move it away first"
    with pytest.raises(FileExistsError, match=message):
        rebase_store(store)
    with pytest.raises(FileExistsError, match=message):
        convert(base, store, overwrite=True)
    assert re.search(message, refused(command, "--overwrite", base, store))
    assert re.search(message, refused("bf16codecs", "rebase", store))
    assert content_of(store) == before


@pytest.mark.parametrize("zarr_format", [2, 3])
@for_each(
    "name",
    [
        *("config.json", "README.md", "notes/today.txt", "a/notes.txt", ".hidden", "a/w/notes.txt"),
        # Files that other Zarr software could have written: arrays, and chunks.
        *("mine/zarr.json", "a/mine/.zarray", "a/0.0", "7"),
    ],
)
def test_files(base: Path, fine: Path, name: str, zarr_format: int) -> None:
    store = fine.with_name(f"{name.replace('/', '-')}.zarr")
    safetensors_to_zarr(fine, store, base=base, zarr_format=zarr_format)
    (store / name).parent.mkdir(exist_ok=True)
    (store / name).write_text("mine")
    assert_refused(store, base, name)
    (store / name).unlink()
    rebase_store(store)
    verify_store(store, fine)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_how_often_the_root_is_parsed(
    base: Path, zarr_format: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root has the metadata of all arrays, for verifying and for finding such files."""
    store, read, keys = base.with_name("m.zarr"), metadata.read_json, []
    safetensors_to_zarr(base, store, zarr_format=zarr_format)

    def noted(where: str, source: Any, key: str) -> Any:
        keys.append(key)
        return read(where, source, key)

    for module in (metadata, copies):
        monkeypatch.setattr(module, "read_json", noted)
    assert foreign_name(store, Kind.FOLDER) == ""
    with closing(open_store(store)) as reader:
        assert list(reader.stored.document_faults()) == []
    # Again at the end of verifying, as it is then: a run may have grown.
    assert keys.count(metadata.COPIES[zarr_format]) == 3


OTHERS = {
    # Documents of the other format, and files that are no documents of the folder.
    2: ["a/w/zarr.json", "b/.zarray", "a/zarr.json", "a/.zarray", "a/w/.zgroup", "a/w/.zmetadata"],
    3: [
        ".zgroup",
        "b/zarr.json",
        ".zmetadata",
        "a/.zattrs",
        "a/w/.zarray",
        "a/w/.zattrs",
        "s/.zarray",
    ],
}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_zarr_would_not_have_there(base: Path, fine: Path, zarr_format: int) -> None:
    store = fine.with_name("fine.zarr")
    safetensors_to_zarr(fine, store, base=base, zarr_format=zarr_format)
    for name in OTHERS[zarr_format]:
        (store / name).write_text("{}")
        assert foreign_name(store, Kind.FOLDER) == name
        (store / name).unlink()
    name = OTHERS[zarr_format][0]
    (store / name).write_text("{}")
    assert_refused(store, base, name)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_own_chunks(tmp_path: Path, zarr_format: int) -> None:
    """All chunks are recognized, even of arrays without axes or items."""
    tensors = [
        ("a", "F32", (999, 50)),
        ("none", "F32", (0, 5)),
        ("s", "F32", ()),
        ("v", "U8", (1,)),
    ]
    model = write_model(tmp_path / "m.safetensors", tensors)
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(model, store, zarr_format=zarr_format, chunk_size=4096)
    assert len(list((store / "a").iterdir())) > 20
    assert foreign_name(store, Kind.FOLDER) == ""


def test_arrays(base: Path, fine: Path) -> None:
    store = fine.with_name("fine.zarr")
    safetensors_to_zarr(fine, store, base=base)
    zarr.open_group(store)["a/mine"] = np.ones(3)
    assert_refused(store, base, "a/mine/zarr.json")


def test_folders_without_files(base: Path, fine: Path) -> None:
    store = fine.with_name("fine.zarr")
    safetensors_to_zarr(fine, store, base=base)
    (store / "a" / "mine").mkdir()
    rebase_store(store)
    verify_store(store, fine)
    assert not (store / "a" / "mine").exists()


def test_links(base: Path, fine: Path) -> None:
    store = fine.with_name("fine.zarr")
    safetensors_to_zarr(fine, store, base=base)
    (store / "results").symlink_to("..")
    assert_refused(store, base, "results")


@for_each("name", ["config.json", "a/w/notes.txt", "mine/zarr.json"])
def test_members(base: Path, fine: Path, name: str) -> None:
    store = fine.with_name(f"{name.replace('/', '-')}.zarr.zip")
    safetensors_to_zarr(fine, store, base=base)
    with zipfile.ZipFile(store, "a") as archive:
        archive.writestr(name, "{}")
    assert_refused(store, base, name)


def test_objects(base: Path, fine: Path) -> None:
    store = fine.with_name("fine.h5")
    safetensors_to_hdf5(fine, store, base=base)
    made = {
        "mine": lambda file: file.create_dataset("mine", data=[1, 2]),
        "a/mine": lambda file: file.create_group("a/mine"),
        "a/w2": lambda file: file["a"].__setitem__("w2", file["a/w"]),
        "soft": lambda file: file.__setitem__("soft", h5py.SoftLink("/a")),
        "elsewhere": lambda file: file.__setitem__("elsewhere", h5py.ExternalLink("x.h5", "/")),
        "a/type": lambda file: file.__setitem__("a/type", np.dtype("f8")),
    }
    for name, make in made.items():
        with h5py.File(store, "a") as file:
            make(file)
        assert_refused(store, base, name)
        with h5py.File(store, "a") as file:
            del file[name]
    rebase_store(store)
    verify_store(store, fine)


def test_a_user_block(base: Path) -> None:
    store = base.with_name("m.h5")
    safetensors_to_hdf5(base, store)
    moved = base.with_name("moved.h5")
    with h5py.File(store) as old, h5py.File(moved, "w", userblock_size=512) as new:
        for name in old:
            old.copy(name, new)
        new.attrs["bf16codecs"] = old.attrs["bf16codecs"]
    with pytest.raises(FileExistsError, match="contains 'user block', which is not the store's"):
        safetensors_to_hdf5(base, moved, overwrite=True)


@pytest.mark.parametrize("name", ["run.zarr", "run.zarr.zip", "run.h5"])
def test_runs(base: Path, fine: Path, name: str) -> None:
    store, steps = base.with_name(name), [1, 2]
    make = partial(safetensors_to_run, steps=steps, overwrite=True, as_hdf5=name == "run.h5")
    for _ in range(2):
        make([base, fine], store)
    if name == "run.h5":
        with h5py.File(store, "a") as file:
            file["a/mine"] = [1, 2]
    elif name == "run.zarr":
        (store / "a" / "mine").write_text("")
    else:
        with zipfile.ZipFile(store, "a") as archive:
            archive.writestr("a/mine", "")
    before = content_of(store)
    with pytest.raises(FileExistsError, match="contains 'a/mine', which is not the store's"):
        make([fine, base], store)
    assert content_of(store) == before


def test_a_run_whose_append_was_killed_is_replaced(base: Path) -> None:
    store = base.with_name("run.zarr")
    safetensors_to_run([base], store, steps=[1])
    (store / "step" / ".appending").mkdir()
    (store / "step" / ".appending" / "new").write_text("new")
    (store / "new").mkdir()
    (store / "new" / "c.0.0").write_text("")
    safetensors_to_run([base], store, steps=[2], overwrite=True)
    assert not (store / "new").exists()


@pytest.mark.parametrize("name", ["two.zarr", "three.zarr", "three.zip", "fine.h5"])
def test_attributes(base: Path, fine: Path, name: str) -> None:
    """Rewriting a store would keep them; replacing it would lose them."""
    store = fine.with_name(name)
    if name == "fine.h5":
        safetensors_to_hdf5(fine, store, base=base)
        with h5py.File(store, "a") as file:
            file["a"].attrs["note"] = "mine"
    else:
        zarr_format = 2 if name == "two.zarr" else 3
        safetensors_to_zarr(fine, store, base=base, zarr_format=zarr_format)
        annotate(store)
    before = content_of(store)
    with pytest.raises(StoreError, match="would lose the attribute 'note' of 'a', which is not"):
        rebase_store(store)
    assert content_of(store) == before
    if name == "fine.h5":
        safetensors_to_hdf5(base, store, overwrite=True)
    else:
        safetensors_to_zarr(base, store, overwrite=True)
    verify_store(store, base)


def annotate(store: Path) -> None:
    """Give a group an attribute."""
    attributes = {"note": "mine"}
    if store.name == "two.zarr":
        (store / "a" / ".zattrs").write_text(json.dumps(attributes))
        return
    document = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    if store.suffix == ".zarr":
        (store / "a" / "zarr.json").write_text(json.dumps(document))
        return
    with zipfile.ZipFile(store, "a") as archive:
        archive.writestr("a/zarr.json", json.dumps(document))


@for_each("name", [".DS_Store", "a/.DS_Store"])
def test_what_is_not_missed(base: Path, name: str) -> None:
    store = base.with_name("m.zarr")
    safetensors_to_zarr(base, store, overwrite=True)
    (store / name).write_text("")
    safetensors_to_zarr(base, store, overwrite=True)
    verify_store(store, base)


def test_stores_of_others_are_replaced(base: Path) -> None:
    """With `overwrite`, plain Zarr groups and HDF5 files are replaced as well."""
    group, file = base.with_name("m.zarr"), base.with_name("m.h5")
    zarr.open_group(group, mode="w")["a"] = np.ones(3)
    with h5py.File(file, "w") as own:
        own["a"] = np.ones(3)
    safetensors_to_zarr(base, group, overwrite=True)
    safetensors_to_hdf5(base, file, overwrite=True)
    verify_store(group, base)
    verify_store(file, base)


def test_a_damaged_store_is_replaced(base: Path) -> None:
    store = base.with_name("m.zarr")
    safetensors_to_zarr(base, store)
    (store / "a" / "w" / "zarr.json").unlink()
    safetensors_to_zarr(base, store, overwrite=True)
    verify_store(store, base)
