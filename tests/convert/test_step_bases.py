"""Steps of runs as bases of stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3
from click.testing import CliRunner

from based_models import assert_holds, convert, write_steps
from bf16codecs.cli import main
from bf16codecs.convert import (
    append_to_run,
    hdf5_to_safetensors,
    rebase_store,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import BaseMismatchError
from bf16codecs.store import StoreError
from run_stores import TARGETS, make_run
from tiers import by_tier

runs = pytest.mark.parametrize("run_kind", TARGETS)


@pytest.fixture
def steps(tmp_path: Path, demo_model: Path) -> dict[int, Path]:
    return write_steps(tmp_path, demo_model)


@runs
def test_there_and_back(run_kind: str, steps: dict[int, Path], tmp_path: Path) -> None:
    run = make_run(run_kind, [steps[300], steps[399]], tmp_path)
    one = "zarr3" if run_kind in ("zip", "hdf5") else "hdf5"
    for kind in by_tier([one], ["zarr3", "hdf5"]):
        store = convert(kind, steps[400], tmp_path / "m", base=f"{run}@399")
        assert_holds(store, steps[400])
        shown = CliRunner().invoke(main, ["info", str(store)]).stdout.splitlines()
        assert f"base: {run.name}@399" in shown
        assert f"base BLAKE3: {blake3(steps[399].read_bytes()).hexdigest()}" in shown
        summary = rebase_store(store, f"{run}@300")
        assert summary.base == f"base {run.name}@300: 2 of 2 tensors as differences"
        assert_holds(store, steps[400])
        rebase_store(store)
        moved = run.rename(tmp_path / "moved")
        assert_holds(store, steps[400])
        moved.rename(run)


@runs
def test_steps_are_distinguished(run_kind: str, steps: dict[int, Path], tmp_path: Path) -> None:
    run = make_run(run_kind, [steps[300], steps[399]], tmp_path)
    store = convert("zarr3", steps[400], tmp_path / "m", base=f"{run}@399")
    assert_holds(store, steps[400], base=steps[399])
    with pytest.raises(BaseMismatchError, match=rf"{run.name}@300 is not its base: .* BLAKE3"):
        assert_holds(store, steps[400], base=f"{run}@300")
    with pytest.raises(StoreError, match=f"its base cannot be opened: .*{run.name}: a run, with"):
        assert_holds(store, steps[400], base=run)
    with pytest.raises(StoreError, match=r"steps 300, 399: name one of them, as in .*@399$"):
        convert("zarr3", steps[400], tmp_path / "x", base=run)
    with pytest.raises(ValueError, match="a run has no base: leave out base"):
        verify_store(run, base=store)
    restore = hdf5_to_safetensors if run_kind == "hdf5" else zarr_to_safetensors
    with pytest.raises(
        StoreError, match=r"@399 \(step=\), or restore all of them with run_to_safetensors"
    ):
        restore(run, tmp_path / "x")
    if run_kind != "zip":  # which is finished
        append_to_run(steps[400], run, as_hdf5=run_kind == "hdf5")
        assert_holds(store, steps[400])


@runs
def test_the_last_step_is_tried(run_kind: str, steps: dict[int, Path], tmp_path: Path) -> None:
    """By auto:, beside other models."""
    bases = tmp_path / "bases"
    bases.mkdir()
    run = make_run(run_kind, [steps[300], steps[399]], bases)
    convert("zarr3", steps[300], bases / "step300")
    store = tmp_path / "m.zarr"
    said = safetensors_to_zarr(steps[400], store, base=f"auto:{bases}").base
    assert said.startswith(f"base bases/{run.name}@399: 2 of 2 tensors as differences; by a sample")
    assert f"as a difference to {run.name}@399 " in said
    assert "step300.zarr " in said
    assert "could not be read" not in said
    assert_holds(store, steps[400])
