"""Checkpoints of one process: the form of stored tensors, and refused ones."""

from __future__ import annotations

import io
import os
import pickle
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bf16codecs import open_model
from bf16codecs.convert import rebase_store, verify_store
from checkpoint_calls import load, numbers, save
from lazy_imports import lazily

torch = lazily("torch")
dcp = lazily("torch.distributed.checkpoint")
checkpoint = lazily("bf16codecs.torch.checkpoint")

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
        raw = model.object_bytes("epoch")
    assert torch.load(io.BytesIO(raw)) == 3


def test_rewriting_keeps_the_objects(tmp_path: Path) -> None:
    """Rewriting onto another base keeps a checkpoint a checkpoint."""
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
    assert _levels(tmp_path / "auto.zarr") == {"weight": "fast", "moments": "best"}
    with open_model(tmp_path / "auto.zarr") as model:
        assert all(torch.equal(model[name].torch(), state[name]) for name in state)
    assert verify_store(tmp_path / "auto.zarr").has_checksums


def test_codecs(tmp_path: Path) -> None:
    for options in ({"codec": "huffman"}, {"codec": "zstd", "level": 9}, {"level": "best"}):
        saved = {"w": numbers(), "i": torch.arange(9000)}
        save(saved, tmp_path / "c.zarr", overwrite=True, **options)
        state = {"w": torch.zeros(64, 300), "i": torch.zeros(9000, dtype=torch.int64)}
        load(state, tmp_path / "c.zarr")
        assert torch.equal(state["w"], numbers()), options
        assert torch.equal(state["i"], torch.arange(9000)), options


