"""Real process groups for tests: forks the processes of jobs, each of which calls a function.

    python checkpoint_job.py

Each line of standard input is a list in JSON: a file for what the jobs print, the folder that they
run in, and jobs as SCENARIO:PROCESSES[:ARGUMENT...], which run one after the other. The first one
that fails ends them. The answer is a line with the largest exit status of its processes; death by
signal N is 128 + N. Importing PyTorch takes longer than most jobs, so this does it once for all.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # takes a second, and each job's device mesh would import it
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from bf16codecs.torch import publish
from bf16codecs.torch.checkpoint import StoreReader, StoreWriter, encoding, planning
from bf16codecs.torch.checkpoint import reader as reading
from bf16codecs.torch.checkpoint import writer as saving
from bf16codecs.torch.publishing import encoding as publishing
from checkpoint_state import SHAPES, numbers, placed

Scenario = Callable[..., None]
SCENARIOS: dict[str, Scenario] = {}
TIMEOUT = datetime.timedelta(seconds=60)


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def state(seed: int = 0, empty: bool = False) -> dict[str, Any]:
    """Return a state dict with tensors placed in many ways, and other objects."""
    own = {name: placed(name, seed, empty) for name in SHAPES}
    rank = dist.get_rank()
    return {
        "model": own,
        "epoch": 0 if empty else 3 + seed,
        "nested": {"text": "" if empty else "text", "list": [0, 0] if empty else [1, 2.5]},
        "random": {f"rank{rank}": b"" if empty else bytes([rank, seed])},
    }


def local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def check(loaded: dict[str, Any], seed: int = 0) -> None:
    """Compare what was loaded with what was saved, bit by bit."""
    for name in SHAPES:
        found, expected = map(local, (loaded["model"][name], placed(name, seed)))
        assert found.dtype == expected.dtype, name
        bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (found, expected)]
        assert torch.equal(*bits), name
    assert loaded["epoch"] == 3 + seed
    assert loaded["nested"] == {"text": "text", "list": [1, 2.5]}


@scenario
def save(folder: Path, name: str = "c.zarr", seed: str = "0", **options: Any) -> None:
    dcp.save(state(int(seed)), storage_writer=StoreWriter(folder / name, **options))


@scenario
def save_differences(folder: Path) -> None:
    for step in range(3):
        writer = StoreWriter(folder / f"step-{step}.zarr", base="previous")
        dcp.save(state(step), storage_writer=writer)


@scenario
def save_based(folder: Path, step: str) -> None:
    """Save a difference to a checkpoint that a job of other processes saved."""
    options = {"base": "previous", "level": "auto", "chunk_size": 1 << 14}
    save(folder, f"step-{step}.zarr", step, **options)


def tensors(seed: int) -> dict[str, Any]:
    """Return the tensors of a step, two of which are tied."""
    own = {name: placed(name, seed) for name in SHAPES}
    return {**own, "head": own["embed"]}


@scenario
def publish_steps(folder: Path, first: str, last: str, **options: Any) -> None:
    for step in range(int(first), int(last) + 1):
        result = publish(folder / "policy.zarr", tensors(step), step, **options)
        assert (result.change_nbytes > 0) == (step > 0)
        everywhere = [None] * dist.get_world_size()
        dist.all_gather_object(everywhere, result)
        assert set(everywhere) == {result}


@scenario
def publish_keeping_few(folder: Path) -> None:
    publish_steps(folder, "0", "6", keyframe_every=3, keep_last=1)


@scenario
def publish_anew(folder: Path, step: str) -> None:
    publish(folder / "policy.zarr", tensors(int(step)), int(step), restart=True)


@scenario
def publish_from_one(folder: Path) -> None:
    """Let one process have all tensors, and the others none, as FSDP's full state dicts are."""
    own = {name: numbers(name, 0) for name in SHAPES} if dist.get_rank() == 0 else {}
    publish(folder / "policy.zarr", own, 0)
    with pytest.raises(TypeError, match="'epoch' of type int"):
        publish(folder / "policy.zarr", {**own, "epoch": 3} if dist.get_rank() else own, 1)
    publish(folder / "policy.zarr", {n: numbers(n, 1) for n in own}, 1)


