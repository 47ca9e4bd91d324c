"""Early steps of published runs are dropped, and nothing else is touched."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import bf16codecs
from bf16codecs.convert import drop_steps, safetensors_to_run, safetensors_to_zarr, verify_store
from bf16codecs.errors import StoreError
from folders import files_in
from invoked import done
from make_golden_stores import FOLDER, PUBLISHED

(NAME,) = PUBLISHED


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the golden run, of steps 30 and 40, and 50 and 60, as a folder."""
    with zipfile.ZipFile(FOLDER / NAME) as archive:
        archive.extractall(tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def tensors_at(run: Any, step: int, **options: Any) -> dict[str, bytes]:
    with bf16codecs.open_model(f"{run}@{step}", **options) as model:
        return {name: tensor[...].tobytes() for name, tensor in model.items()}


@pytest.mark.parametrize(
    ("keep", "dropped"), [(1, [30, 40]), (2, [30, 40]), (3, []), (4, []), (9, [])]
)
def test_groups_are_dropped(run: Path, keep: int, dropped: list[int]) -> None:
    before, last = files_in(run), tensors_at(run, 60)
    found = drop_steps(run, keep)
    assert found.dropped == tuple(dropped)
    assert found.steps == tuple(step for step in (30, 40, 50, 60) if step not in dropped)
    after = files_in(run)
    gone = {f"steps/{step}-" for step in dropped}
    kept = {n: c for n, c in before.items() if not any(n.startswith(each) for each in gone)}
    assert after.keys() == kept.keys()
    assert {n for n in kept if kept[n] != after[n]} == ({"zarr.json"} if dropped else set())
    assert found.nbytes == sum(len(c or b"") for n, c in before.items() if n not in after)
    assert tensors_at(run, 60) == last
    verify_store(run)


def test_in_an_object_store(run: Path, bucket: str, s3: dict[str, str], fsspec: Any) -> None:
    fsspec.filesystem("s3", **s3).put(str(run), f"{bucket}/run.zarr", recursive=True)
    last = tensors_at(run, 60)
    found = drop_steps(f"{bucket}/run.zarr", 1, storage_options=s3)
    assert found.dropped == (30, 40)
    assert tensors_at(f"{bucket}/run.zarr", 60, storage_options=s3) == last
    keys = fsspec.filesystem("s3", **s3).find(f"{bucket}/run.zarr/steps")
    assert not [key for key in keys if "/30-" in key or "/40-" in key]
    with pytest.raises(FileNotFoundError, match="No run is there"):
        drop_steps(f"{bucket}/other.zarr", 1, storage_options=s3)


def test_what_cannot_drop_steps_is_left_alone(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.zarr"
    shutil.copytree(FOLDER / "layout2-run.zarr", other)
    before = files_in(other)
    with pytest.raises(StoreError, match="only published runs can drop early steps"):
        drop_steps(other, 1)
    assert files_in(other) == before
    with pytest.raises(FileNotFoundError):
        drop_steps(tmp_path / "nothing.zarr", 1)
    with pytest.raises(ValueError, match="keep_last"):
        drop_steps(run, 0)
    save_file({"a": np.zeros(3, "f4")}, tmp_path / "model.safetensors")
    with pytest.raises(StoreError, match="only these can drop early steps"):
        drop_steps(tmp_path / "model.safetensors", 1)
    with pytest.raises(ValueError, match=r"leave out @40, for all of .*run\.zarr"):
        drop_steps(f"{run}@40", 1)
    with pytest.raises(TypeError, match="storage_options must be a dict"):
        drop_steps("s3://bucket/run.zarr", 1, storage_options="x")
    with pytest.raises(ValueError, match="storage_options"):
        drop_steps(run, 1, storage_options={"key": "k"})


@pytest.mark.parametrize("convert", [safetensors_to_zarr, safetensors_to_run])
def test_conversions_leave_published_runs_alone(
    run: Path, tmp_path: Path, convert: Callable[..., object]
) -> None:
    source = tmp_path / "model-step00070.safetensors"
    save_file({"a": np.zeros(4, np.float32)}, source)
    given = [source] if convert is safetensors_to_run else source
    before = files_in(run)
    with pytest.raises(FileExistsError, match="is a published run, which only publish adds to"):
        convert(given, run, overwrite=True)
    assert files_in(run) == before


def test_conversions_to_an_object_store_leave_published_runs_alone(
    run: Path, tmp_path: Path, bucket: str, s3: dict[str, str], fsspec: Any
) -> None:
    fsspec.filesystem("s3", **s3).put(str(run), f"{bucket}/run.zarr", recursive=True)
    source = tmp_path / "model.safetensors"
    save_file({"a": np.zeros(4, np.float32)}, source)
    with pytest.raises(FileExistsError, match="is a published run, which only publish adds to"):
        safetensors_to_zarr(source, f"{bucket}/run.zarr", overwrite=True, storage_options=s3)


def test_the_command(run: Path) -> None:
    text = done("bf16codecs", "drop-steps", run, "--keep-last", 2)
    assert text.endswith("remaining steps: 50, 60\n")
    assert "dropped steps: 30, 40 (" in text
    text = done("bf16codecs", "drop-steps", run, "--keep-last", 2, "--json")
    assert json.loads(text) == {
        "target": str(run),
        "done": "dropped",
        "dropped": [],
        "nbytes": 0,
        "group": 2,
        "steps": [50, 60],
    }
