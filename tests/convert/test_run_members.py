"""Checkpoints that are refused as steps of a run, and those that an option admits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import append_to_run, safetensors_to_run, verify_store
from bf16codecs.errors import StoreError, TensorChangeWarning
from folders import content_of
from invoked import done, run
from lazy_models import write_safetensors
from run_stores import TARGETS, Arrays, assert_is_step, drifting, make_run, write_checkpoints

MODEL = {"embed": (40, 24), "norm": (24,), "head": (40, 24)}


def model(step: int, dtype: str = "bfloat16", **shapes: tuple[int, ...]) -> Arrays:
    """Return a checkpoint, some of whose tensors have other shapes."""
    return {name: drifting(shape, step, dtype) for name, shape in {**MODEL, **shapes}.items()}


#: Checkpoints that change tensors, and the message about the first one.
CHANGED: dict[str, tuple[Arrays, str]] = {
    "FP32": (model(2, "float32"), r"'embed' \(F32, not BF16\), and 2 more: "),
    "F16": (model(2, "float16"), r"'embed' \(F16, not BF16\), and 2 more: "),
    "one FP32": (
        model(2) | {"norm": drifting((24,), 2, "float32")},
        r"'norm' \(F32, not BF16\): ",
    ),
    "larger vocabulary": (
        model(2, embed=(44, 24), head=(44, 24)),
        r"'embed' \(of shape \(44, 24\), not \(40, 24\)\), and 1 more: ",
    ),
    "larger model with one tensor of the same shape": (
        model(2, embed=(40, 32), head=(40, 32)),
        r"'embed' \(of shape \(40, 32\), not \(40, 24\)\), and 1 more: ",
    ),
    "quantized": (
        {name: np.ones(shape, "int8") for name, shape in MODEL.items()},
        r"'embed' \(I8, not BF16\), and 2 more: ",
    ),
}
#: Those that have no tensor of the run.
STRANGERS: dict[str, Arrays] = {
    "another model": {f"h.{name}": drifting(shape, 2) for name, shape in MODEL.items()},
    "adapter": {"base_model.model.embed.lora_A.weight": drifting((2, 24), 2)},
    "larger model": model(2, embed=(80, 48), norm=(48,), head=(80, 48)),
}


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_checkpoints(tmp_path_factory.mktemp("from"), {0: model(0), 1: model(1)})


@pytest.mark.parametrize("kind", ["zarr 3", "zarr 2", "hdf5"])
def test_appends_that_change_tensors(kind: str, steps: list[Path], tmp_path: Path) -> None:
    """Appended by mistake, they would make tensors over time unreadable."""
    store = make_run(kind, steps, tmp_path)
    before = content_of(store)
    for name, (arrays, said) in CHANGED.items():
        path = write_safetensors(tmp_path / "step-2.safetensors", arrays)
        allow = r"allow the change with allow_changed_tensors=True$"
        with pytest.raises(StoreError, match=f"differs from {store} in .* of {said}.*{allow}"):
            append_to_run(path, store)
        assert content_of(store) == before, name
    for name, arrays in STRANGERS.items():
        path = write_safetensors(tmp_path / "step-2.safetensors", arrays)
        for allowed in (False, True):
            with pytest.raises(StoreError, match="it has none of its tensors"):
                append_to_run(path, store, allow_changed_tensors=allowed)
        assert content_of(store) == before, name
    with bf16codecs.open_run(store) as opened:
        assert opened["head"].shape == (2, 40, 24)


def test_changes_that_are_allowed(steps: list[Path], tmp_path: Path) -> None:
    """Tensors may also appear, vanish, and return to their earlier shape."""
    store = make_run("zarr 3", steps, tmp_path)
    path = write_safetensors(tmp_path / "step-2.safetensors", model(2, "float32"))
    with pytest.warns(TensorChangeWarning, match=r"'embed' \(F32, not BF16\)"):
        append_to_run(path, store, allow_changed_tensors=True)
    former = model(3) | {"new": drifting((3, 3), 3)}
    append_to_run(write_safetensors(tmp_path / "step-3.safetensors", former), store)
    fewer = {name: array for name, array in model(4).items() if name != "norm"}
    append_to_run(write_safetensors(tmp_path / "step-4.safetensors", fewer), store)
    verify_store(store)
    with bf16codecs.open_run(store) as opened:
        assert opened["embed@2"].steps == [2]
        assert_is_step(opened[3], former)
        assert_is_step(opened[4], fewer)


def test_series_are_refused_before_any_work(steps: list[Path], tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "step-7.safetensors", model(2, "float16"))
    last = write_safetensors(tmp_path / "step-8.safetensors", model(3))
    store, reports = tmp_path / "run.zarr", []
    with pytest.raises(StoreError, match=rf"{path}: differs from .*00001.* \(F16, not BF16\)"):
        safetensors_to_run(
            [last, path, *steps], store, progress=lambda *report: reports.append(report)
        )
    assert reports == []
    assert not store.exists()
    # The first one is the odd one out, but the message names the second: either may be wrong.
    with pytest.raises(StoreError, match=rf"{last}: differs from {path}"):
        safetensors_to_run([last, path], store)
    with pytest.warns(TensorChangeWarning):
        safetensors_to_run([last, path, *steps], store, allow_changed_tensors=True)
    verify_store(store)


@pytest.mark.parametrize("kind", ["zarr 3", "hdf5"])
def test_commands(kind: str, steps: list[Path], tmp_path: Path) -> None:
    command, store = "st2h5" if kind == "hdf5" else "st2zarr", tmp_path / TARGETS[kind][0]
    path = write_safetensors(tmp_path / "step-2.safetensors", model(2, "float32"))
    done(command, "--series", *steps, store)
    for args in ((path, store, "--append"), ("--series", *steps, path, tmp_path / "other.h5")):
        refused = run(command if "--append" in args else "st2h5", *args)
        assert refused.exit_code == 1
        assert refused.stderr.endswith("allow the change with --allow-changed-tensors\n")
    line = done(command, path, store, "--append", "--allow-changed-tensors", "--quiet")
    assert line == ""
    usage = run(command, path, store, "--allow-changed-tensors")
    assert usage.exit_code == 2
    assert "--allow-changed-tensors goes with --series and --append" in usage.stderr