@scenario
def publish_ties_of_one(folder: Path) -> None:
    """Let processes find ties that others do not have: nothing is lost."""
    mesh, rank = init_device_mesh("cpu", (dist.get_world_size(),)), dist.get_rank()
    whole = [torch.arange(8.0) + 10 * number for number in range(3)]
    a, b, c = (distribute_tensor(t, mesh, [Shard(0)], src_data_rank=None) for t in whole)
    if rank == 0:
        b = DTensor.from_local(a.to_local(), mesh, [Shard(0)])
    else:
        c = DTensor.from_local(b.to_local(), mesh, [Shard(0)])
    publish(folder / "policy.zarr", {"a": a, "b": b, "c": c, "again": a}, 0)


@scenario
def publish_and_fail(folder: Path, victim: str) -> None:
    """Let one process fail in the middle of its writing."""
    publish_steps(folder, "0", "0")
    if dist.get_rank() == int(victim):
        publishing.pack_of = lambda frames: 1 // 0  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError) as caught:
        publish(folder / "policy.zarr", tensors(1), 1)
    (note,) = caught.value.__notes__
    assert f"process {victim} of the group:" in note
    assert "in write_packs" in note


@scenario
def publish_and_interrupt(folder: Path, victim: str) -> None:
    """Interrupt one process in the middle of its writing."""

    def interrupted(frames: Any) -> bytes:
        raise KeyboardInterrupt

    publish_steps(folder, "0", "0")
    is_victim = dist.get_rank() == int(victim)
    if is_victim:
        publishing.pack_of = interrupted
    with pytest.raises(KeyboardInterrupt if is_victim else RuntimeError) as caught:
        publish(folder / "policy.zarr", tensors(1), 1)
    assert is_victim or f"process {victim} was interrupted" in str(caught.value)


@scenario
def publish_different_steps(folder: Path) -> None:
    """Let each process publish a step of its own, and then to a path of its own."""
    publish_steps(folder, "0", "0")
    rank = dist.get_rank()
    with pytest.raises(ValueError, match=r"step 1 to .* and step 2 to"):
        publish(folder / "policy.zarr", tensors(1), 1 + rank)
    with pytest.raises(ValueError, match=r"do not publish the same"):
        publish(folder / f"policy{rank}.zarr", tensors(1), 1)


@scenario
def publish_with_invalid_arguments(folder: Path) -> None:
    """Let one process alone have an argument that is invalid."""
    publish_steps(folder, "0", "0")
    path = folder / "policy.zarr"
    for victim in range(dist.get_world_size()):
        is_victim = dist.get_rank() == victim
        for invalid in (
            {"step": "1"},
            {"state_dict": [1]},
            {"state_dict": {"x": 3}},
            {"keep_last": 0},
            {"path": ""},
            {"level": "bogus"},
            {"sync": "no"},
            {"keep_copy": 1},
        ):
            given = {"path": path, "state_dict": tensors(1), "step": 1}
            with pytest.raises((TypeError, ValueError)):
                publish(**(given | invalid if is_victim else given))
    publish_steps(folder, "1", "1")


@scenario
def publish_and_die(folder: Path, victim: str) -> None:
    """Let one process die in the middle of its writing."""
    publish_steps(folder, "0", "0")
    if dist.get_rank() == int(victim):
        publishing.pack_of = lambda frames: os.kill(os.getpid(), signal.SIGKILL)
    publish(folder / "policy.zarr", tensors(1), 1)


