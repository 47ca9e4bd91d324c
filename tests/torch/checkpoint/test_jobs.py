"""Checkpoints of real process groups, on several processes of this machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bf16codecs
from bf16codecs.convert import verify_store, zarr_to_safetensors
from lazy_imports import lazily
from tiers import by_tier
from training_jobs import run_jobs

torch = lazily("torch")
state = lazily("checkpoint_state")

pytestmark = pytest.mark.usefixtures("needs_jobs")

KILLED = 128 + 9

Job = Callable[..., None]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a function that runs jobs in the test's folder."""
    return partial(run_jobs, tmp_path)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "rendezvous" not in path.name)


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    parts = [tensor.reshape(-1).view(torch.uint8) for tensor in (found, expected)]
    return found.dtype == expected.dtype and torch.equal(*parts)


@pytest.mark.parametrize(
    "processes", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 4))]
)
def test_saved_by_some_and_loaded_by_others(tmp_path: Path, job: Job, processes: int) -> None:
    """In the quick tier, two processes save, and one loads."""
    job(f"save:{processes}", *(f"load:{n}" for n in by_tier({1}, {1, 2, 3} - {processes})))
    assert left_in(tmp_path) == ["c.zarr"]
    with bf16codecs.open_model(tmp_path / "c.zarr") as model:
        assert set(model.keys()) == {f"model.{name}" for name in state.SHAPES}
        for name in state.SHAPES:
            tensor = model[f"model.{name}"].torch()
            assert tensor.shape == state.SHAPES[name][0], name
            assert same_bits(tensor, state.numbers(name)), name


@pytest.mark.slow
def test_as_a_store(tmp_path: Path, job: Job) -> None:
    """Every function for model stores accepts a checkpoint."""
    job("save:4")
    store = tmp_path / "c.zarr"
    assert verify_store(store).has_checksums
    zarr_to_safetensors(store, tmp_path / "c.safetensors")
    assert verify_store(store, tmp_path / "c.safetensors").tensors == len(state.SHAPES)
    loaded = pytest.importorskip("safetensors.torch").load_file(tmp_path / "c.safetensors")
    assert all(same_bits(loaded[f"model.{name}"], state.numbers(name)) for name in state.SHAPES)
    paths = {name: path for path, name in _paths(store).items()}
    assert len(paths) == len(set(paths))


def stored_tensors(store: Path) -> dict[str, Any]:
    """Return the array that each tensor is stored in, or is the rounding of."""
    import zarr

    return dict(zarr.open_group(store, mode="r").attrs["bf16codecs"]["tensors"])


def _paths(store: Path) -> dict[str, str]:
    tensors = stored_tensors(store)
    # Stored once: the rounding of a master, tensors tied to it, counters of one step.
    assert tensors["model.embed"] == {"rounded": tensors["model.master"]}
    assert tensors["model.head"] == tensors["model.embed"]
    assert isinstance(tensors["model.almost"], str)
    assert tensors["model.whole_tied"] == tensors["model.whole_master"]
    assert tensors["model.whole_copy"] == {"rounded": tensors["model.whole_master"]}
    assert tensors["model.step_a"] == tensors["model.step_b"]
    return {path: name for name, path in tensors.items() if isinstance(path, str)}


@pytest.mark.slow
def test_chunks_that_several_processes_have_parts_of(tmp_path: Path, job: Job) -> None:
    job("save_shared_chunks:4", "load:3")
    assert left_in(tmp_path) == ["c.zarr"]
    verify_store(tmp_path / "c.zarr")


@pytest.mark.slow
def test_differences(tmp_path: Path, job: Job) -> None:
    job("save_differences:4", *(f"load:{3 - step}:step-{step}.zarr:{step}" for step in range(3)))
    sizes = []
    for step in range(3):
        with bf16codecs.open_model(tmp_path / f"step-{step}.zarr") as model:
            sizes.append(model.info().to_json()["stored_nbytes"])
            for name in state.SHAPES:
                assert same_bits(model[f"model.{name}"].torch(), state.numbers(name, step)), name
    assert max(sizes[1:]) < 0.8 * sizes[0]


@pytest.mark.slow
def test_differences_to_what_other_processes_have_saved(tmp_path: Path, job: Job) -> None:
    processes = (4, 3, 1, 2)
    job(*(f"save_based:{count}:{step}" for step, count in enumerate(processes)))
    for step in range(len(processes)):
        with bf16codecs.open_model(tmp_path / f"step-{step}.zarr") as model:
            assert (model.info().to_json()["base"] is None) == (step == 0)
            for name in state.SHAPES:
                assert same_bits(model[f"model.{name}"].torch(), state.numbers(name, step)), name


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_that_see_other_parts_of_the_whole(
    tmp_path: Path, job: Job, processes: int
) -> None:
    """Tensors that are equal, or roundings, in all processes are stored once."""
    job(f"save_disagreeing:{processes}", f"load_disagreeing:{processes}")
    with bf16codecs.open_model(tmp_path / "c.zarr") as model:
        assert all(model[name][()].size for name in model)
    tensors = stored_tensors(tmp_path / "c.zarr")
    assert tensors["tied"] == tensors["master"] == "master"
    assert tensors["rounded"] == {"rounded": "master"}
    assert tensors["almost"] == "almost"
    assert tensors["a"] == tensors["b"] == {"rounded": tensors["whole"]}


@pytest.mark.slow
def test_what_other_processes_have_tells_nothing(job: Job) -> None:
    """Another process's copy of a tensor is not compared."""
    job("save_placeholders:2", "count_processes:2")


@pytest.mark.slow
def test_asynchronous(job: Job) -> None:
    """Changes by concurrent training are not in the checkpoint."""
    job("save_asynchronously:2", "load:3")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["0", "2"])
def test_a_process_that_dies(tmp_path: Path, job: Job, victim: str) -> None:
    """There is no checkpoint, and the next one removes the leftovers."""
    job("save:3:before.zarr", f"die:3:{victim}", status=KILLED)
    assert not (tmp_path / "c.zarr").exists()
    job("load:2:before.zarr", "save:2", "load:1")
    assert left_in(tmp_path) == ["before.zarr", "c.zarr"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["0", "1"])
def test_a_process_that_fails(tmp_path: Path, job: Job, victim: str) -> None:
    """The same writer can save again."""
    job(f"fail:2:{victim}", "load:1")
    assert left_in(tmp_path) == ["c.zarr"]


@pytest.mark.slow
def test_a_process_that_never_arrives(tmp_path: Path, job: Job) -> None:
    job("never_arrive:2")
    assert left_in(tmp_path) == []
