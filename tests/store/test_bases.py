"""Where stores look for their bases, and which ones they refuse."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from based_models import KINDS, assert_holds, base_of, convert, restore, write_nearby
from bf16codecs import open_model
from bf16codecs.convert import safetensors_to_zarr, verify_store
from bf16codecs.errors import BaseMismatchError, CorruptDataError
from bf16codecs.store import StoreError
from bf16codecs.store.bases import MOST_BASES
from bits import assert_same_bits
from edit_store import edit_attributes
from lazy_models import weights, write_safetensors
from models import write_model

TENSORS = [("a", "BF16", (64, 40)), ("b", "F32", (30, 7))]
ADVICE = re.escape("name its base with base=..., as bf16codecs.open_model takes it")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a store in its own folder, of a model that is missing."""
    (tmp_path / "bases").mkdir()
    model = write_model(tmp_path / "base.safetensors", TENSORS, 1)
    return convert("zarr3", model, tmp_path / "bases" / "base", chunk_size=500)


@pytest.fixture
def fine(tmp_path: Path, base: Path) -> Path:
    return write_nearby(tmp_path / "base.safetensors", tmp_path / "fine.safetensors")


@pytest.fixture
def store(fine: Path, base: Path) -> Path:
    fine.with_name("tuned").mkdir()
    return convert("zarr3", fine, fine.parent / "tuned" / "fine", base=base, chunk_size=700)


# --- paths ----------------------------------------------------------------------------------------


