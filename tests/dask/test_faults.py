"""Clusters that fail: workers die, lack the package, or have another version of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from bf16codecs.convert import (
    append_to_run,
    convert_fleet,
    plan_fleet,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.convert.fleet import running
from bf16codecs.errors import CodecError
from bf16codecs.safetensors import SafetensorsError
from clusters import Killing, assert_same_files, client_of_cluster
from lazy_models import weights, write_safetensors
from run_stores import eventful, write_checkpoints
from waiting import wait_until

dask = pytest.importorskip("dask")
on_dask = pytest.importorskip("bf16codecs.dask")
distributed = pytest.importorskip("distributed")

pytestmark = [
    pytest.mark.filterwarnings("ignore::bf16codecs.errors.TensorChangeWarning"),
    pytest.mark.filterwarnings("ignore:Port"),
]

RUN = {"allow_changed_tensors": True, "keyframe_every": 3, "sync": False}


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    for i in range(6):
        write_safetensors(folder / f"m{i}.safetensors", {"w": weights((300, 200), seed=i)})
    return folder


def test_a_fleet(models, tmp_path, cluster):
    plan = plan_fleet([models], tmp_path / "stores")
    with on_dask.cluster(cluster):
        results = list(convert_fleet(plan, sync=False))
        again = list(convert_fleet(plan, sync=False))
    assert {r.state for r in results} == {"converted"}
    assert {r.state for r in again} == {"there"}
    assert {r.conversion.store for r in results} == {each.store for each in plan}
    one = plan_fleet([models], tmp_path / "one")
    list(convert_fleet(one, sync=False))
    assert_same_files(tmp_path / "stores", tmp_path / "one")


def test_large_models_are_shared(models, tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(running, "_ONE_WORKERS", 0)
    with on_dask.cluster(cluster):
        results = list(convert_fleet(plan_fleet([models], tmp_path / "stores"), sync=False))
    assert [r.state for r in results] == ["converted"] * 6


@pytest.mark.slow
def test_a_fleet_whose_worker_is_killed(models, tmp_path, processes, monkeypatch):
    """Workers have another working folder."""
    monkeypatch.chdir(tmp_path)
    plan, killing = plan_fleet(["models"], "stores"), Killing(processes)
    results = []
    with on_dask.cluster(processes):
        for result in convert_fleet(plan, sync=False):
            results.append(result)
            killing()
    assert {r.state for r in results} <= {"converted", "there"}
    assert {r.conversion for r in results} == set(plan)
    for each in plan:
        verify_store(each.store, each.source)
    assert sorted(p.name for p in (tmp_path / "stores").iterdir()) == [
        f"m{i}.zarr" for i in range(6)
    ]


@pytest.mark.slow
def test_a_series_whose_worker_is_killed(tmp_path, processes):
    checkpoints = write_checkpoints(tmp_path / "c", eventful())
    killing = Killing(processes)
    with on_dask.cluster(processes):
        safetensors_to_run(checkpoints, tmp_path / "run.zarr", progress=killing, **RUN)
        append = write_checkpoints(tmp_path / "d", {77: eventful()[52]})
        killing = Killing(processes)
        append_to_run(
            append[0], tmp_path / "run.zarr", progress=killing, allow_changed_tensors=True
        )
    assert killing.done.is_set()
    safetensors_to_run([*checkpoints, *append], tmp_path / "one.zarr", **RUN)
    assert_same_files(tmp_path / "run.zarr", tmp_path / "one.zarr")


@pytest.mark.slow
def test_restoring_and_verifying_while_workers_are_killed(shards, expected, tmp_path, processes):
    with on_dask.cluster(processes):
        zarr_to_safetensors(expected, tmp_path / "back", progress=Killing(processes))
        verify_store(expected, shards, progress=Killing(processes))
    assert_same_files(tmp_path / "back", shards)


@pytest.mark.slow
def test_a_worker_without_the_package_or_with_another_version(processes):
    first, second = processes.scheduler_info()["workers"]
    processes.run(exec, "import bf16codecs; bf16codecs.__version__ = '9.9'", workers=[first])
    with (
        pytest.raises(ConnectionError, match=re.escape(f"{first} has bf16codecs 9.9, and the")),
        on_dask.cluster(processes),
    ):
        pass
    processes.run(exec, "import sys; sys.modules['bf16codecs.dask'] = None", workers=[first])
    with (
        pytest.raises(ConnectionError, match=rf"{first} has a fault: .*bf16codecs\.dask"),
        on_dask.cluster(processes),
    ):
        pass
    processes.run(exec, "import sys; sys.modules['bf16codecs'] = None", workers=[first, second])
    with (
        pytest.raises(ConnectionError, match=f"({first}|{second}) has no bf16codecs"),
        on_dask.cluster(processes),
    ):
        pass


@pytest.mark.slow
def test_a_model_that_kills_its_workers_fails_alone(models, tmp_path, processes):
    """As one does that takes more memory than workers have."""
    plan = plan_fleet([models], tmp_path / "stores")
    code = """
from bf16codecs.convert.fleet import running
original = running.convert_model
def convert(source, store, *args):
    if str(store).endswith("m3.zarr"):
        import os
        os._exit(9)
    return original(source, store, *args)
