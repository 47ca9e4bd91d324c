"""The numbers of a run's steps are in its attributes and in an array: `verify` compares them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from bf16codecs.convert import append_to_run, verify_store
from bf16codecs.errors import BF16CodecsError
from lazy_models import weights, write_safetensors
from run_stores import TARGETS, make_run

kinds = pytest.mark.parametrize("kind", [kind for kind in TARGETS if kind != "zip"])


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[Path]:
    return [
        write_safetensors(tmp_path / f"step{number}.safetensors", {"a": weights((8, 8), seed=i)})
        for i, number in enumerate((7, 9, 2**62))
    ]


def _tree(store: Path) -> Any:
    return h5py.File(store, "a") if store.suffix == ".h5" else zarr.open_group(store, mode="a")


def _remove(store: Path) -> None:
    if store.suffix == ".h5":
        with h5py.File(store, "a") as file:
            del file["step"]
    else:
        shutil.rmtree(store / "step")


def _renumber(store: Path) -> None:
    _tree(store)["step"][:] = [7, 8, 2**62]


def _shorten(store: Path) -> None:
    _tree(store)["step"].resize((2,))


def _retype(store: Path) -> None:
    _remove(store)
    tree, numbers = _tree(store), np.array([7, 9, 10], "float64")
    if store.suffix == ".h5":
        tree["step"] = numbers
    else:
        tree.create_array("step", data=numbers)


@kinds
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_another_coordinate(tmp_path: Path, checkpoints: list[Path], kind: str) -> None:
    for damage in (_remove, _renumber, _shorten, _retype):
        folder = tmp_path / damage.__name__
        folder.mkdir()
        store = make_run(kind, checkpoints, folder)
        verify_store(store)
        damage(store)
        if store.is_dir() and damage in (_shorten, _retype):
            zarr.consolidate_metadata(store)
        with pytest.raises(BF16CodecsError, match="step"):
            verify_store(store)


@kinds
def test_a_step_that_is_being_appended(tmp_path: Path, checkpoints: list[Path], kind: str) -> None:
    """Its number is written before the attributes list the step."""
    store = make_run(kind, checkpoints[:2], tmp_path)
    tree = _tree(store)
    steps = tree["step"]
    steps.resize((3,))
    steps[2] = 11
    if store.suffix == ".h5":
        tree.close()
    assert verify_store(store).tensors == 2
    append_to_run(checkpoints[2], store, sync=False)
    assert verify_store(store).tensors == 3
