"""Which step a checkpoint is."""

from __future__ import annotations

from pathlib import Path

import pytest

from bf16codecs import open_run
from bf16codecs.convert import safetensors_to_run
from bf16codecs.safetensors import SafetensorsError
from models import entry, file_bytes

NAMED = {
    "tinylm-step00600.safetensors": 600,
    "tinylm-step00600-fp32.safetensors": 600,
    "model_step_7.safetensors": 7,
    "iter=0012.safetensors": 12,
    "checkpoint-500/model.safetensors": 500,
    "checkpoint-500/model-00001-of-00002.safetensors": 500,
    "run3/Step-9/model.safetensors": 9,
    "llama-7b-300.safetensors": 300,
    "42.safetensors": 42,
    "epoch2-step30.safetensors": 30,
}


def checkpoint(path: Path, **metadata: str) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    header = {"__metadata__": metadata, "a": entry("U8", (1,))}
    path.write_bytes(file_bytes(header, b"x"))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for checkpoints; neither its name nor that of the one above has a number."""
    (tmp_path / "above" / "here").mkdir(parents=True)
    return tmp_path / "above" / "here"


def steps_of(paths: list[Path], numbers: list[int] | None = None) -> list[int]:
    """Return the steps of a run of checkpoints."""
    store = paths[0].with_name("run.zarr")
    safetensors_to_run(paths, store, steps=numbers, overwrite=True, sync=False, verify=False)
    with open_run(store) as run:
        return run.steps


def test_names(folder: Path) -> None:
    for name, step in NAMED.items():
        assert steps_of([checkpoint(folder / name)]) == [step], name


def test_metadata_come_first(folder: Path) -> None:
    for key in ("step", "global_step", "iteration"):
        assert steps_of([checkpoint(folder / "step5.safetensors", **{key: "77"})]) == [77], key


def test_metadata_that_are_no_number(folder: Path) -> None:
    for value in ("", "x", "-1", "1.5", "9" * 30, "\u0663"):
        path = checkpoint(folder / "step5.safetensors", step=value)
        assert steps_of([path]) == [5], ascii(value)


def test_nothing_tells(folder: Path) -> None:
    for name in ("model.safetensors", "fp32.safetensors", "v2final.safetensors"):
        with pytest.raises(SafetensorsError, match=f"{name}: .*say it with step= or steps="):
            steps_of([checkpoint(folder / name)])


def test_order_and_repetition(folder: Path) -> None:
    paths = [checkpoint(folder / f"step{n}.safetensors") for n in (100, 9, 1000)]
    assert steps_of(paths) == [9, 100, 1000]
    assert steps_of(paths, [3, 2, 1]) == [1, 2, 3]
    again = checkpoint(folder / "other" / "step9.safetensors")
    with pytest.raises(SafetensorsError, match=r"is step 9, and so is .*step9"):
        steps_of([*paths, again])
