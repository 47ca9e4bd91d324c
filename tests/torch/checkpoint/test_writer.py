"""Checkpoints of one process: what is stored how, and what is refused."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from bf16codecs import open_model
from bf16codecs.convert import rebase_store, verify_store
from bf16codecs.errors import BaseMismatchError, StoreError
from bf16codecs.store.objects import read_checkpoint, read_object

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

from bf16codecs.torch.checkpoint import StoreReader, StoreWriter  # noqa: E402
from checkpoint_calls import failure, load, numbers, save  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def attributes(path: Path) -> dict[str, Any]:
    import zarr

    return dict(zarr.open_group(path, mode="r").attrs["bf16codecs"])


def test_objects_are_kept_exactly(tmp_path: Path) -> None:
    state = {
        "weight": numbers(),
        "text": "hällo",
        "nested": {"a.b": [1, {"c": (2, None)}], "empty": {}, "x": 1.5},
        "random": torch.get_rng_state(),
        "bytes": bytes(range(256)) * 1000,
    }
    save(state, tmp_path / "c.zarr")
    empty = {
        "weight": torch.zeros(64, 300),
        "text": "",
        "nested": {"a.b": [0, {"c": ()}], "empty": {}, "x": 0.0},
        "random": torch.zeros_like(state["random"]),
        "bytes": b"",
    }
    load(empty, tmp_path / "c.zarr")
    assert torch.equal(empty.pop("weight"), state.pop("weight"))
    assert torch.equal(empty.pop("random"), state.pop("random"))
    assert empty == state


def test_objects_can_be_read_without_loading_them(tmp_path: Path) -> None:
    save({"weight": numbers(), "epoch": 3}, tmp_path / "c.zarr")
    with open_model(tmp_path / "c.zarr") as model:
        assert model.keys() == ["weight"]
        opened = model._home.opened
        checkpoint = read_checkpoint(opened)
        raw = read_object(opened, checkpoint.objects["epoch"])
    assert torch.load(io.BytesIO(raw)) == 3


def test_rewriting_keeps_the_objects(tmp_path: Path) -> None:
    """As another base does it: a checkpoint stays one."""
    first, second = tmp_path / "step-1.zarr", tmp_path / "step-2.zarr"
    save({"model": {"w": numbers()}, "epoch": 1}, first)
    save({"model": {"w": numbers() + 1e-4}, "epoch": 2}, second, base=first)
    rebase_store(second)
    first.rename(tmp_path / "elsewhere.zarr")
    state = {"model": {"w": torch.zeros(64, 300)}, "epoch": 0}
    load(state, second)
    assert torch.equal(state["model"]["w"], numbers() + 1e-4)
    assert state["epoch"] == 2
    assert "base" not in attributes(second)


def test_what_another_tensor_determines_is_stored_once(tmp_path: Path) -> None:
    master = numbers()
    state = {
        "master": master,
        "model": {"w": master.bfloat16(), "tied": master.bfloat16()},
        "equal": master.clone(),
        "steps": [torch.tensor(5.0) for _ in range(20)],
        "other": torch.tensor(6.0),
    }
    save(state, tmp_path / "c.zarr")
    tensors = attributes(tmp_path / "c.zarr")["tensors"]
    assert tensors["master"] == tensors["equal"]
    assert tensors["model.w"] == tensors["model.tied"] == {"rounded": tensors["master"]}
    assert len({tensors[f"steps.{i}"] for i in range(20)}) == 1
    assert tensors["other"] != tensors["steps.0"]
    verify_store(tmp_path / "c.zarr")
    with open_model(tmp_path / "c.zarr") as model:
        assert torch.equal(model["model.tied"].torch(), state["model"]["tied"])
        assert model["steps.19"][()] == 5


def test_level_auto_is_best_where_it_pays(tmp_path: Path) -> None:
    scales = numbers((256, 1), 1) * numbers((1, 256), 2)
    moments = (numbers((256, 256)) * scales) ** 2
    state = {"weight": numbers((256, 256)).bfloat16(), "moments": moments}
    save(state, tmp_path / "auto.zarr", level="auto")
    save(state, tmp_path / "fast.zarr")
    with open_model(tmp_path / "auto.zarr") as model:
        opened = model._home.opened
        levels = {name: opened.storage(opened.info.paths[name]).level for name in state}
        assert levels == {"weight": "fast", "moments": "best"}
        assert all(torch.equal(model[name].torch(), state[name]) for name in state)
    assert verify_store(tmp_path / "auto.zarr").has_checksums


@pytest.mark.parametrize(
    "options",
    [{"codec": "huffman"}, {"codec": "zstd", "level": 9}, {"codec": "split"}, {"level": "best"}],
)
def test_codecs(tmp_path: Path, options: dict[str, Any]) -> None:
    save({"w": numbers(), "i": torch.arange(9000)}, tmp_path / "c.zarr", **options)
    state = {"w": torch.zeros(64, 300), "i": torch.zeros(9000, dtype=torch.int64)}
    load(state, tmp_path / "c.zarr")
    assert torch.equal(state["w"], numbers())
    assert torch.equal(state["i"], torch.arange(9000))


def test_odd_tensors(tmp_path: Path) -> None:
    """Transposed, conjugated, of one item of a larger one, of many dimensions, and of no items."""
    values = torch.complex(numbers(), numbers(seed=1))
    state = {
        "transposed": numbers().T,
        "conjugated": values.conj(),
        "negated": values.conj().imag,
        "slice": numbers()[3:40:5, ::7],
        "deep": numbers((2,) * 12).reshape((2,) * 12),
        "none": torch.empty(3, 0, 4),
        "name with / and ä.": numbers((3,)),
        "": numbers((4,)),
    }
    save(state, tmp_path / "c.zarr")
    empty = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in state.items()}
    load(empty, tmp_path / "c.zarr")
    for name, tensor in state.items():
        assert torch.equal(empty[name], tensor.resolve_conj()), name


def test_the_checkpoint_id_is_the_path(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "unused.zarr")
    for step in (1, 2):
        path = tmp_path / "run" / f"step-{step}"
        dcp.save({"w": numbers(seed=step)}, checkpoint_id=path, storage_writer=writer)
    assert sorted(os.listdir(tmp_path)) == ["run"]
    state, reader = {"w": torch.zeros(64, 300)}, StoreReader(tmp_path)
    dcp.load(state, checkpoint_id=tmp_path / "run" / "step-2", storage_reader=reader)
    assert torch.equal(state["w"], numbers(seed=2))


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
    """The first one to finish wins, and the other is told."""
    from bf16codecs.torch.checkpoint.writer import StoreWriter as Writer

    path, finish = tmp_path / "c.zarr", Writer.finish

    def finish_later(self: Any, **arguments: Any) -> None:
        monkeypatch.setattr(Writer, "finish", finish)
        save({"w": numbers(seed=1)}, path)
        finish(self, **arguments)

    monkeypatch.setattr(Writer, "finish", finish_later)
    assert isinstance(failure(save, {"w": numbers()}, path), FileExistsError)
    state = {"w": torch.zeros(64, 300)}
    load(state, path)
    assert torch.equal(state["w"], numbers(seed=1))
    assert os.listdir(tmp_path) == ["c.zarr"]


@pytest.mark.parametrize("size", [20, 200_000])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    from bf16codecs.store import zarr_sinks

    def full(path: str, data: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zarr_sinks, "_write_file", full)
    error = failure(save, {"w": numbers((size,)), "epoch": 3}, tmp_path / "c.zarr")
    assert isinstance(error, OSError)
    assert "free some space" in str(error)
    assert os.listdir(tmp_path) == []


def test_a_base_of_another_model(tmp_path: Path) -> None:
    save({"other": numbers()}, tmp_path / "other.zarr")
    error = failure(save, {"w": numbers()}, tmp_path / "c.zarr", base=tmp_path / "other.zarr")
    assert isinstance(error, StoreError)
    assert "no tensor in common with its base" in str(error)
    missing = failure(save, {"w": numbers()}, tmp_path / "c.zarr", base=tmp_path / "missing")
    assert isinstance(missing, FileNotFoundError)
    assert os.listdir(tmp_path) == ["other.zarr"]


def test_a_base_that_is_replaced(tmp_path: Path) -> None:
    """Of the same size and header: its blocks tell."""
    first = tmp_path / "a.zarr"
    save({"w": numbers()}, first)
    save({"w": numbers() + 1e-4}, tmp_path / "b.zarr", base=first)
    save({"w": numbers(seed=1)}, first, overwrite=True)
    error = failure(load, {"w": torch.zeros(64, 300)}, tmp_path / "b.zarr")
    assert isinstance(error, BaseMismatchError)


def test_safetensors_as_base(tmp_path: Path) -> None:
    pytest.importorskip("safetensors.torch").save_file({"w": numbers()}, tmp_path / "w.safetensors")
    save({"w": numbers().bfloat16()}, tmp_path / "c.zarr", base=tmp_path / "w.safetensors")
    assert attributes(tmp_path / "c.zarr")["base"]["path"] == "w.safetensors"
    state = {"w": torch.zeros(64, 300, dtype=torch.bfloat16)}
    load(state, tmp_path / "c.zarr")
    assert torch.equal(state["w"], numbers().bfloat16())


def test_tensors_that_cannot_be_stored(tmp_path: Path) -> None:
    for tensor, what in (
        (torch.zeros(3, dtype=torch.complex128), "complex128"),
        (torch.zeros(3, 3).to_sparse(), "sparse"),
    ):
        error = failure(save, {"odd": tensor, "w": numbers()}, tmp_path / "c.zarr")
        assert isinstance(error, (ValueError, RuntimeError))
        assert what in str(error)
    error = failure(save, {"__metadata__": numbers()}, tmp_path / "c.zarr")
    assert "__metadata__" in str(error)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"codec": "none"}, ValueError, "checksums"),
        ({"codec": "gzip"}, ValueError, "codec must be"),
        ({"level": "fastest"}, ValueError, "level must be"),
        ({"keep_last": 0}, ValueError, "keep_last must be positive"),
        ({"keep_last": 1.5}, TypeError, "keep_last must be an integer"),
        ({"keep_every": 10}, ValueError, "say keep_last"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be positive"),
        ({"base": ""}, ValueError, "base is empty"),
    ],
)
def test_arguments(tmp_path: Path, options: dict[str, Any], kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        StoreWriter(tmp_path / "c.zarr", **options)


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be local"):
        StoreWriter("s3://bucket/c.zarr")
    with pytest.raises(ValueError, match="is empty"):
        StoreWriter("")
    error = failure(save, {"w": numbers()}, tmp_path / "c.h5")
    assert "by its name an HDF5 file" in str(error)
    assert not StoreWriter.validate_checkpoint_id("s3://bucket/c.zarr")
    writer = StoreWriter(tmp_path / "c.zarr")
    with pytest.raises(ValueError, match="use_collectives"):
        writer.set_up_storage_writer(True, rank=0, use_collectives=False)


def test_a_writer_is_pickled_without_what_it_is_doing(tmp_path: Path) -> None:
    """`async_save` may send it to another process."""
    writer = pickle.loads(pickle.dumps(StoreWriter(tmp_path / "c.zarr", level="best")))
    dcp.save({"w": numbers()}, storage_writer=writer)
    reader = pickle.loads(pickle.dumps(StoreReader(tmp_path / "c.zarr")))
    dcp.load({"w": torch.zeros(64, 300)}, storage_reader=reader)


def test_plans_that_torch_leaves_out(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import DefaultSavePlanner

    try:
        planner = DefaultSavePlanner(enable_plan_caching=True)
    except TypeError:
        pytest.skip("this PyTorch always sends plans")
    writer = StoreWriter(tmp_path / "unused")
    for step in range(3):
        path, state = tmp_path / f"step-{step}.zarr", {"w": numbers(seed=step), "step": step}
        dcp.save(state, checkpoint_id=path, storage_writer=writer, planner=planner)
        found = {"w": torch.zeros(64, 300), "step": -1}
        load(found, path)
        assert torch.equal(found["w"], numbers(seed=step))
        assert found["step"] == step
    other = StoreWriter(tmp_path / "other.zarr")
    with pytest.raises(CheckpointException, match="one StoreWriter for all"):
        dcp.save({"w": numbers(), "step": 9}, storage_writer=other, planner=planner)


def test_what_was_begun_is_undone(tmp_path: Path) -> None:
    """By the next checkpoint, and by the end of the writer."""
    from torch.distributed.checkpoint import DefaultSavePlanner

    def begin(writer: StoreWriter) -> None:
        planner = DefaultSavePlanner()
        planner.set_up_planner({"w": numbers()}, None, True)
        plans, _ = planner.create_global_plan([planner.create_local_plan()])
        (plan,) = writer.prepare_global_plan(plans)
        writer.write_data(plan, planner)
        assert len(os.listdir(tmp_path)) == 1

    writer = StoreWriter(tmp_path / "c.zarr")
    begin(writer)
    writer.close()
    assert os.listdir(tmp_path) == []
    begin(writer)
    del writer
    assert os.listdir(tmp_path) == []


def test_numbers_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bf16codecs import get_num_threads
    from bf16codecs.torch.checkpoint.threads import own_threads

    for text, count in (("1", 1), ("2", 2), ("1000", 1000), ("x", 1), ("", 1), ("0", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
        assert own_threads() == max(1, get_num_threads() // count)
    before = get_num_threads()
    save({"w": numbers()}, tmp_path / "c.zarr", threads=1)
    assert get_num_threads() == before


def test_an_old_pytorch(run_python: Any) -> None:
    code = "import torch; torch.__version__ = '2.5.1+cpu'; import bf16codecs.torch.checkpoint"
    done = run_python(code, check=False)
    assert "needs PyTorch 2.6 or newer, and this is 2.5.1+cpu" in done.stderr
