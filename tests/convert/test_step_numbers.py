"""Which step a checkpoint is."""

from __future__ import annotations

from pathlib import Path

import pytest

from bf16codecs.convert.step_numbers import ordered_steps, step_of
from bf16codecs.safetensors import SafetensorsError, open_source
from models import entry, file_bytes


def checkpoint(path: Path, **metadata: str) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    header = {"__metadata__": metadata, "a": entry("U8", (1,))}
    path.write_bytes(file_bytes(header, b"x"))
    return path


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("tinylm-step00600.safetensors", 600),
        ("tinylm-step00600-fp32.safetensors", 600),
        ("model_step_7.safetensors", 7),
        ("iter=0012.safetensors", 12),
        ("checkpoint-500/model.safetensors", 500),
        ("checkpoint-500/model-00001-of-00002.safetensors", 500),
        ("run3/Step-9/model.safetensors", 9),
        ("llama-7b-300.safetensors", 300),
        ("42.safetensors", 42),
        ("epoch2-step30.safetensors", 30),
    ],
)
def test_names(tmp_path: Path, name: str, step: int) -> None:
    path = checkpoint(tmp_path / name)
    assert step_of(open_source(path), path) == step


@pytest.mark.parametrize("key", ["step", "global_step", "iteration"])
def test_metadata_come_first(tmp_path: Path, key: str) -> None:
    path = checkpoint(tmp_path / "step5.safetensors", **{key: "77"})
    assert step_of(open_source(path), path) == 77


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "9" * 30, "\u0663"])
def test_metadata_that_are_no_number(tmp_path: Path, value: str) -> None:
    path = checkpoint(tmp_path / "step5.safetensors", step=value)
    assert step_of(open_source(path), path) == 5


@pytest.mark.parametrize("name", ["model.safetensors", "fp32.safetensors", "v2final.safetensors"])
def test_nothing_tells(tmp_path: Path, name: str) -> None:
    path = checkpoint(tmp_path / "here" / name)
    with pytest.raises(SafetensorsError, match="say it with step= or steps="):
        step_of(open_source(path), path)


def test_order_and_repetition(tmp_path: Path) -> None:
    paths = [checkpoint(tmp_path / f"step{n}.safetensors") for n in (100, 9, 1000)]
    assert [number for number, _ in ordered_steps(paths)] == [9, 100, 1000]
    assert [number for number, _ in ordered_steps(paths, [3, 2, 1])] == [1, 2, 3]
    again = checkpoint(tmp_path / "other" / "step9.safetensors")
    with pytest.raises(SafetensorsError, match=r"is step 9, and so is .*step9"):
        ordered_steps([*paths, again])