def disagreeing() -> dict[str, Any]:
    """Return tensors whose relations differ from process to process.

    Only the first one sees that "a" is a rounding, and only the last one that "almost" is not equal
    to others.
    """
    master = torch.randn((100, 100), generator=torch.Generator().manual_seed(0))
    rounded, almost = master.bfloat16(), master.clone()
    almost[-1, -1] += 1
    whole = {"whole": master} if dist.get_rank() == 0 else {"b": rounded.clone()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = {"almost": almost, "master": master, "rounded": rounded, "tied": master}
    found = {n: distribute_tensor(t, mesh, [Shard(0)]) for n, t in sharded.items()}
    return {"a": rounded, **whole, **found}


@scenario
def save_disagreeing(folder: Path) -> None:
    dcp.save(disagreeing(), storage_writer=StoreWriter(folder / "c.zarr", chunk_size=1 << 14))


@scenario
def save_placeholders(folder: Path) -> None:
    """Let one process have a placeholder where another has the tensor."""
    averaged, model = (
        torch.randn((100, 100), generator=torch.Generator().manual_seed(i)) for i in range(2)
    )
    own = {"averaged": averaged if dist.get_rank() == 0 else model, "model": model}
    dcp.save(own, storage_writer=StoreWriter(folder / "c.zarr"))
    found = {"model": torch.zeros(100, 100)}
    dcp.load(found, storage_reader=StoreReader(folder / "c.zarr"))
    assert torch.equal(found["model"], model)


@scenario
def count_processes(folder: Path) -> None:
    """Check that saving and loading divide the threads among the processes."""
    counts: list[int] = []
    for module in (saving, reading):
        module.thread_share = lambda count: counts.append(count) or 1  # type: ignore[assignment]
    save(folder, "d.zarr")
    load(folder, "d.zarr")
    assert counts == [dist.get_world_size()] * 2


@scenario
def load_disagreeing(folder: Path) -> None:
    expected = disagreeing()
    found = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    dcp.load(found, storage_reader=StoreReader(folder / "c.zarr"))
    for name, tensor in expected.items():
        assert torch.equal(local(found[name]), local(tensor)), name


@scenario
def load(folder: Path, name: str = "c.zarr", seed: str = "0") -> None:
    own = state(empty=True)
    del own["random"]
    dcp.load(own, storage_reader=StoreReader(folder / name))
    check(own, int(seed))


@scenario
def save_asynchronously(folder: Path) -> None:
    save_while_training(StoreWriter(folder / "c.zarr"))


def save_while_training(writer: StoreWriter, seed: int = 0) -> None:
    own = state(seed)
    future = dcp.async_save(own, storage_writer=writer)
    for tensor in own["model"].values():
        local(tensor).zero_()  # training goes on
    future.result()


@scenario
def die(folder: Path, victim: str) -> None:
    """Let one process die in the middle of its writing."""
    put, count = encoding.ChunkEncoder.put, 0

    def dying(self: Any, *arguments: Any) -> int:
        nonlocal count
        count += 1
        if dist.get_rank() == int(victim) and count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return put(self, *arguments)

    encoding.ChunkEncoder.put = dying  # type: ignore[method-assign]
    save(folder)


@scenario
def fail(folder: Path, victim: str) -> None:
    """Let one process fail, and all of them save again with the same writer."""
    put = encoding.ChunkEncoder.put

    def failing(self: Any, *arguments: Any) -> int:
        if dist.get_rank() == int(victim):
            raise OSError(28, "No space left on device")
        return put(self, *arguments)

    writer = StoreWriter(folder / "c.zarr")
    encoding.ChunkEncoder.put = failing  # type: ignore[method-assign]
    with pytest.raises(dcp.api.CheckpointException, match="No space left") as caught:
        dcp.save(state(), storage_writer=writer)
    assert list(caught.value.failures) == [int(victim)]
    assert not (folder / "c.zarr").exists()
    encoding.ChunkEncoder.put = put  # type: ignore[method-assign]
    dcp.save(state(), storage_writer=writer)


@scenario
def never_arrive(folder: Path) -> None:
    """Let one process never come to save."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=4))
    if dist.get_rank() == 1:
        time.sleep(8)
        return
    own, writer = state(), StoreWriter(folder / "c.zarr")
    with pytest.raises(RuntimeError, match=r"[Tt]imed out|[Cc]onnection"):
        dcp.save(own, storage_writer=writer, process_group=group)


def in_bucket(folder: Path, name: str) -> tuple[str, dict[str, Any]]:
    """Return the address of a checkpoint, and options; let dead writers count as dead soon."""
    from bf16codecs.store.remote import lease

    lease._RENEW_SECONDS, lease._FRESH_SECONDS, lease._LOOK_SECONDS = 0.2, 0.6, 0.2
    lease.DEAD_SECONDS = 1
    bucket = json.loads((folder / "bucket.json").read_text())
    return f"{bucket['address']}/{name}", {"storage_options": bucket["options"]}


@scenario
def save_to_bucket(folder: Path, name: str, seed: str, **options: Any) -> None:
    address, where = in_bucket(folder, name)
    dcp.save(state(int(seed)), storage_writer=StoreWriter(address, **where, **options))


@scenario
def save_shared_to_bucket(folder: Path, name: str, seed: str) -> None:
    """Save chunks of which several processes have parts."""
    planning._LEAST_BYTES = 1 << 24
    save_to_bucket(folder, name, seed)


@scenario
def save_asynchronously_to_bucket(folder: Path, name: str, seed: str) -> None:
    address, where = in_bucket(folder, name)
    save_while_training(StoreWriter(address, **where), int(seed))


@scenario
def save_series_to_bucket(folder: Path) -> None:
    for step in range(1, 4):
        save_to_bucket(folder, f"step-{step}.zarr", str(step), base="previous", keep_last=2)


@scenario
def load_from_bucket(folder: Path, name: str, seed: str) -> None:
    address, where = in_bucket(folder, name)
    own = state(empty=True)
    del own["random"]
    dcp.load(own, storage_reader=StoreReader(address, **where))
    check(own, int(seed))


@scenario
def die_at_request(folder: Path, name: str, seed: str, victim: str, number: str) -> None:
    """Replace a checkpoint; let one process die at a request, before or after it is answered."""
    from bf16codecs.store.remote import object_folder

    original, numbers, at = object_folder.ask, itertools.count(1), abs(int(number))

    def ask(*arguments: Any) -> Any:
        is_last = next(numbers) == at
        if is_last and int(number) < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    if dist.get_rank() == int(victim):
        object_folder.ask = ask  # type: ignore[assignment]
    save_to_bucket(folder, name, seed, overwrite=True)


@scenario
def save_shared_chunks(folder: Path) -> None:
    """Save chunks of which several processes have parts."""
    planning._LEAST_BYTES = 1 << 24
    save(folder)


def run(name: str, rank: int, size: int, folder: Path, arguments: list[str], number: int) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rendezvous = f"file://{folder}/.rendezvous-{os.getppid()}-{number}"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=size, timeout=TIMEOUT
    )
    try:
        SCENARIOS[name](folder, *arguments)
        return 0
    except BaseException:
        traceback.print_exc()
        return 1


def run_job(folder: Path, text: str, number: int) -> int:
    name, size, *arguments = text.split(":")
    processes = []
    for rank in range(int(size)):
        process = os.fork()
        if process == 0:
            status = run(name, rank, int(size), folder, arguments, number)
            sys.stderr.flush()
            os._exit(status)
        processes.append(process)
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    return max(128 - code if code < 0 else code for code in codes)


def run_jobs(log: str, folder: str, *jobs: str) -> int:
    """Run jobs in a process of their own, and return their exit status."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(2, 1)
        os.chdir(folder)
        signal.alarm(300)
        statuses = (run_job(Path(folder), job, number) for number, job in enumerate(jobs))
        os._exit(next(filter(None, statuses), 0))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    for line in sys.stdin:
        print(run_jobs(*json.loads(line)), flush=True)
