"""The best base of those in a folder."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from based_models import KINDS, assert_holds, convert, write_nearby, write_steps
from bf16codecs.convert import rebase_store, safetensors_to_zarr, zarr_to_safetensors
from bf16codecs.store import StoreError
from folders import names_in
from lazy_models import weights, write_safetensors, write_shards
from models import write_model


@pytest.fixture
def steps(tmp_path: Path, demo_model: Path) -> dict[int, Path]:
    return write_steps(tmp_path, demo_model)


@pytest.fixture
def bases(tmp_path: Path) -> Path:
    (tmp_path / "bases").mkdir()
    return tmp_path / "bases"


def made(source: Path, folder: Path, **options: object) -> tuple[Path, str]:
    """Convert with the best base of a folder; return the store, and the messages."""
    store = folder.parent / "m.zarr"
    return store, safetensors_to_zarr(source, store, base=f"auto:{folder}", **options).base


@pytest.mark.parametrize("kind", [*KINDS, "safetensors"])
def test_the_nearest_step_is_picked(kind: str, steps: dict[int, Path], bases: Path) -> None:
    for step in (300, 399):
        if kind == "safetensors":
            shutil.copy(steps[step], bases)
        else:
            convert(kind, steps[step], bases / f"step{step}")
    other = write_model(bases.parent / "x.safetensors", [("x", "BF16", (64, 8))])
    convert("zarr3", other, bases / "other")
    (bases / "README.md").write_text("x")
    (bases / "empty").mkdir()
    store, said = made(steps[400], bases)
    match = re.fullmatch(
        r"base bases/(step399\.\S+): 2 of 2 tensors as differences; by a sample: (\S+) bits per"
        r" value alone, as a difference to (\S+) (\S+), step300\.\S+ (\S+)",
        said,
    )
    assert match
    assert match[1] == match[3]
    near, far, alone = (float(match[i]) for i in (4, 5, 2))
    assert near < 2
    assert 5 < far < 0.7 * alone < 8
    assert_holds(store, steps[400])


def test_estimates_are_near_the_sizes(steps: dict[int, Path], bases: Path) -> None:
    convert("zarr3", steps[300], bases / "step300")
    said = made(steps[400], bases)[1]
    estimated = float(said.split()[-1])
    store = convert("zarr3", steps[400], bases.parent / "whole", base=steps[300])
    chunks = [p for p in store.rglob("c.*") if "safetensors/header" not in str(p)]
    nbytes = sum(p.stat().st_size for p in chunks)
    assert 8 * nbytes / (steps[400].stat().st_size / 2) == pytest.approx(estimated, rel=0.05)


def test_shards_and_folders(steps: dict[int, Path], bases: Path) -> None:
    arrays = {name: weights((64, 40), seed=i) for i, name in enumerate("abcd")}
    near = {name: (a * np.float32(1.003)).astype(a.dtype) for name, a in arrays.items()}
    write_shards(bases / "near", [{n: near[n] for n in names} for names in ("ab", "cd")])
    convert("zarr3", steps[300], bases / "other")
    source = write_safetensors(bases.parent / "m.safetensors", arrays)
    store, said = made(source, bases)
    assert said.startswith("base bases/near: 4 of 4 tensors")
    assert_holds(store, source)


def test_none_that_is_worth_it(bases: Path) -> None:
    """A base that saves too little to depend on it."""
    arrays = {"w": weights((256, 128))}
    source = write_safetensors(bases.parent / "m.safetensors", arrays)
    other = write_safetensors(bases.parent / "x.safetensors", {"w": weights((256, 128), seed=1)})
    convert("zarr3", other, bases / "stranger")
    store, said = made(source, bases)
    assert re.fullmatch(
        r"no base is worth it, by a sample: (\S+) bits per value alone, as a difference to"
        r" stranger\.zarr (\S+)",
        said,
    )
    assert_holds(store, source)
    with pytest.raises(ValueError, match="has no base: leave out base"):
        assert_holds(store, source, base=bases / "stranger.zarr")


def test_nothing_in_common(steps: dict[int, Path], bases: Path) -> None:
    other = write_model(bases.parent / "x.safetensors", [("x", "BF16", (64, 8))])
    for i in range(2):
        convert("zarr3", other, bases / f"other{i}")
    store, said = made(steps[400], bases)
    assert said == f"no base: none of 2 models in {bases} has a tensor in common"
    assert_holds(store, steps[400])


def test_folders_without_models(steps: dict[int, Path], bases: Path) -> None:
    (bases / ".hidden.zarr").mkdir()
    (bases / "x.txt").write_text("x")
    (bases / "x.zarr").mkdir()
    with pytest.raises(StoreError, match=f"auto:{bases}: no model in this folder can be the base$"):
        made(steps[400], bases)
    with pytest.raises(FileNotFoundError, match="missing"):
        made(steps[400], bases / "missing")
    with pytest.raises(NotADirectoryError, match=r"x\.txt"):
        made(steps[400], bases / "x.txt")
    for place, message in (
        ("auto:", "is empty"),
        ("auto:https://host/models", "only local folders"),
    ):
        with pytest.raises(ValueError, match=message):
            safetensors_to_zarr(steps[400], bases.parent / "m.zarr", base=place)
    assert not (bases.parent / "m.zarr").exists()


def test_models_that_cannot_be_read(steps: dict[int, Path], bases: Path) -> None:
    """Damaged ones, and those whose base is missing."""
    damaged = convert("zarr3", steps[399], bases / "damaged")
    for chunk in damaged.rglob("c.0*"):
        chunk.write_bytes(chunk.read_bytes()[:-1])
    (bases / "cut.h5").write_bytes(
        convert("hdf5", steps[399], bases.parent / "x").read_bytes()[:999]
    )
    (bases / "cut.safetensors").write_bytes(steps[399].read_bytes()[:999])
    with pytest.raises(StoreError, match=r"no model in this folder can be the base: .*cut\.h5: "):
        made(steps[400], bases)
    convert("zarr3", steps[300], bases / "step300")
    orphan = convert("zarr3", steps[399], bases / "orphan", base=steps[300])
    steps[300].rename(bases.parent / "moved")
    store, said = made(steps[400], bases)
    assert re.search(
        r"difference to step300\.zarr \S+; could not be read: cut\.h5, cut\.safetensors,"
        r" damaged\.zarr, orphan\.zarr \(.*cut\.h5: .*\)$",
        said,
    )
    assert_holds(store, steps[400])
    assert orphan.exists()


# --- candidates that are skipped ------------------------------------------------------------------


def test_source_and_target_are_no_bases(steps: dict[int, Path], bases: Path) -> None:
    source = steps[400].rename(bases / "m.safetensors")
    base = convert("zarr3", steps[399], bases / "step399")
    store = bases / "m.zarr"
    for _ in range(2):
        said = safetensors_to_zarr(source, store, base=f"auto:{bases}", overwrite=True).base
        assert said.startswith("base step399.zarr: ")
    shutil.rmtree(base)
    with pytest.raises(StoreError, match="no model in this folder"):
        safetensors_to_zarr(source, store, base=f"auto:{bases}", overwrite=True)


def test_a_folder_of_shards_as_the_source(bases: Path) -> None:
    halves = [{"a": weights((64, 40))}, {"b": weights((64, 40), seed=1)}]
    source = write_shards(bases / "m", halves)
    for place in (source, next(source.glob("*.json"))):
        with pytest.raises(StoreError, match="no model in this folder"):
            made(place, bases)


def test_stores_that_need_the_target_are_no_bases(
    steps: dict[int, Path], bases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By any of its names."""
    target = convert("zarr3", steps[300], bases / "step300")
    convert("zarr3", steps[399], bases / "step399", base=target)
    (bases.parent / "link").symlink_to(bases)
    monkeypatch.chdir(bases)
    for folder in (bases, bases.parent / "link", Path()):
        for path in (target, bases.parent / "link" / "step300.zarr", Path("step300.zarr")):
            said = safetensors_to_zarr(
                steps[300], path, base=f"auto:{folder or '.'}", overwrite=True
            ).base
            assert said == (
                f"no base: no other model is in {folder or '.'}; left out, since their base is"
                " step300.zarr: step399.zarr"
            )
    convert(
        "zarr3", write_model(bases.parent / "x.safetensors", [("x", "BF16", (9,))]), bases / "x"
    )
    said = safetensors_to_zarr(steps[300], target, base=f"auto:{bases}", overwrite=True).base
    assert said.startswith(f"no base: none of 1 model in {bases} has a tensor in common; left out,")
    shutil.rmtree(bases / "x.zarr")
    assert names_in(bases) == {"step300.zarr", "step399.zarr"}


