"""Steps that real process groups publish."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import bf16codecs
from bf16codecs.convert import verify_store
from lazy_imports import lazily
from published import bits
from training_jobs import run_jobs, skip_without_jobs

state = lazily("checkpoint_state")

KILLED = 128 + 9

Job = Callable[..., None]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a function that runs jobs in the test's folder."""
    skip_without_jobs()
    return partial(run_jobs, tmp_path)


def assert_is_published(path: Path, steps: list[int]) -> None:
    with bf16codecs.open_run(path) as run:
        assert run.steps == steps
        for step in steps:
            for name in state.SHAPES:
                assert bits(run[step][name][...]) == bits(state.numbers(name, step)), (step, name)
    verify_store(path)


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_all_processes_publish_their_shards(tmp_path: Path, job: Job, processes: int) -> None:
    job(f"publish_steps:{processes}:0:3")
    assert_is_published(tmp_path / "policy.zarr", [0, 1, 2, 3])
    (packs,) = (tmp_path / "policy.zarr" / "steps").glob("2-*")
    assert len(list(packs.iterdir())) == processes


def test_an_update_takes_the_parts_of_all_processes(tmp_path: Path, job: Job) -> None:
    job("publish_steps:4:0:3")
    tensors = {n: state.numbers(n, 1) for n in state.SHAPES if n != "head"}
    with bf16codecs.open_model(tmp_path / "policy.zarr@3") as model:
        model.update(tensors, have=1)
    assert all(bits(t) == bits(state.numbers(n, 3)) for n, t in tensors.items())


def test_a_job_of_fewer_processes_goes_on(tmp_path: Path, job: Job) -> None:
    job("publish_steps:4:0:1", "publish_steps:1:2:3")
    assert_is_published(tmp_path / "policy.zarr", list(range(4)))


def test_a_job_with_other_shards_is_refused(tmp_path: Path, job: Job) -> None:
    job("publish_steps:2:0:1")
    job("publish_steps:4:2:2", status=1)
    assert_is_published(tmp_path / "policy.zarr", [0, 1])
    job("publish_anew:4:2")
    assert_is_published(tmp_path / "policy.zarr", [2])


def test_early_steps_are_dropped(tmp_path: Path, job: Job) -> None:
    job("publish_keeping_few:2")
    # The last two are always kept, and so is the whole group of the first of them.
    assert_is_published(tmp_path / "policy.zarr", [3, 4, 5, 6])
    assert len(list((tmp_path / "policy.zarr" / "steps").iterdir())) == 4


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_fails_publishes_nothing(tmp_path: Path, job: Job, victim: int) -> None:
    job(f"publish_and_fail:2:{victim}")
    assert_is_published(tmp_path / "policy.zarr", [0])
    assert len(list((tmp_path / "policy.zarr" / "steps").iterdir())) == 1


@pytest.mark.parametrize("victim", [0, 1])
def test_an_interrupt_of_one_process_ends_all(tmp_path: Path, job: Job, victim: int) -> None:
    job(f"publish_and_interrupt:2:{victim}")
    assert_is_published(tmp_path / "policy.zarr", [0])
    assert len(list((tmp_path / "policy.zarr" / "steps").iterdir())) == 1


def test_processes_must_publish_the_same_step(tmp_path: Path, job: Job) -> None:
    job("publish_different_steps:2")
    assert_is_published(tmp_path / "policy.zarr", [0])
    assert [path.name for path in tmp_path.glob("*.zarr")] == ["policy.zarr"]


def test_an_invalid_argument_of_one_process_is_told_to_all(tmp_path: Path, job: Job) -> None:
    job("publish_with_invalid_arguments:2")
    assert_is_published(tmp_path / "policy.zarr", [0, 1])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_publishes_nothing(tmp_path: Path, job: Job, victim: int) -> None:
    job(f"publish_and_die:2:{victim}", status=KILLED)
    assert_is_published(tmp_path / "policy.zarr", [0])
    job("publish_steps:2:1:2")
    assert_is_published(tmp_path / "policy.zarr", [0, 1, 2])


def test_one_process_may_have_all_tensors(tmp_path: Path, job: Job) -> None:
    job("publish_from_one:2")
    assert_is_published(tmp_path / "policy.zarr", [0, 1])


def test_ties_that_one_process_has_found_lose_nothing(tmp_path: Path, job: Job) -> None:
    job("publish_ties_of_one:2")
    with bf16codecs.open_model(tmp_path / "policy.zarr@0") as model:
        found = {name: tensor[...].tolist() for name, tensor in model.items()}
        assert model["again"].is_copy_of(model["a"])
    a, b = [float(n) for n in range(8)], [10.0 + n for n in range(8)]
    assert found == {
        "a": a,
        "again": a,
        "b": [*a[:4], *b[4:]],
        "c": [*(10 + n for n in b[:4]), *b[4:]],
    }
