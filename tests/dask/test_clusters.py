"""Conversions to stores on a dask cluster, whose workers may die."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs.convert import safetensors_to_zarr, verify_store, zarr_to_safetensors
from bf16codecs.convert.pieces import read_pieces, these_pieces
from bf16codecs.errors import CodecError
from bf16codecs.safetensors import SafetensorsError
from clusters import Killing, assert_same_files, downloaded
from invoked import refused
from servers import serving
from torch_files import pickled, tensor, write_zip
from waiting import wait_until


def convert(shards, target, client, **options):
    from bf16codecs.dask import safetensors_to_zarr

    return safetensors_to_zarr(shards, target, client, chunk_size=1 << 16, **options)


@pytest.mark.parametrize("zarr_format", [3, 2])
def test_a_cluster_makes_the_same_store(shards, tmp_path, cluster, zarr_format):
    done = []
    summary = convert(
        shards,
        tmp_path / "m.zarr",
        cluster,
        zarr_format=zarr_format,
        progress=lambda *args: done.append(args),
    )
    options = {"chunk_size": 1 << 16, "zarr_format": zarr_format}
    local = safetensors_to_zarr(shards, tmp_path / "local.zarr", **options)
    assert_same_files(tmp_path / "m.zarr", tmp_path / "local.zarr")
    assert (summary.files, summary.tensors) == (local.files, local.tensors) == (2, 3)
    assert (summary.nbytes, summary.stored_nbytes) == (local.nbytes, local.stored_nbytes)
    assert {phase for phase, _, _ in done} == {"convert", "verify"}
    verify_store(tmp_path / "m.zarr", shards)


def test_workers_read_files_of_other_kinds(tmp_path, cluster):
    """Their digests are right where other bytes begin after a whole number of parts."""
    data = np.arange(1 << 20, dtype="<f4").tobytes()
    one = tensor("Float", "0", 1 << 20, 0, (1 << 20,), (1,))
    source = write_zip(tmp_path / "x.pt", pickled({"w": one}), {"0": data})
    convert(source, tmp_path / "m.zarr", cluster)
    zarr_to_safetensors(tmp_path / "m.zarr", tmp_path / "back.pt")
    assert (tmp_path / "back.pt").read_bytes() == source.read_bytes()


def test_workers_read_a_source_at_an_address(shards, expected, tmp_path, cluster):
    pytest.importorskip("aiohttp")
    with serving(shards.parent) as server:
        address = f"{server.url}/{shards.name}"
        options = {"client_kwargs": {"headers": {"x-of": "the caller"}}}
        seen = set()
        server.note_headers = lambda headers: seen.add(headers.get("x-of"))
        convert(address, tmp_path / "m.zarr", cluster, storage_options=options)
    assert seen == {"the caller"}
    assert_same_files(tmp_path / "m.zarr", expected)


def test_a_cluster_writes_to_an_object_store(shards, expected, tmp_path, cluster, s3):
    address = f"s3://bucket/{tmp_path.name}/m.zarr"
    convert(shards, address, cluster, storage_options=s3)
    assert_same_files(downloaded(address, s3, tmp_path / "m.zarr"), expected)


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_writes_to_an_object_store(
    shards, expected, tmp_path, processes, s3
):
    """A task that runs twice finds its chunks, and writes no others."""
    killing = Killing(processes)
    address = f"s3://bucket/{tmp_path.name}/m.zarr"
    convert(shards, address, processes, storage_options=s3, progress=killing)
    assert killing.done.is_set()
    assert_same_files(downloaded(address, s3, tmp_path / "m.zarr"), expected)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(shards, expected, tmp_path, processes):
    """When a worker dies halfway, its tasks run again, and the store is the same."""
    killing = Killing(processes)
    convert(shards, tmp_path / "m.zarr", processes, progress=killing)
    assert killing.done.is_set()
    assert killing.pids[0] not in processes.run(os.getpid).values()
    assert_same_files(tmp_path / "m.zarr", expected)
    assert [p.name for p in tmp_path.iterdir()] == ["m.zarr"]


def test_errors_of_workers_leave_nothing_behind(shards, tmp_path, cluster):
    source, target = tmp_path / "model", tmp_path / "stores" / "m.zarr"
    shutil.copytree(shards, source)
    target.parent.mkdir()

    def damage(phase, done, total):
        for path in source.glob("*.safetensors"):
            os.truncate(path, path.stat().st_size // 2)

    with pytest.raises(SafetensorsError, match="truncated"):
        convert(source, target, cluster, progress=damage)
    # A task may still be running, about to write its chunk.
    assert wait_until(lambda: not list(target.parent.iterdir()))


def test_damage_between_writing_and_verifying_is_found(shards, tmp_path, cluster):
    def damage(phase, done, total):
        if phase == "convert" and done == total:
            (chunk,) = tmp_path.glob(".bf16codecs-*.tmp/new/b/weight/c.3.0")
            content = bytearray(chunk.read_bytes())
            content[len(content) // 2] ^= 1
            chunk.write_bytes(content)

    with pytest.raises(CodecError, match="b/weight"):
        convert(shards, tmp_path / "m.zarr", cluster, progress=damage)
    assert not list(tmp_path.iterdir())


def test_what_a_cluster_does_not_do(shards, tmp_path, cluster):
    convert(shards, tmp_path / "m.zarr.zip", cluster)  # but this process
    verify_store(tmp_path / "m.zarr.zip", shards)
    (tmp_path / "m.zarr.zip").unlink()
    (tmp_path / "m.zarr").mkdir()
    (tmp_path / "m.zarr" / "notes").write_text("mine")
    with pytest.raises(FileExistsError):
        convert(shards, tmp_path / "m.zarr", cluster)
    assert [p.name for p in tmp_path.iterdir()] == ["m.zarr"]


def test_an_empty_path_is_not_the_current_folder(shards):
    pytest.importorskip("distributed")
    for paths in ((shards, ""), ("", "m.zarr")):
        with pytest.raises(ValueError, match="is empty"):
            convert(*paths, "tcp://127.0.0.1:1")


def test_the_command_refuses_what_is_no_address(shards, tmp_path):
    pytest.importorskip("distributed")
    line = refused("st2zarr", shards, tmp_path / "m.zarr", "--dask", "nonsense")
    assert "'nonsense' is not the address of a dask scheduler" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command(shards, expected, tmp_path, processes, run_python):
    code = "import sys; from bf16codecs.cli import st2zarr; st2zarr(sys.argv[1:])"
    address = processes.scheduler.address
    arguments = [str(shards), "m.zarr", "--chunk-size", "64K", "--dask"]
    done = run_python(code, *arguments, address)
    assert "3 tensors" in done.stdout
    assert_same_files(tmp_path / "m.zarr", expected)
    failed = run_python(code, *arguments, "nonsense", "--overwrite", check=False)
    assert failed.returncode == 1
    assert "nonsense" in failed.stderr
    assert failed.stderr.count("\n") == 1
    missing = f"import sys; sys.modules['distributed'] = None; {code}"
    failed = run_python(missing, *arguments, address, "--overwrite", check=False)
    assert failed.returncode == 1
    assert "for --dask, another package is needed: pip install 'bf16codecs[dask]'" in failed.stderr


def test_a_process_that_was_abandoned_does_no_harm(tmp_path, shards):
    """Once a store is finished, no writer that was sent to a worker can change it."""
    from bf16codecs.store.choice import CodecChoice
    from bf16codecs.store.plan import plan_bytes
    from bf16codecs.store.zarr.sinks import FolderSink
    from bf16codecs.store.zarr.writer import ZarrWriter

    (tmp_path / "m.zarr").mkdir()
    writer = ZarrWriter(FolderSink(tmp_path / "m.zarr"), CodecChoice(), 3)
    shared = pickle.loads(pickle.dumps(writer.shared()))
    (piece,) = plan_bytes("x", 5, 100).pieces()
    shared.write(piece, np.arange(5, dtype="u1"))
    before = (tmp_path / "m.zarr" / "x" / "c.0").read_bytes()
    writer.close()
    with pytest.raises(FileNotFoundError):
        shared.write(piece, np.zeros(5, "u1"))
    assert (tmp_path / "m.zarr" / "x" / "c.0").read_bytes() == before
    assert [p.name for p in (tmp_path / "m.zarr").iterdir()] == ["x"]


class Numbers:
    """A source whose bytes are all one number."""

    stored = SimpleNamespace(concurrency=1)

    def __init__(self, number):
        self.number = number

    def read_range(self, file, offset, out):
        out[:] = self.number


def test_jobs_of_a_workers_threads_share_no_memory():
    """One job may take the memory that another has put back, but never two at once."""
    mixed, pieces = [], list(ArrayPlan("a", "uint8", (16 * 4096,), (4096,)).pieces())

    def run(number):
        def work(piece, chunk):
            chunk[:] = number
            sum(range(50))  # another thread's turn
            mixed.extend(chunk[chunk != number][:1])

        for _ in range(150):
            for _ in read_pieces(Numbers(number), work, these_pieces(pieces), [], None):
                pass

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=[number]) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not mixed
