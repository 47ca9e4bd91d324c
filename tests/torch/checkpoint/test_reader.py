"""Checkpoints that are read by one process: parts of them, into odd memory, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.errors import StoreError

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")


from bf16codecs.torch.checkpoint import StoreReader  # noqa: E402
from checkpoint_calls import failure, load, numbers, save  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_chunks_are_read_alone(tmp_path: Path) -> None:
    """Of a process that wants a quarter, other chunks may be gone."""
    save({"w": numbers((64, 300))}, tmp_path / "c.zarr", chunk_size=16 * 300 * 4)
    for path in (tmp_path / "c.zarr" / "w").iterdir():
        if path.name not in ("zarr.json", "c.1.0"):
            path.unlink()
    reader = StoreReader(tmp_path / "c.zarr")
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
    """What no training job wrote: its tensors are all there is."""
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
        StoreReader(tmp_path / "typo.zarr")
    with pytest.raises(FileNotFoundError, match=r"typo\.zarr"):
        StoreReader(tmp_path).reset(tmp_path / "typo.zarr")


def test_a_checkpoint_of_torch(tmp_path: Path) -> None:
    dcp.save({"w": numbers()}, storage_writer=dcp.FileSystemWriter(tmp_path / "theirs"))
    with pytest.raises(StoreError, match="FileSystemReader reads it"):
        StoreReader(tmp_path / "theirs")


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