running.convert_model = convert
"""

    class Setup(distributed.WorkerPlugin):
        def setup(self, worker):
            exec(code, {})

    processes.register_plugin(Setup())
    with on_dask.cluster(processes):
        results = {r.conversion.store: r for r in convert_fleet(plan, sync=False)}
    failed = results.pop(str(tmp_path / "stores" / "m3.zarr"))
    assert failed.state == "failed"
    assert "workers died while they ran one task: they may have too little memory" in failed.note
    assert {r.state for r in results.values()} <= {"converted", "there"}


def test_no_workers(tmp_path):
    options = {"n_workers": 0, "dashboard_address": ":0", "processes": False}
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        pytest.raises(ConnectionError, match="the dask cluster has no workers"),
        on_dask.cluster(client),
    ):
        pass


def test_no_scheduler():
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "500ms"}),
        pytest.raises(ConnectionError, match=r"tcp://127.0.0.1:1: no dask scheduler answers"),
        on_dask.cluster("tcp://127.0.0.1:1"),
    ):
        pass


@contextmanager
def started_apart(folder):
    """Yield the process of a scheduler with two workers, and its address."""
    note = folder / "scheduler.json"
    of_all = ["--scheduler-file", str(note), "--no-dashboard"]
    command = [sys.executable, "-m", "dask"]
    # Not in a checkout, whose package has no native part: Python looks there first.
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    scheduler = subprocess.Popen(
        [*command, "scheduler", "--host", "127.0.0.1", "--port", "0", *of_all], **quiet
    )
    processes = [scheduler]
    try:
        assert wait_until(note.exists)
        worker = [*command, "worker", "--nworkers", "2", "--nthreads", "1", "--death-timeout", "9"]
        processes.append(subprocess.Popen([*worker, *of_all], **quiet))
        address = json.loads(note.read_text())["address"]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2)
        yield scheduler, address
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_scheduler_that_dies(shards, tmp_path, small_batches):
    """Nothing is left; the same conversion on another one makes the store."""
    target = tmp_path / "stores" / "m.zarr"
    target.parent.mkdir()
    with (
        started_apart(tmp_path) as (scheduler, address),
        pytest.raises(ConnectionError, match="the dask cluster failed"),
    ):
        on_dask.safetensors_to_zarr(
            shards, target, address, progress=lambda *_: scheduler.kill(), chunk_size=1 << 16
        )
    assert wait_until(lambda: not list(target.parent.iterdir()))
    with client_of_cluster(processes=False) as client:
        on_dask.safetensors_to_zarr(shards, target, client)
    verify_store(target, shards)


@pytest.mark.slow
def test_a_fleet_whose_scheduler_dies(models, tmp_path):
    plan = plan_fleet([models], tmp_path / "stores")

    def convert(scheduler, address):
        with on_dask.cluster(address):
            for _ in convert_fleet(plan, sync=False):
                scheduler.kill()

    with (
        started_apart(tmp_path) as (scheduler, address),
        pytest.raises(ConnectionError, match="the dask cluster failed"),
    ):
        convert(scheduler, address)
    assert {r.state for r in convert_fleet(plan, sync=False)} <= {"converted", "there"}


@pytest.mark.slow
def test_all_workers_die(models, tmp_path, monkeypatch):
    monkeypatch.setattr(on_dask, "_PATIENCE_SECONDS", 1)
    options = {"n_workers": 1, "processes": True, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        on_dask.cluster(client),
    ):
        results = convert_fleet(plan_fleet([models], tmp_path / "stores"), sync=False)
        next(results)
        cluster.scale(0)
        client.retire_workers()
        with pytest.raises(ConnectionError, match="it has had no workers for 1 s"):
            list(results)


@pytest.mark.slow
def test_workers_that_see_another_file_at_the_path(tmp_path, processes, shards):
    """The header, and so all that the client knows of it, is the same."""
    source = shutil.copytree(shards, tmp_path / "model")
    other = shutil.copytree(shards, tmp_path / "other")
    for path in other.glob("*.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1000] ^= 1
        path.write_bytes(content)
    address = next(iter(processes.scheduler_info()["workers"]))
    code = f"""
from bf16codecs.convert import sources
original = sources._open_path
sources._open_path = lambda text, path: original(
    text.replace({str(source)!r}, {str(other)!r}), path.replace({str(source)!r}, {str(other)!r}))
"""
    processes.run(exec, code, {}, workers=[address])
    with pytest.raises(SafetensorsError, match="or workers see different files here"):
        on_dask.safetensors_to_zarr(source, tmp_path / "m.zarr", processes, chunk_size=1 << 16)
    assert not (tmp_path / "m.zarr").exists()


@pytest.mark.slow
def test_workers_close_what_they_opened(tmp_path, processes, shards):
    target = tmp_path / "m.zarr"
    with on_dask.cluster(processes):
        safetensors_to_zarr(shards, target)
        zarr_to_safetensors(target, tmp_path / "back")
        verify_store(target, shards)
    code = "__import__('bf16codecs.convert.workers', fromlist=['x'])._opened"
    assert wait_until(lambda: not any(processes.run(eval, f"list({code})").values()))


def test_arguments(cluster):
    for threads in (0, True, 2.5, "2", 2000):
        with (
            pytest.raises((TypeError, ValueError), match="threads must be"),
            on_dask.cluster(cluster, threads),
        ):
            pass


def test_damage_that_a_worker_finds_is_an_error_here(expected, tmp_path, cluster):
    shutil.copytree(expected, tmp_path / "m.zarr")
    chunk = tmp_path / "m.zarr" / "b" / "weight" / "c.3.0"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    with on_dask.cluster(cluster), pytest.raises(CodecError, match="b/weight"):
        zarr_to_safetensors(tmp_path / "m.zarr", tmp_path / "back")
