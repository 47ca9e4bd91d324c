"""Stores are read by a second reader, written from the documents alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bf16codecs
import tiers
from based_models import write_nearby
from bf16codecs.convert import (
    append_to_run,
    safetensors_to_run,
    safetensors_to_zarr,
    zarr_to_safetensors,
)
from lazy_models import write_safetensors
from make_golden_stores import FOLDER, OBJECTS, STORES, originals
from models import every_dtype
from reference_store import ReferenceStore
from run_stores import drifting, write_checkpoints
from training_jobs import run_jobs, skip_without_jobs

ZARR3 = [
    name
    for name, (_, options) in STORES.items()
    if name.endswith((".zarr", ".zarr.zip"))
    and options.get("zarr_format", 3) == 3
    and options.get("codec") != "none"
]


def test_golden_stores() -> None:
    for name in ZARR3:
        assert ReferenceStore(FOLDER / name).files() == originals(name), name


@pytest.mark.parametrize("name", [name for name in ZARR3 if "checkpoint" in name])
def test_golden_checkpoints(name: str) -> None:
    assert_same_objects(FOLDER / name)
    found = ReferenceStore(FOLDER / name)
    assert set(found.objects()) == set(OBJECTS)
    names = found.checkpoint()["names"]
    assert {key: tuple(names[key]) for key in OBJECTS} == {k: v for k, (v, _) in OBJECTS.items()}


def assert_same_objects(store: Path) -> None:
    """Compare objects that are not tensors with the package's."""
    with bf16codecs.open_model(store) as model:
        objects = {name: model.object_bytes(name) for name in model.objects()}
    assert objects == ReferenceStore(store).objects()
    assert objects


@pytest.mark.slow
def test_checkpoints_of_jobs(tmp_path: Path) -> None:
    """Of every dtype, in boxes, some of which reach beyond the tensor, and on each other."""
    skip_without_jobs()
    run_jobs(tmp_path, "save_differences:4", "save_shared_chunks:3", "save:2:alone.zarr:1")
    stores = [tmp_path / f"{name}.zarr" for name in ("step-0", "step-1", "step-2", "c", "alone")]
    for store in stores:
        file = tmp_path / f"{store.stem}.safetensors"
        zarr_to_safetensors(store, file)
        assert ReferenceStore(store).files() == {file.name: file.read_bytes()}
        assert_same_objects(store)
    in_boxes = [
        name
        for name, value in ReferenceStore(stores[1]).tensors.items()
        if isinstance(value, dict) and value.get("chunks", [0])[1:] != value.get("shape", [0])[1:]
    ]
    assert len(in_boxes) > 2


@pytest.mark.parametrize("codec", tiers.by_tier(["huffman"], ["arithmetic", "huffman", "split"]))
def test_every_dtype_on_a_base(tmp_path: Path, codec: str) -> None:
    base = every_dtype(tmp_path / "base.safetensors")
    fine = write_nearby(base, tmp_path / "fine.safetensors")
    safetensors_to_zarr(base, tmp_path / "base.zarr.zip", chunk_size=700)
    options = {"base": tmp_path / "base.zarr.zip", "codec": codec, "chunk_size": 900}
    safetensors_to_zarr(fine, tmp_path / "fine.zarr", **options)
    files = ReferenceStore(tmp_path / "fine.zarr").files()
    assert files == {"fine.safetensors": fine.read_bytes()}


def test_roundings_and_their_masters(tmp_path: Path) -> None:
    words = tiers.rng("roundings").randbytes(4 * 30 * 41)
    wide = {"w": np.frombuffer(words, "<f4").reshape(30, 41)}
    with np.errstate(invalid="ignore"):
        narrow = {"w": wide["w"].astype("bfloat16")}
    paths = {
        name: write_safetensors(tmp_path / f"{name}.safetensors", arrays)
        for name, arrays in {"wide": wide, "narrow": narrow}.items()
    }
    for name, path in paths.items():
        safetensors_to_zarr(path, tmp_path / f"{name}.zarr", chunk_size=999)
    for name, base in (("wide", "narrow"), ("narrow", "wide")):
        store = tmp_path / f"{name}-on-{base}.zarr"
        safetensors_to_zarr(paths[name], store, base=tmp_path / f"{base}.zarr", chunk_size=1400)
        assert ReferenceStore(store).files() == {f"{name}.safetensors": paths[name].read_bytes()}


@pytest.mark.parametrize("group", tiers.by_tier([3], [1, 3, 16]))
def test_runs(tmp_path: Path, group: int) -> None:
    steps = {}
    for number in range(5):
        master = drifting((20, 31), number).astype("f4")
        steps[number] = {
            "embed": drifting((40, 24), number),
            "head": drifting((40, 24), number if number != 2 else 9),
            "changes": drifting((7, 5) if number < 3 else (5, 7), number),
            "master": master,
        }
        if number != 1:
            steps[number]["late"] = drifting((9,), number)
    paths = write_checkpoints(tmp_path, steps)
    run = tmp_path / "run.zarr"
    safetensors_to_run(paths[:3], run, keyframe_every=group, chunk_size=700)
    for path in paths[3:]:
        append_to_run(path, run, allow_changed_tensors=True)
    for number, path in enumerate(paths):
        assert ReferenceStore(run, number).files() == {path.name: path.read_bytes()}
