"""Stores that are rewritten: whole, or on another base."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import pytest
import zarr

from based_models import (
    FEW_KINDS,
    KINDS,
    assert_holds,
    attributes_of,
    base_of,
    convert,
    info_of,
    tensors_of,
    write_nearby,
)
from bf16codecs import open_model
from bf16codecs.convert import (
    rebase_store,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
)
from bf16codecs.errors import BaseMismatchError, CorruptDataError
from bf16codecs.store import StoreError
from folders import files_in, names_in
from lazy_models import weights, write_safetensors, write_shards
from models import every_dtype, write_model
from tiers import by_tier

kinds = pytest.mark.parametrize("kind", KINDS)
few_kinds = pytest.mark.parametrize("kind", FEW_KINDS)


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    """Return three models, each near to the one before."""
    (tmp_path / "sources").mkdir()
    tensors = [
        ("s", "F32", ()),
        ("e", "F32", (0, 2)),
        ("a", "BF16", (64, 40)),
        ("b", "I32", (300,)),
    ]
    found = {"one": write_model(tmp_path / "sources" / "one.safetensors", tensors)}
    for seed, (before, name) in enumerate((("one", "two"), ("two", "three"))):
        path = tmp_path / "sources" / f"{name}.safetensors"
        found[name] = write_nearby(found[before], path, seed)
    return found


def forms(store: Path) -> dict[str, tuple[tuple[int, ...], str, str]]:
    """Return chunks, codec and level of each tensor."""
    tensors = tensors_of(store)
    with open_model(store) as model:
        return {
            name: (tensor.chunks, tensors[name]["codec"], tensors[name]["level"] or "")
            for name, tensor in model.items()
        }


@kinds
def test_there_and_back(kind: str, models: dict[str, Path], folder: Path) -> None:
    one = "safetensors" if kind in ("zarr2", "hdf5") else "zarr3"
    for base_kind in by_tier([one], ["zarr3", "hdf5", "safetensors"]):
        bases = models["one"], models["three"]
        if base_kind != "safetensors":
            options = {"chunk_size": 500, "overwrite": True}
            bases = tuple(convert(base_kind, m, folder / m.stem, **options) for m in bases)
        options = {"base": bases[0], "chunk_size": 700, "overwrite": True}
        store = convert(kind, models["two"], folder / "m", **options)
        summary = rebase_store(store)
        assert summary.base == ""
        assert base_of(store) is None
        assert_holds(store, models["two"])
        for base in reversed(bases):
            summary = rebase_store(store, base)
            assert summary.base.startswith("base ")
            assert base_of(store) == os.path.relpath(base, folder)
            assert_holds(store, models["two"])
        assert not [name for name in names_in(folder) if name.startswith(".")]


CODECS = [
    ("arithmetic", "fast"),
    ("arithmetic", "best"),
    ("huffman", ""),
    ("zstd", ""),
    ("split", ""),
]


@kinds
def test_codec_format_and_chunks_stay(kind: str, models: dict[str, Path], folder: Path) -> None:
    # Of each kind another codec, and one that has levels.
    own = CODECS[1:3] if kind in ("zarr3", "hdf5") else CODECS[3:]
    for codec, level in by_tier(own, CODECS):
        if kind == "hdf5" and codec == "zstd" and not find_spec("hdf5plugin"):
            continue
        options = {"codec": codec, "level": level or None, "chunk_size": 1024, "overwrite": True}
        store = convert(kind, models["two"], folder / "m", **options)
        before = forms(store)
        zarr_format = info_of(store)["zarr_format"]
        rebase_store(store, models["one"])
        # Differences are made by this package's codec of that name, which has a level of its own.
        expected = f"difference+{codec}", "3" if codec == "zstd" else level
        assert forms(store)["a"] == (before["a"][0], *expected)
        rebase_store(store)
        assert forms(store) == before
        assert info_of(store)["zarr_format"] == zarr_format
        assert_holds(store, models["two"])


@few_kinds
def test_codecs_without_differences(kind: str, models: dict[str, Path], folder: Path) -> None:
    # plain-zstd is for Zarr stores alone.
    for codec in ("none",) if kind == "hdf5" else ("none", "plain-zstd"):
        store = convert(kind, models["two"], folder / "m", codec=codec, overwrite=True)
        rebase_store(store)
        assert forms(store)["a"][1:] == (codec, "")
        rebase_store(store, models["one"])
        assert forms(store)["a"][1:] == ("difference+arithmetic", "fast")
        assert_holds(store, models["two"])


@pytest.mark.parametrize("kind", by_tier(["zarr2"], list(KINDS)))
def test_every_dtype(kind: str, tmp_path: Path) -> None:
    base = every_dtype(tmp_path / "base.safetensors")
    source = write_nearby(base, tmp_path / "m.safetensors")
    store = convert(kind, source, tmp_path / "m", base=base, chunk_size=200)
    rebase_store(store)
    assert_holds(store, source)
    rebase_store(store, base)
    assert_holds(store, source)


@few_kinds
def test_shards_and_tensors_that_are_stored_once(kind: str, tmp_path: Path) -> None:
    same, master = weights((64, 40)), weights((64, 32), "float32")
    halves = [{"a": same, "low": master.astype("bfloat16")}, {"master": master, "z": same}]
    source = write_shards(tmp_path / "m", halves)
    base = write_nearby(
        write_safetensors(tmp_path / "x.safetensors", {"z": same, "master": master}),
        tmp_path / "base.safetensors",
    )
    store = convert(kind, source, tmp_path / "store")
    for onto in (base, None):
        rebase_store(store, onto)
        assert_holds(store, source)
        tensors = attributes_of(store)["tensors"]
        assert (tensors["z"], tensors["low"]) == ("a", {"rounded": "master"})


def test_a_base_that_moved_gets_its_new_place(models: dict[str, Path], folder: Path) -> None:
    base = convert("zarr3", models["one"], folder / "one")
    store = convert("zarr3", models["two"], folder / "two", base=base)
    above = convert("zarr3", models["three"], folder / "three", base=store)
    moved = base.rename(folder.parent / "moved.zarr")
    with pytest.raises(StoreError, match=r"two\.zarr: its base cannot be opened"):
        rebase_store(above)
    with pytest.raises(StoreError, match="its base cannot be opened"):
        rebase_store(store)
    with pytest.raises(
        BaseMismatchError, match=r"three\.safetensors has other bytes; name its base"
    ):
        rebase_store(store, base=models["three"])
    rebase_store(store, moved, base=moved)
    assert base_of(store) == "../moved.zarr"
    assert_holds(above, models["three"])
    assert_holds(store, models["two"])


@kinds
def test_rebasing_onto_the_same_base_changes_nothing(
    kind: str, models: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = convert(kind, models["one"], folder / "one")
    store = convert(kind, models["two"], folder / "m", base=whole)
    monkeypatch.chdir(folder)
    before = files_in(folder)
    summaries = [rebase_store(whole), rebase_store(store, whole), rebase_store(store, whole.name)]
    assert all(summary.is_unchanged for summary in summaries)
    assert files_in(folder) == before
    # A base that the caller names is the one that the store names.
    assert not rebase_store(store, whole, base=whole).is_unchanged
    assert not rebase_store(store, models["one"]).is_unchanged
    assert not rebase_store(store).is_unchanged
    assert rebase_store(store).is_unchanged
    assert_holds(store, models["two"])


def test_a_base_in_a_run_is_known_again(models: dict[str, Path], folder: Path) -> None:
    run = folder / "run.zarr"
    safetensors_to_run([models["one"], models["two"]], run, steps=[1, 2])
    store = convert("zarr3", models["three"], folder / "m", base=f"{run}@1")
    assert rebase_store(store, f"{run}@1").is_unchanged
    assert not rebase_store(store, f"{run}@2").is_unchanged
    assert_holds(store, models["three"])


def test_a_link_to_the_rewritten_store(models: dict[str, Path], folder: Path) -> None:
    store = convert("zarr3", models["two"], folder / "two", base=models["one"])
    (folder.parent / "link.zarr").symlink_to(store)
    rebase_store(folder.parent / "link.zarr")
    assert (folder.parent / "link.zarr").is_symlink()
    assert not store.is_symlink()
    assert base_of(store) is None
    assert_holds(folder.parent / "link.zarr", models["two"])


# --- refused --------------------------------------------------------------------------------------


def test_bases_that_need_the_store(models: dict[str, Path], folder: Path) -> None:
    store = convert("zarr3", models["one"], folder / "one")
    above = convert("zarr3", models["two"], folder / "two", base=store)
    before = files_in(folder)
    for onto in (store, above):
        with pytest.raises(ValueError, match=r"would replace the base.*, .*/one\.zarr"):
            rebase_store(store, onto)
    assert files_in(folder) == before


def test_paths_that_are_no_local_stores(models: dict[str, Path], folder: Path) -> None:
    for place, message in (
        ("http://host/m.zarr", "stores are made on local disks, or in object stores"),
        (models["one"], "not a model store, but a safetensors model"),
        ("", "the path of the store is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            rebase_store(place)
    with pytest.raises(FileNotFoundError):
        rebase_store(folder / "missing.zarr")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "zip"])
def test_damage_is_not_passed_on(kind: str, models: dict[str, Path], folder: Path) -> None:
    """Without checksums in codecs, the files' digest detects it; ZIP members have a CRC-32."""
    store = convert(kind, models["two"], folder / "m", codec="none")
    source = models["two"].read_bytes()
    part = source[-1200 - 100 : -1200 - 60]  # in the last rows of a
    if store.is_dir():
        chunk = next(p for p in (store / "a").iterdir() if p.name in ("c.0.0", "0.0"))
    else:
        chunk = store
    raw = chunk.read_bytes()
    assert raw.count(part) == 1
    chunk.write_bytes(raw.replace(part, part[::-1]))
    before = files_in(folder)
    with pytest.raises(CorruptDataError, match=r"two\.safetensors has another BLAKE3"):
        rebase_store(store, models["one"])
    assert files_in(folder) == before


