"""Checkpoints that fail: errors are reported, and nothing is left or lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bf16codecs.errors import BaseMismatchError, StoreError
from checkpoint_calls import failure, load, numbers, save
from lazy_imports import lazily
from waiting import wait_until

torch = lazily("torch")
dcp = lazily("torch.distributed.checkpoint")
checkpoint = lazily("bf16codecs.torch.checkpoint")

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_existing_targets(tmp_path: Path) -> None:
    path = tmp_path / "c.zarr"
    save({"w": numbers()}, path)
    error = failure(save, {"w": numbers(seed=1)}, path)
    assert isinstance(error, FileExistsError)
    assert "overwrite=True" in str(error)
    save({"w": numbers(seed=1)}, path, overwrite=True)
    state = {"w": torch.zeros(64, 300)}
    load(state, path)
    assert torch.equal(state["w"], numbers(seed=1))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("x")
    assert isinstance(failure(save, {"w": numbers()}, tmp_path / "notes"), FileExistsError)
    assert sorted(os.listdir(tmp_path)) == ["c.zarr", "notes"]


def test_two_jobs_of_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one to finish wins, and the other gets an error."""
    writer = checkpoint.StoreWriter
    path, finish = tmp_path / "c.zarr", writer.finish

    def finish_later(self: Any, **arguments: Any) -> None:
        monkeypatch.setattr(writer, "finish", finish)
        save({"w": numbers(seed=1)}, path)
        finish(self, **arguments)

    monkeypatch.setattr(writer, "finish", finish_later)
    assert isinstance(failure(save, {"w": numbers()}, path), FileExistsError)
    state = {"w": torch.zeros(64, 300)}
    load(state, path)
    assert torch.equal(state["w"], numbers(seed=1))
    assert os.listdir(tmp_path) == ["c.zarr"]


@pytest.mark.parametrize("size", [20, 200_000])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    from bf16codecs.store.zarr import sinks as zarr_sinks

    def full(path: str, data: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zarr_sinks, "_write_file", full)
    error = failure(save, {"w": numbers((size,)), "epoch": 3}, tmp_path / "c.zarr")
    assert isinstance(error, OSError)
    assert "free some space" in str(error)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_a_first_chunk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """No thread waits for its level."""
    from bf16codecs.torch.checkpoint.shards import Shard

    values = Shard.values

    def fail(self: Any, array: Any, axes: Any) -> Any:
        if axes[0].start == 0:
            raise MemoryError
        return values(self, array, axes)

    monkeypatch.setattr(Shard, "values", fail)
    options = {"chunk_size": 4096, "threads": threads, "level": "auto"}
    error = failure(save, {"w": numbers()}, tmp_path / "c.zarr", **options)
    assert isinstance(error, MemoryError)
    assert os.listdir(tmp_path) == []


def test_a_base_of_another_model(tmp_path: Path) -> None:
    save({"other": numbers()}, tmp_path / "other.zarr")
    error = failure(save, {"w": numbers()}, tmp_path / "c.zarr", base=tmp_path / "other.zarr")
    assert isinstance(error, StoreError)
    assert "no tensor in common with its base" in str(error)
    save({"rng": torch.get_rng_state()}, tmp_path / "third.zarr")
    state = {"w": numbers(), "rng": torch.get_rng_state()}
    error = failure(save, state, tmp_path / "c.zarr", base=tmp_path / "third.zarr")
    assert "no tensor in common with its base" in str(error)
    with pytest.raises(FileNotFoundError, match="No such model to be the base"):
        checkpoint.StoreWriter(tmp_path / "c.zarr", base=tmp_path / "missing")
    assert sorted(os.listdir(tmp_path)) == ["other.zarr", "third.zarr"]


def test_a_base_that_is_replaced(tmp_path: Path) -> None:
    """Differences beside it are rewritten; elsewhere, the checksums of blocks reveal the change."""
    first, folder = tmp_path / "a.zarr", tmp_path / "elsewhere"
    save({"w": numbers()}, first)
    for path in (tmp_path / "b.zarr", folder / "c.zarr"):
        save({"w": numbers() + 1e-4}, path, base=first)
    save({"w": numbers(seed=1)}, first, overwrite=True)
    state = {"w": torch.zeros(64, 300)}
    load(state, tmp_path / "b.zarr")
    assert torch.equal(state["w"], numbers() + 1e-4)
    assert isinstance(failure(load, state, folder / "c.zarr"), BaseMismatchError)