def test_storage_options_are_refused(steps: dict[int, Path], bases: Path) -> None:
    """Whether or not a base would be picked: it is in a local folder."""
    other = write_model(bases.parent / "x.safetensors", [("x", "BF16", (64, 8))])
    for source in (other, steps[300]):
        convert("zarr3", source, bases / source.stem)
        with pytest.raises(ValueError, match="this folder is on a disk"):
            made(steps[400], bases, storage_options={"anon": True})
    assert not (bases.parent / "m.zarr").exists()


def test_in_place_of_another_base(steps: dict[int, Path], bases: Path) -> None:
    convert("zarr3", steps[399], bases / "step399")
    far = convert("zarr3", steps[300], bases / "step300")
    store = convert("hdf5", steps[400], bases / "m", base=far)
    said = rebase_store(store, f"auto:{bases}").base
    assert said.startswith("base step399.zarr: ")
    assert_holds(store, steps[400])


def test_sample_is_of_the_middle_too(bases: Path) -> None:
    """Of large models, parts all over: 2 MiB of 32."""
    arrays = {f"layer.{i}": weights((1024, 512), seed=i) for i in range(32)}
    other = dict(arrays)
    for i in range(16):
        other[f"layer.{i}"] = weights((1024, 512), seed=100 + i)
    source = write_safetensors(bases.parent / "m.safetensors", arrays)
    write_safetensors(bases / "half.safetensors", other)
    write_nearby(source, bases / "near.safetensors")
    said = made(source, bases, verify=False)[1]
    match = re.search(r"sample: (\S+) .* near\.safetensors (\S+), half\.safetensors (\S+)$", said)
    assert match
    alone, near, half = map(float, match.groups())
    assert near < 0.3 * alone
    assert 0.45 * alone < half < 0.6 * alone