def test_path_is_relative_to_the_stores_folder(
    base: Path, fine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any way to name base and store."""
    (tmp_path / "tuned").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "tuned")
    (tmp_path / "link.zarr").symlink_to(base)
    monkeypatch.chdir(tmp_path / "tuned")
    names = ["../bases/base.zarr", "../bases/base.zarr/", str(base), base.as_uri(), "../link.zarr"]
    for target in ("fine.zarr", "../linked/fine.zarr", f"{tmp_path}/tuned/../linked/fine.zarr"):
        for name in names:
            safetensors_to_zarr(fine, target, base=name, overwrite=True)
            assert base_of(tmp_path / "tuned" / "fine.zarr") == "../bases/base.zarr"


def test_opened_from_anywhere(
    store: Path, fine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x" / "y").mkdir(parents=True)
    link, folder = tmp_path / "x" / "link.zarr", tmp_path / "x" / "y" / "folder"
    link.symlink_to(store)
    folder.symlink_to(store.parent)
    monkeypatch.chdir(tmp_path / "x" / "y")
    for path in (link, folder / "fine.zarr", "../link.zarr", "folder/fine.zarr", store.as_uri()):
        with open_model(path) as model, open_model(fine) as source:
            assert_same_bits(model["a"][...], source["a"][...])


@pytest.mark.parametrize("kind", KINDS)
def test_both_may_move_together(kind: str, base: Path, fine: Path, tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    store = convert(kind, fine, tmp_path / "tuned" / "fine", base=base)
    (tmp_path / "moved").mkdir()
    shutil.move(base.parent, tmp_path / "moved" / "bases")
    shutil.move(store.parent, tmp_path / "moved" / "tuned")
    assert_holds(tmp_path / "moved" / "tuned" / store.name, fine)


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_that_moved_is_to_be_named(
    kind: str, base: Path, fine: Path, tmp_path: Path
) -> None:
    store = convert(kind, fine, tmp_path / "fine", base=base)
    moved = base.rename(tmp_path / "moved.zarr")
    for read in (open_model, verify_store, lambda path: restore(path, tmp_path / "back")):
        with pytest.raises(StoreError, match=f"{base}: No such file.*{ADVICE}") as caught:
            read(store)
        assert str(caught.value).startswith(f"{store}: its base cannot be opened: ")
        assert "\n" not in str(caught.value)
    assert_holds(store, fine, base=moved)
    # A store of another kind, and the files themselves, serve as the base as well.
    source = tmp_path / "base.safetensors"
    assert_holds(store, fine, base=source)
    assert_holds(store, fine, base=convert("hdf5", source, tmp_path / "again", chunk_size=99))


def test_a_base_that_is_named_is_the_only_one(store: Path, base: Path, tmp_path: Path) -> None:
    """A named base is not replaced by the one in the store's attributes."""
    source = tmp_path / "base.safetensors"
    other = write_nearby(source, tmp_path / "other.safetensors", seed=5)
    other = convert("zarr3", other, tmp_path / "other")
    with pytest.raises(BaseMismatchError, match=r"other\.zarr is not its base"):
        open_model(store, base=other)
    with pytest.raises(StoreError, match=r"missing\.zarr"):
        open_model(store, base=tmp_path / "missing.zarr")
    with pytest.raises(ValueError, match="the path of the base is empty"):
        open_model(store, base="")
    with pytest.raises(ValueError, match="has no base: leave out base"):
        open_model(base, base=store)


def test_a_base_that_is_no_model(store: Path, base: Path) -> None:
    shutil.rmtree(base)
    base.mkdir()
    with pytest.raises(StoreError, match=f"not a model store.*{ADVICE}"):
        open_model(store)
    base.rmdir()
    os.mkfifo(base)
    with pytest.raises(StoreError, match=f"not a model store.*{ADVICE}"):
        open_model(store)


# --- digests --------------------------------------------------------------------------------------


def test_a_base_has_the_limits_of_its_model(tmp_path: Path, fine: Path) -> None:
    """The caller's `max_bytes` bounds a base's chunks as well."""
    whole = convert("zarr3", tmp_path / "base.safetensors", tmp_path / "whole")
    store = convert("zarr3", fine, tmp_path / "x", base=whole, chunk_size=1024)
    with open_model(store, max_bytes=64 * 40 * 2) as model:
        assert model["a"][3].shape == (40,)
    with (
        open_model(store, max_bytes=64 * 40) as model,
        pytest.raises(StoreError, match=r"a chunk of tensor 'a': 5120 bytes .*max_bytes"),
    ):
        model["a"][3]


@pytest.mark.parametrize("kind", ["zarr3", "hdf5"])
def test_another_model_at_the_bases_path(kind: str, base: Path, fine: Path, tmp_path: Path) -> None:
    store = convert(kind, fine, tmp_path / "fine", base=base)
    source = tmp_path / "base.safetensors"
    others = {
        r"the BLAKE3 of base\.safetensors is \w{16}, not \w{16}": source,
        r"the size of base\.safetensors is \d+, not \d+": source,
        "it has a.safetensors, b.safetensors": tmp_path / "shards",
    }
    (tmp_path / "shards").mkdir()
    for i, message in enumerate(others):
        if i == 0:
            write_nearby(source, source, seed=7)
        elif i == 1:
            write_model(source, [*TENSORS, ("c", "U8", (1,))])
        else:
            for name in "ab":
                tensors = [(name, *form) for own, *form in TENSORS if own == name]
                write_model(tmp_path / "shards" / f"{name}.safetensors", tensors)
        safetensors_to_zarr(others[message], base, overwrite=True)
        with pytest.raises(BaseMismatchError, match=f"{message}; {ADVICE}") as caught:
            open_model(store)
        assert str(caught.value).startswith(f"{store}: {base} is not its base: ")


def test_files_that_were_rewritten(fine: Path, tmp_path: Path) -> None:
    """A changed header is found at once; changed data only where they are read."""
    source = tmp_path / "base.safetensors"
    store = convert("zarr3", fine, tmp_path / "fine", base=source)
    good = source.read_bytes()
    bad = bytearray(good)
    bad[-1] ^= 1  # in b
    source.write_bytes(bad)
    with open_model(store) as model, open_model(fine) as original:
        assert_same_bits(model["a"][...], original["a"][...])
        with pytest.raises(
            BaseMismatchError, match=r"tensor 'b', chunk b/c\.0\.0: .* not the base"
        ):
            model["b"][...]
    above = convert("hdf5", fine, tmp_path / "above", base=fine)
    edit_attributes(above, lambda a: a["base"].update(path="fine.zarr"))
    changed = f"this is not the base .*: {source} has other bytes; {ADVICE}$"
    for path in (store, above):
        with open_model(path) as model, pytest.raises(BaseMismatchError, match=changed) as caught:
            model["b"][3:5]
        assert str(caught.value).startswith(f"{path}: tensor 'b', ")
    with pytest.raises(BaseMismatchError, match="tensor 'b'"):
        restore(store, tmp_path / "back")
    source.write_bytes(good.replace(b"pt", b"tf"))
    with pytest.raises(
        BaseMismatchError, match=r"the header's SHA-256 of base\.safe.* is \w{16}, "
    ):
        open_model(store)
    source.write_bytes(good)
    assert_holds(store, fine)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_base_is_named(kind: str, fine: Path, tmp_path: Path) -> None:
    base = convert("zarr3", tmp_path / "base.safetensors", tmp_path / "base", codec="huffman")
    store = convert(kind, fine, tmp_path / "fine", base=base)
    chunk = base / "a" / "c.0.0"
    raw = bytearray(chunk.read_bytes())
    raw[-9] ^= 8
    chunk.write_bytes(raw)
    message = rf"{store}: tensor 'a', chunk .*: {base}: tensor 'a', chunk a/c\.0\.0: "
    with open_model(store) as model:
        assert model["b"][...].shape == (30, 7)
        with pytest.raises(CorruptDataError, match=message):
            model["a"][5]
    chunk.unlink()
    with open_model(store) as model, pytest.raises(StoreError, match=rf"{message}it is missing"):
        model["a"][5]


def test_a_base_whose_data_were_changed_with_its_checksums(fine: Path, tmp_path: Path) -> None:
    """The base's own metadata are not trusted, only its blocks."""
    source = tmp_path / "base.safetensors"
    base = convert("zarr3", source, tmp_path / "base", codec="none")
    store = convert("zarr3", fine, tmp_path / "fine", base=base)
    chunk = base / "a" / "c.0.0"
    raw = bytearray(chunk.read_bytes())
    raw[7] ^= 1
    chunk.write_bytes(raw)
    with open_model(store) as model, pytest.raises(BaseMismatchError, match="not the base"):
        model["a"][...]
    reference: Any = {}
    edit_attributes(store, lambda a: reference.update(a["base"]))
    other = write_nearby(source, tmp_path / "x.safetensors", seed=8)
    safetensors_to_zarr(other, base, codec="none", overwrite=True)
    edit_attributes(base, lambda a: a["files"][0].update(blake3=reference["files"][0]["blake3"]))
    with open_model(store) as model:
        for name in ("a", "b"):
            with pytest.raises(BaseMismatchError, match="not the base"):
                model[name][...]


def test_a_base_that_lost_a_tensor(store: Path, base: Path) -> None:
    """Its digests are unchanged."""
    edit_attributes(base, lambda a: a["tensors"].pop("b"))
    with open_model(store) as model:
        assert model["a"].shape == (64, 40)
        with pytest.raises(StoreError, match=f"'b': its base, {base}, has no such tensor"):
            _ = model["b"]


# --- chains ---------------------------------------------------------------------------------------


def test_chains_that_go_round(tmp_path: Path) -> None:
    source = write_safetensors(tmp_path / "m.safetensors", {"w": weights((40, 30))})
    for name, base in (("a", None), ("b", "a.zarr"), ("c", "b.zarr")):
        below = None if base is None else tmp_path / base
        convert("zarr3", source, tmp_path / name, base=below)
    reference: Any = {}
    edit_attributes(tmp_path / "c.zarr", lambda a: reference.update(a["base"]))
    difference = {"difference": "w", "dtype": "BF16", "shape": [40, 30]}
    (tmp_path / "link.zarr").symlink_to(tmp_path / "a.zarr")
    for path in ("a.zarr", "link.zarr", "b.zarr", "../x/../c.zarr", (tmp_path / "a.zarr").as_uri()):
        entry = {**reference, "path": path.replace("../x/..", f"../{tmp_path.name}")}
        new = {"layout": 2, "base": entry, "tensors": {"w": difference}}
        edit_attributes(tmp_path / "a.zarr", lambda a, new=new: a.update(new))
        for store in ("a.zarr", "b.zarr", "c.zarr", "link.zarr"):
            with pytest.raises(StoreError, match=r"\.zarr: its bases form a cycle"):
                open_model(tmp_path / store)


def test_the_longest_chain(tmp_path: Path) -> None:
    source = write_safetensors(tmp_path / "m.safetensors", {"w": weights((40, 30))})
    master = write_safetensors(tmp_path / "f.safetensors", {"w": weights((40, 30), "float32")})
    store = convert("zarr3", master, tmp_path / "0")
    for i in range(MOST_BASES):
        store = convert("zarr3", source, tmp_path / f"{i + 1}", base=store, sync=False)
    assert_holds(store, source)
    with pytest.raises(StoreError, match=f"more than {MOST_BASES} bases, each that of another"):
        convert("zarr3", source, tmp_path / "more", base=store)
    first = tmp_path / "0.zarr"
    edit_attributes(first.with_name("1.zarr"), lambda a: a["base"].update(path="x/../0.zarr"))
    again = convert("zarr3", master, tmp_path / "again", base=first)
    again.rename(tmp_path / "between.zarr")
    shutil.move(first, tmp_path / "x.zarr")
    (tmp_path / "between.zarr").rename(first)
    edit_attributes(first, lambda a: a["base"].update(path="x.zarr"))
    with pytest.raises(StoreError, match=f"more than {MOST_BASES} bases"):
        open_model(store)
    assert np.asarray(open_model(tmp_path / "5.zarr")["w"]).shape == (40, 30)