def test_damaged_chunks_keep_the_store(models: dict[str, Path], folder: Path) -> None:
    store = convert("zarr3", models["two"], folder / "m", base=models["one"], chunk_size=512)
    (store / "a" / "c.3.0").unlink()
    before = files_in(folder)
    with pytest.raises(StoreError, match=r"a/c\.3\.0: it is missing"):
        rebase_store(store)
    assert files_in(folder) == before


def test_limits_hold(models: dict[str, Path], folder: Path) -> None:
    store = convert("zarr3", models["two"], folder / "m", base=models["one"])
    with pytest.raises(StoreError, match="more than max_bytes allows"):
        rebase_store(store, max_bytes=1000)


# --- stores that other software has changed -------------------------------------------------------


def test_rewritten_by_others(models: dict[str, Path], folder: Path) -> None:
    """With codecs and filters that this package does not write, the default takes their place."""
    store = folder / "m.zarr"
    safetensors_to_zarr(models["two"], store)
    group = zarr.open_group(store, mode="r")
    copy = zarr.create_group(folder / "copy.zarr", attributes=dict(group.attrs))
    for path in ("s", "e", "a", "b", "safetensors/header/0"):
        old = group[path]
        new = copy.create_array(
            path, shape=old.shape, dtype=old.dtype, compressors=zarr.codecs.GzipCodec(),
            chunks=tuple(max(1, n // 3) for n in old.shape),
        )  # fmt: skip
        new[...] = old[...]
    rebase_store(folder / "copy.zarr", models["one"])
    assert forms(folder / "copy.zarr")["a"][1:] == ("difference+arithmetic", "fast")
    assert_holds(folder / "copy.zarr", models["two"])
    file = folder / "m.h5"
    safetensors_to_hdf5(models["two"], file, codec="none")
    with h5py.File(file, "r+") as opened:
        old = opened["b"]
        values, attributes = old[...], dict(old.attrs)
        del opened["b"]
        opened.create_dataset("b", data=values, compression="lzf").attrs.update(attributes)
    with pytest.raises(StoreError, match="max_bytes"):
        rebase_store(file, models["one"])
    rebase_store(file, models["one"], max_bytes=1 << 30)
    assert_holds(file, models["two"])


def test_summary(models: dict[str, Path], folder: Path) -> None:
    store = convert("zarr3", models["two"], folder / "m")
    done: list[Any] = []
    summary = rebase_store(
        store, models["one"], progress=lambda *step: done.append(step), threads=1
    )
    assert re.fullmatch(r"base \.\./sources/one\.safetensors: 2 of 4 tensors .*", summary.base)
    assert {phase for phase, _, _ in done} == {"convert", "verify"}