def test_odd_tensors(tmp_path: Path) -> None:
    """Transposed, conjugated, of one item of a larger one, of many dimensions, and of no items."""
    values = torch.complex(numbers(), numbers(seed=1))
    state = {
        "transposed": numbers().T,
        "conjugated": values.conj(),
        "negated": values.conj().imag,
        "slice": numbers()[3:40:5, ::7],
        "one": numbers()[:1, ::300],
        "two": numbers((1 << 15, 2))[:, ::2],
        "equal": numbers((1 << 15, 2))[:, ::2],
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
    writer = checkpoint.StoreWriter(tmp_path / "unused.zarr")
    for step in (1, 2):
        path = tmp_path / "run" / f"step-{step}"
        dcp.save({"w": numbers(seed=step)}, checkpoint_id=path, storage_writer=writer)
    assert sorted(os.listdir(tmp_path)) == ["run"]
    state, reader = {"w": torch.zeros(64, 300)}, checkpoint.StoreReader(tmp_path)
    dcp.load(state, checkpoint_id=tmp_path / "run" / "step-2", storage_reader=reader)
    assert torch.equal(state["w"], numbers(seed=2))


def test_the_level_does_not_depend_on_threads(tmp_path: Path) -> None:
    """The first chunk determines it, even if another one is encoded before it."""
    part = numbers((256, 256)) * numbers((256, 1), 1) * numbers((1, 256), 2)
    state = {"w": torch.cat([numbers((256, 256)), part**2, part**2])}
    contents = set()
    for i in range(6):
        path = tmp_path / f"{i}.zarr"
        save(state, path, level="auto", chunk_size=1 << 16, threads=1 + i)
        chunks = sorted((path / "w").glob("c.*"))
        contents.add(b"".join(chunk.read_bytes() for chunk in chunks))
    assert len(contents) == 1


def test_rewriting_keeps_levels(tmp_path: Path) -> None:
    part = (numbers((256, 256)) * numbers((256, 1), 1) * numbers((1, 256), 2)) ** 2
    state = {"a": numbers((256, 256)), "b": part}
    save(state, tmp_path / "step-1.zarr", level="auto")
    save(state, tmp_path / "step-2.zarr", level="auto", base="previous")
    before = _levels(tmp_path / "step-2.zarr")
    rebase_store(tmp_path / "step-2.zarr")
    assert _levels(tmp_path / "step-2.zarr") == before
    rebase_store(tmp_path / "step-1.zarr", onto=tmp_path / "step-2.zarr")
    rebase_store(tmp_path / "step-1.zarr")
    assert _levels(tmp_path / "step-1.zarr") == {"a": "fast", "b": "best"}


def _levels(path: Path) -> dict[str, str]:
    with open_model(path) as model:
        return {row["name"]: row["level"] for row in model.info().to_json()["tensors"]}


def test_safetensors_as_base(tmp_path: Path) -> None:
    pytest.importorskip("safetensors.torch").save_file({"w": numbers()}, tmp_path / "w.safetensors")
    save({"w": numbers().bfloat16()}, tmp_path / "c.zarr", base=tmp_path / "w.safetensors")
    assert attributes(tmp_path / "c.zarr")["base"]["path"] == "w.safetensors"
    state = {"w": torch.zeros(64, 300, dtype=torch.bfloat16)}
    load(state, tmp_path / "c.zarr")
    assert torch.equal(state["w"], numbers().bfloat16())


def test_arguments(tmp_path: Path) -> None:
    for options, kind, message in (
        ({"codec": "none"}, ValueError, "codec must be arithmetic, huffman, zstd, not 'none'"),
        ({"base": "typo.zarr"}, FileNotFoundError, "No such model to be the base: 'typo.zarr'"),
        ({"codec": "gzip"}, ValueError, "codec must be"),
        ({"level": "fastest"}, ValueError, "level must be"),
        ({"level": "bst"}, ValueError, "level must be .*best or auto, not 'bst'"),
        ({"threads": 0}, ValueError, "threads must be positive"),
        ({"keep_last": 0}, ValueError, "keep_last must be positive"),
        ({"keep_last": 1.5}, TypeError, "keep_last must be an integer"),
        ({"keep_every": 10}, ValueError, "keep_every requires keep_last"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be positive"),
        ({"base": ""}, ValueError, "base is empty"),
        ({"base": "auto:."}, ValueError, "name the base"),
    ):
        with pytest.raises(kind, match=message):
            checkpoint.StoreWriter(tmp_path / "c.zarr", **options)


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on local disks, or in object stores"):
        checkpoint.StoreWriter("https://host/c.zarr")
    with pytest.raises(ValueError, match="is empty"):
        checkpoint.StoreWriter("")
    for name, kind in (("c.h5", "an HDF5 file"), ("c.tar", "a file of another kind")):
        with pytest.raises(ValueError, match=f"by its name {kind}"):
            checkpoint.StoreWriter(tmp_path / name)
    assert not checkpoint.StoreWriter.validate_checkpoint_id("https://host/c.zarr")
    assert checkpoint.StoreWriter.validate_checkpoint_id("s3://bucket/c.zarr")
    writer = checkpoint.StoreWriter(tmp_path / "c.zarr")
    with pytest.raises(ValueError, match="use_collectives"):
        writer.set_up_storage_writer(True, rank=0, use_collectives=False)


def test_a_writer_is_pickled_without_what_it_is_doing(tmp_path: Path) -> None:
    """`async_save` may send it to another process."""
    writer = pickle.loads(pickle.dumps(checkpoint.StoreWriter(tmp_path / "c.zarr", level="best")))
    dcp.save({"w": numbers()}, storage_writer=writer)
    reader = pickle.loads(pickle.dumps(checkpoint.StoreReader(tmp_path / "c.zarr")))
    dcp.load({"w": torch.zeros(64, 300)}, storage_reader=reader)


def test_plans_that_torch_leaves_out(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import DefaultSavePlanner

    try:
        planner = DefaultSavePlanner(enable_plan_caching=True)
    except TypeError:
        pytest.skip("this PyTorch always sends plans")
    writer = checkpoint.StoreWriter(tmp_path / "unused")
    for step in range(3):
        path, state = tmp_path / f"step-{step}.zarr", {"w": numbers(seed=step), "step": step}
        dcp.save(state, checkpoint_id=path, storage_writer=writer, planner=planner)
        found = {"w": torch.zeros(64, 300), "step": -1}
        load(found, path)
        assert torch.equal(found["w"], numbers(seed=step))
        assert found["step"] == step
    other = checkpoint.StoreWriter(tmp_path / "other.zarr")
    with pytest.raises(dcp.api.CheckpointException, match="one StoreWriter for all"):
        dcp.save({"w": numbers(), "step": 9}, storage_writer=other, planner=planner)


def test_new_tensors_that_torch_leaves_out(tmp_path: Path) -> None:
    """It knows them from another writer."""
    from torch.distributed.checkpoint import DefaultSavePlanner

    try:
        planner = DefaultSavePlanner(enable_plan_caching=True)
    except TypeError:
        pytest.skip("this PyTorch always sends plans")
    writers = [checkpoint.StoreWriter(tmp_path / "unused") for _ in range(2)]
    small, large = {"a": numbers()}, {"a": numbers(), "b": numbers(seed=1), "epoch": 3}
    for number, state in enumerate((small, large)):
        path = tmp_path / f"step-{number}.zarr"
        dcp.save(state, checkpoint_id=path, storage_writer=writers[number], planner=planner)
    path = tmp_path / "step-2.zarr"
    with pytest.raises(dcp.api.CheckpointException, match=r"b, epoch: .* one StoreWriter for all"):
        dcp.save(large, checkpoint_id=path, storage_writer=writers[0], planner=planner)
    assert sorted(os.listdir(tmp_path)) == ["step-0.zarr", "step-1.zarr"]


def test_a_dtype_that_torch_has_not_noticed(tmp_path: Path) -> None:
    """It compares the shapes of plans alone."""
    from torch.distributed.checkpoint import DefaultSavePlanner

    try:
        planner = DefaultSavePlanner(enable_plan_caching=True)
    except TypeError:
        pytest.skip("this PyTorch always sends plans")
    writer = checkpoint.StoreWriter(tmp_path / "unused")
    for step, dtype in enumerate((torch.float16, torch.bfloat16)):
        arguments = {"checkpoint_id": tmp_path / f"{step}.zarr", "storage_writer": writer}
        if step == 0:
            dcp.save({"w": numbers().to(dtype)}, planner=planner, **arguments)
        else:
            with pytest.raises(
                dcp.api.CheckpointException, match=r"is torch.bfloat16 of .* planned as"
            ):
                dcp.save({"w": numbers().to(dtype)}, planner=planner, **arguments)
    assert os.listdir(tmp_path) == ["0.zarr"]


def test_numbers_of_threads(tmp_path: Path) -> None:
    from bf16codecs import get_num_threads
    from bf16codecs.torch.checkpoint.threads import (
        Processors,
        count_sharing,
        thread_share,
        usable_processors,
    )

    here = usable_processors()
    assert count_sharing(here, [here, usable_processors()]) == 2
    bound = [Processors("m", frozenset({number})) for number in range(2)]
    processors = [*bound, bound[1], Processors("n", frozenset())]
    assert [count_sharing(p, processors) for p in processors] == [1, 2, 2, 1]
    assert thread_share(1) == get_num_threads()
    assert thread_share(1000) == 1
    before = get_num_threads()
    save({"w": numbers()}, tmp_path / "c.zarr", threads=1)
    assert get_num_threads() == before


def test_an_old_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__version__", "2.5.1+cpu")
    monkeypatch.delitem(sys.modules, "bf16codecs.torch.checkpoint", raising=False)
    with pytest.raises(ImportError, match=r"needs PyTorch 2\.6 or newer, and this is 2\.5\.1\+cpu"):
        import_module("bf16codecs.torch.checkpoint")
