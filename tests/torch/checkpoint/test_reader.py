"""Checkpoints that one process reads: in parts, into odd memory, and refused ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.errors import CorruptDataError, StoreError
from checkpoint_calls import failure, load, numbers, save
from lazy_imports import lazily
from servers import serving

torch = lazily("torch")
dcp = lazily("torch.distributed.checkpoint")
checkpoint = lazily("bf16codecs.torch.checkpoint")

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_chunks_are_read_alone(tmp_path: Path) -> None:
    """A process that reads a quarter does not need the other chunks."""
    save({"w": numbers((64, 300))}, tmp_path / "c.zarr", chunk_size=16 * 300 * 4)
    for path in (tmp_path / "c.zarr" / "w").iterdir():
        if path.name not in ("zarr.json", "c.1.0"):
            path.unlink()
    reader = checkpoint.StoreReader(tmp_path / "c.zarr")
    metadata = reader.read_metadata()
    from torch.distributed.checkpoint import DefaultLoadPlanner, LoadPlan
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

    whole, part = torch.zeros(64, 300), (torch.Size([20, 0]), torch.Size([10, 300]))
    planner = DefaultLoadPlanner()
    planner.set_up_planner({"w": whole}, metadata, True)
    index = MetadataIndex("w", torch.Size([0, 0]))
    item = ReadItem(LoadItemType.TENSOR, index, part[0], index, part[0], part[1])
    reader.read_data(LoadPlan([item]), planner).wait()
    assert torch.equal(whole[20:30], numbers((64, 300))[20:30])
    assert not whole[:20].any()


def test_other_stores_are_read(tmp_path: Path) -> None:
    """Stores that no training job wrote have only tensors."""
    pytest.importorskip("safetensors.torch").save_file({"w": numbers()}, tmp_path / "w.safetensors")
    safetensors_to_zarr(tmp_path / "w.safetensors", tmp_path / "w.zarr")
    for path in (tmp_path / "w.zarr", tmp_path / "w.safetensors"):
        state = {"w": torch.zeros(64, 300)}
        load(state, path)
        assert torch.equal(state["w"], numbers())


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    save({"w": numbers()}, tmp_path / "c.zarr")
    error = failure(load, {"w": torch.zeros(64, 300, dtype=torch.bfloat16)}, tmp_path / "c.zarr")
    assert isinstance(error, TypeError)
    assert "cast=True" in str(error)
    state = {"w": torch.zeros(64, 300, dtype=torch.bfloat16)}
    load(state, tmp_path / "c.zarr", cast=True)
    assert torch.equal(state["w"], numbers().bfloat16())
    assert "Size mismatch" in str(failure(load, {"w": torch.zeros(3)}, tmp_path / "c.zarr"))
    missing = failure(load, {"v": torch.zeros(64, 300)}, tmp_path / "c.zarr")
    assert "Missing key" in str(missing)
    with pytest.raises(FileNotFoundError, match=r"typo\.zarr"):
        checkpoint.StoreReader(tmp_path / "typo.zarr")
    with pytest.raises(FileNotFoundError, match=r"typo\.zarr"):
        checkpoint.StoreReader(tmp_path).reset(tmp_path / "typo.zarr")


def test_a_checkpoint_of_torch(tmp_path: Path) -> None:
    dcp.save({"w": numbers()}, storage_writer=dcp.FileSystemWriter(tmp_path / "theirs"))
    with pytest.raises(StoreError, match="FileSystemReader reads it"):
        checkpoint.StoreReader(tmp_path / "theirs")


def test_a_damaged_checkpoint(tmp_path: Path) -> None:
    save({"w": numbers(), "epoch": 3}, tmp_path / "c.zarr")
    chunk = next((tmp_path / "c.zarr" / "w").glob("c.*"))
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    error = failure(load, {"w": torch.zeros(64, 300)}, tmp_path / "c.zarr")
    assert isinstance(error, ValueError)
    assert "'w'" in str(error)


def test_autograd_sees_that_a_tensor_was_loaded(tmp_path: Path) -> None:
    save({"w": numbers()}, tmp_path / "c.zarr")
    weight = torch.ones(64, 300, requires_grad=True)
    result = (weight * weight).sum()
    load({"w": weight.detach()}, tmp_path / "c.zarr")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_conjugated_targets(tmp_path: Path) -> None:
    values = torch.complex(numbers(), numbers(seed=1))
    save({"w": values}, tmp_path / "c.zarr")
    state = {"w": torch.zeros(64, 300, dtype=torch.complex64).conj()}
    load(state, tmp_path / "c.zarr")
    assert torch.equal(state["w"].resolve_conj(), values)


def test_strided_targets(tmp_path: Path) -> None:
    save({"w": numbers()}, tmp_path / "c.zarr")
    memory = torch.zeros(300, 128)
    state = {"w": memory.T[::2]}
    load(state, tmp_path / "c.zarr")
    assert torch.equal(memory.T[::2], numbers())
    assert not memory.T[1::2].any()


def test_a_reader_reads_the_current_checkpoint(tmp_path: Path) -> None:
    save({"w": numbers()}, tmp_path / "c.zarr")
    reader, state = checkpoint.StoreReader(tmp_path / "c.zarr"), {"w": torch.zeros(64, 300)}
    for seed in (1, 2):
        save({"w": numbers(seed=seed)}, tmp_path / "c.zarr", overwrite=True)
        dcp.load(state, storage_reader=reader)
        assert torch.equal(state["w"], numbers(seed=seed))


def test_objects_that_cannot_be_found(tmp_path: Path) -> None:
    """However often PyTorch asks, and even where parts may be missing."""
    from torch.distributed.checkpoint import DefaultLoadPlanner

    save({"w": numbers(), "epoch": 3}, tmp_path / "c.zarr")
    reader = checkpoint.StoreReader(tmp_path / "c.zarr")
    (tmp_path / "c.zarr" / "safetensors" / "checkpoint" / "c.0").unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match="it is missing") as caught:
            reader.read_metadata()
        assert str(caught.value).count("text of the checkpoint") == 1
    planner = DefaultLoadPlanner(allow_partial_load=True)
    state = {"w": torch.zeros(64, 300), "epoch": 0}
    with pytest.raises(dcp.api.CheckpointException, match="it is missing"):
        dcp.load(state, storage_reader=reader, planner=planner)


@pytest.mark.filterwarnings("ignore:Unclosed client session")
def test_damaged_text_is_reported_at_once(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    save({"w": numbers(), "epoch": 3}, tmp_path / "c.zarr")
    text = tmp_path / "c.zarr" / "safetensors" / "checkpoint" / "c.0"
    reader = checkpoint.StoreReader(tmp_path)
    with serving(tmp_path) as server:
        address = f"{server.url}/c.zarr"
        checkpoint.StoreReader(address)
        assert [path for _, path, _ in server.requests] == [
            "/c.zarr/zarr.json",
            "/c.zarr/safetensors/checkpoint/c.0",
        ]
        text.write_bytes(text.read_bytes()[:-3])
        for path in (str(tmp_path / "c.zarr"), address):
            with pytest.raises(CorruptDataError, match=rf"{path}: text of the checkpoint"):
                checkpoint.StoreReader(path)
            with pytest.raises(CorruptDataError, match=rf"{path}: text of the checkpoint"):
                reader.reset(path)


@pytest.mark.filterwarnings("ignore:Unclosed client session")
def test_addresses_that_may_have_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    save({"w": numbers()}, tmp_path / "run" / "c.zarr")
    state = {"w": torch.zeros(64, 300)}
    with serving(tmp_path) as server:
        reader = checkpoint.StoreReader(f"{server.url}/run")
        dcp.load(state, checkpoint_id=f"{server.url}/run/c.zarr", storage_reader=reader)
    assert torch.equal(state["w"], numbers())


def test_stores_that_are_no_checkpoints_are_reported_at_once(tmp_path: Path) -> None:
    """In `load`, PyTorch would report it in a hundred lines."""
    save({"w": numbers()}, tmp_path / "c.zarr")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(StoreError, match=r"notes\.txt"):
        checkpoint.StoreReader(tmp_path / "notes.txt")
    save({"w": numbers() + 1e-4}, tmp_path / "d.zarr", base=tmp_path / "c.zarr")
    (tmp_path / "c.zarr").rename(tmp_path / "moved.zarr")
    with pytest.raises(StoreError, match="its base cannot be opened"):
        checkpoint.StoreReader(tmp_path / "d.zarr")
    state = {"w": torch.zeros(64, 300)}
    load(state, tmp_path / "d.zarr", base=tmp_path / "moved.zarr")
    assert torch.equal(state["w"], numbers() + 1e-4)
    (tmp_path / "moved.zarr" / "zarr.json").write_text("{")
    with pytest.raises(StoreError, match=r"moved\.zarr"):
        checkpoint.StoreReader(tmp_path / "moved.zarr")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="nothing tells which files are open")
def test_nothing_is_open_after_loading(tmp_path: Path) -> None:
    save({"w": numbers()}, tmp_path / "c.zarr")
    reader = checkpoint.StoreReader(tmp_path / "c.zarr")
    dcp.load({"w": torch.zeros(64, 300)}, storage_reader=reader)
    names = (Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd"))
    assert not [name for name in names if name.is_symlink() and str(tmp_path) in os.readlink(name)]