def test_a_base_that_nothing_can_do_without(tmp_path: Path) -> None:
    first, second = tmp_path / "a.zarr", tmp_path / "b.zarr"
    save({"w": numbers()}, first)
    save({"w": numbers() + 1e-4}, second, base=first)
    chunk = next((second / "w").glob("c.*"))
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-1])
    failure(save, {"w": numbers(seed=1)}, first, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b.zarr"]
    chunk.write_bytes(content)
    state = {"w": torch.zeros(64, 300)}
    load(state, second)
    assert torch.equal(state["w"], numbers() + 1e-4)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    for state in ({"w\ud800": numbers()}, {"w": numbers(), "o\udfff": 3}):
        error = failure(save, state, tmp_path / "c.zarr")
        assert isinstance(error, ValueError)
        assert "an unpaired surrogate" in str(error)
    assert os.listdir(tmp_path) == []


def test_objects_that_get_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On their way to the coordinator."""
    finish = checkpoint.StoreWriter.finish

    def finish_without(self: Any, *arguments: Any, **options: Any) -> None:
        (path,) = tmp_path.glob(".*/*/safetensors/scratch/*")
        path.write_bytes(path.read_bytes()[:-1])
        finish(self, *arguments, **options)

    monkeypatch.setattr(checkpoint.StoreWriter, "finish", finish_without)
    error = failure(save, {"w": numbers(), "a": 1, "b": 2}, tmp_path / "c.zarr")
    assert isinstance(error, StoreError)
    assert "bytes of the objects a, b are missing" in str(error)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_a_forked_process_removes_nothing(run_python: Any, tmp_path: Path) -> None:
    code = """if True:
        import os, sys, torch
        from torch.distributed.checkpoint import DefaultSavePlanner
        from bf16codecs.torch.checkpoint import StoreWriter
        writer, planner = StoreWriter("c.zarr"), DefaultSavePlanner()
        planner.set_up_planner({"w": torch.zeros(100, 100)}, None, True)
        plans, _ = planner.create_global_plan([planner.create_local_plan()])
        plans = writer.prepare_global_plan(plans)
        if os.fork() == 0:
            sys.exit()
        os.wait()
        writer.write_data(plans[0], planner)
        print(len(os.listdir(".")))
    """
    assert run_python(code).stdout == "1\n"
    assert os.listdir(tmp_path) == []


def test_tensors_that_cannot_be_stored(tmp_path: Path) -> None:
    for tensor, kind, what in (
        (torch.zeros(3, dtype=torch.complex128), ValueError, "complex128"),
        (torch.zeros(3, 3).to_sparse(), ValueError, "sparse"),
        (
            torch.zeros((1,) * 33),
            ValueError,
            "has 33 axes, and arrays of torch.float32 have 0 to 32",
        ),
    ):
        error = failure(save, {"odd": tensor, "w": numbers()}, tmp_path / "c.zarr")
        assert type(error) is kind
        assert what in str(error)
    error = failure(save, {"__metadata__": numbers()}, tmp_path / "c.zarr")
    assert "__metadata__" in str(error)
    assert os.listdir(tmp_path) == []


def test_an_unfinished_checkpoint_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next checkpoint, and by the end of the writer."""
    from torch.distributed.checkpoint import DefaultSavePlanner

    def begin(writer: Any) -> None:
        planner = DefaultSavePlanner()
        planner.set_up_planner({"w": numbers()}, None, True)
        plans, _ = planner.create_global_plan([planner.create_local_plan()])
        (plan,) = writer.prepare_global_plan(plans)
        writer.write_data(plan, planner)
        assert len(os.listdir(tmp_path)) == 1

    writer = checkpoint.StoreWriter(tmp_path / "c.zarr")
    begin(writer)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 0)  # as in a process that was forked
        writer.close()
    (left,) = tmp_path.iterdir()
    shutil.rmtree(left)
    begin(writer)
    writer.close()
    assert os.listdir(tmp_path) == []
    begin(writer)
    del writer
    assert wait_until(lambda: not os.listdir(tmp_path)), "another thread does it"