def test_a_folder_in_a_bucket(
    steps: dict[int, Path], bucket: str, s3: dict[str, str], fsspec: Any, tmp_path: Path
) -> None:
    """Of stores and files of all kinds there; for a store there, or on the disk."""
    fs = fsspec.filesystem("s3", **s3)
    convert_there = partial(safetensors_to_zarr, storage_options=s3)
    with pytest.raises(StoreError, match="no model in this folder can be the base"):
        convert_there(steps[400], f"{bucket}/m.zarr", base=f"auto:{bucket}/")
    convert_there(steps[300], f"{bucket}/step300.zarr")
    fs.put(str(steps[399]), f"{bucket}/step399.safetensors")
    fs.pipe(f"{bucket}/logs/a.txt", b"x")
    fs.pipe(f"{bucket}/notes.txt", b"x")
    fs.pipe(f"{bucket}/broken.zarr/zarr.json", b"{")
    said = convert_there(steps[400], f"{bucket}/m.zarr", base=f"auto:{bucket}").base
    assert said.startswith("base step399.safetensors: 2 of 2 tensors as differences; by a sample: ")
    assert "could not be read: broken.zarr" in said
    assert "txt" not in said
    assert "logs" not in said
    zarr_to_safetensors(f"{bucket}/m.zarr", tmp_path / "back", storage_options=s3)
    assert (tmp_path / "back").read_bytes() == steps[400].read_bytes()
    # The source's own store is no stranger, and is nearest.
    said = convert_there(steps[400], tmp_path / "m.zarr", base=f"auto:{bucket}").base
    assert said.startswith(f"base {bucket}/m.zarr: ")
    said = rebase_store(f"{bucket}/m.zarr", f"auto:{bucket}", storage_options=s3).base
    assert said.startswith("base step399.safetensors: ")


def test_the_nearest_of_many_in_a_bucket(bucket: str, s3: dict[str, str], tmp_path: Path) -> None:
    """By their sketches, which are read side by side."""
    families = [write_model(tmp_path / f"f{i}", [("a", "BF16", (64, 80))], i) for i in range(10)]
    for i, model in enumerate(families):
        safetensors_to_zarr(model, f"{bucket}/f{i}.zarr", storage_options=s3)
    fine = write_nearby(families[7], tmp_path / "fine.safetensors")
    summary = safetensors_to_zarr(
        fine, f"{bucket}/m.zarr", base=f"auto:{bucket}", storage_options=s3
    )
    assert summary.base.startswith("base f7.zarr: ")
