"""dask and xarray read model stores, and a dask cluster converts to them."""

from __future__ import annotations

import filecmp
import functools
import os
import pickle
import signal
import threading
from contextlib import contextmanager

import numpy as np
import pytest

import bf16codecs
import tiers
from bf16codecs.convert import safetensors_to_zarr, verify_store, zarr_to_safetensors
from bf16codecs.errors import CodecError
from bf16codecs.safetensors import SafetensorsError
from bits import assert_same_bits
from invoked import refused
from lazy_models import weights, write_shards, write_store
from servers import serving
from torch_files import pickled, tensor, write_zip
from waiting import wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore:invalid value encountered in equal"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]


@pytest.fixture(scope="module", autouse=True)
def da():
    return pytest.importorskip("dask.array", reason="dask is not installed")


@functools.cache
def arrays():
    return {
        "model.embed.weight": weights((700, 256)),
        "model.layers.0.up.weight": weights((128, 300), seed=1),
        "model.layers.0.norm.weight": weights((300,), "float32", 2),
        "model.layers.0.cube": weights((5, 6, 7), "float64", 3),
        "scalar": weights((), seed=4),
        "empty": weights((0, 3)),
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("d") / "m.zarr", arrays(), chunk_size=1 << 15)


def test_tensors_are_dask_arrays(store, da):
    with bf16codecs.open_model(store) as model:
        for name, array in arrays().items():
            lazy = model[name].dask()
            assert isinstance(lazy, da.Array)
            assert (lazy.shape, lazy.dtype) == (array.shape, array.dtype)
            assert_same_bits(lazy.compute(scheduler="sync"), array)
        embed = model["model.embed.weight"]
        assert embed.dask().chunksize == embed.chunks
        assert embed.dask(chunks=(350, 100)).chunks == ((350, 350), (100, 100, 56))
        assert_same_bits(
            embed.dask()[5:600:100, ::7].compute(), arrays()[embed.name][5:600:100, ::7]
        )
        assert embed.dask().name == embed.dask().name
        assert embed.dask().name != model["model.layers.0.up.weight"].dask().name


def total(tensors):
    return sum(t.astype("float64").sum() for t in tensors)


@pytest.mark.parametrize(
    "scheduler", ["sync", "threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_a_sum_over_all_tensors(store, scheduler):
    with bf16codecs.open_model(store) as model:
        lazy = total(t.dask() for t in model.values())
        assert float(lazy.compute(scheduler=scheduler)) == pytest.approx(total(arrays().values()))


def test_a_graph_holds_references(store):
    with bf16codecs.open_model(store) as model:
        lazy = model["model.embed.weight"].dask()
        assert len(pickle.dumps(dict(lazy.__dask_graph__()))) < 20_000


def test_dask_reads_plain_zarr(store, da):
    lazy = da.from_zarr(os.fspath(store), component="model/embed/weight")
    assert_same_bits(lazy.compute(), arrays()["model.embed.weight"])


def test_xarray(store):
    xarray = pytest.importorskip("xarray")
    dataset = xarray.open_zarr(store, group="model/embed", chunks=None)
    array = dataset["weight"]
    assert array.dims == ("dim0_700", "dim1_256")
    assert array.dtype == "bfloat16"
    assert_same_bits(array[10:20, 3].values, arrays()["model.embed.weight"][10:20, 3])
    chunked = xarray.open_zarr(store, group="model/layers/0/up")["weight"]
    assert_same_bits(chunked.data.compute(), arrays()["model.layers.0.up.weight"])
    tree = xarray.open_datatree(store, engine="zarr", chunks=None)
    norm = tree["model/layers/0/norm/weight"]
    assert_same_bits(norm.values, arrays()["model.layers.0.norm.weight"])


def test_xarray_format_2(tmp_path):
    xarray = pytest.importorskip("xarray")
    store = write_store(tmp_path / "m.zarr", arrays(), zarr_format=2)
    # In format 2, xarray masks by the fill value, and knows none for these dtypes.
    options = {"chunks": None, "mask_and_scale": False}
    array = xarray.open_zarr(store, group="model/embed", **options)["weight"]
    assert array.dims == ("dim0_700", "dim1_256")
    assert_same_bits(array[10:20, 3].values, arrays()["model.embed.weight"][10:20, 3])


# --- conversion on a cluster ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two shards of some megabytes, in chunks that make many tasks."""
    names = ["a.weight", "b.weight", "c.weight", "steps"]
    big = {n: weights((1000, 700), seed=i) for i, n in enumerate(names[:3])}
    folder = tmp_path_factory.mktemp("shards") / "model"
    return write_shards(folder, [dict(list(big.items())[:2]), {"c.weight": big["c.weight"]}])


@pytest.fixture(scope="module")
def expected(shards, tmp_path_factory):
    path = tmp_path_factory.mktemp("expected") / "m.zarr"
    safetensors_to_zarr(shards, path, chunk_size=1 << 16)
    return path


@pytest.fixture(scope="module")
def started():
    """Return a client of a cluster: of processes in the full tier, of threads in the quick one."""
    with client_of_cluster(processes=tiers.IS_FULL) as client:
        yield client


@contextmanager
def client_of_cluster(processes):
    distributed = pytest.importorskip("distributed")
    options = {"threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(n_workers=2, processes=processes, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def small_batches(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("bf16codecs.dask._BATCH_BYTES", 1 << 17)


@pytest.fixture
def cluster(started, small_batches):
    return started


@pytest.fixture
def processes(small_batches):
    """Return a client of its own cluster of processes, which may be killed."""
    with client_of_cluster(processes=True) as client:
        yield client


def assert_same_files(one, other):
    def files(root):
        return {p.relative_to(root): p for p in root.rglob("*") if p.is_file()}

    ours, theirs = files(one), files(other)
    assert ours.keys() == theirs.keys()
    for key, path in ours.items():
        assert filecmp.cmp(path, theirs[key], shallow=False), key


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


def downloaded(address, s3, folder):
    """Copy a folder of an object store to the disk."""
    import fsspec

    fs = fsspec.filesystem("s3", skip_instance_cache=True, **s3)
    fs.get(f"{address}/", f"{folder}/", recursive=True)
    return folder


def test_a_cluster_writes_to_an_object_store(shards, expected, tmp_path, cluster, s3):
    address = f"s3://bucket/{tmp_path.name}/m.zarr"
    convert(shards, address, cluster, storage_options=s3)
    assert_same_files(downloaded(address, s3, tmp_path / "m.zarr"), expected)


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_writes_to_an_object_store(
    shards, expected, tmp_path, processes, s3
):
    """A task that runs twice finds its chunks, and writes no others."""
    pids = list(processes.run(os.getpid).values())
    killed = threading.Event()

    def kill(phase, done, total):
        if not killed.is_set():
            os.kill(pids[0], signal.SIGKILL)
            killed.set()

    address = f"s3://bucket/{tmp_path.name}/m.zarr"
    convert(shards, address, processes, storage_options=s3, progress=kill)
    assert killed.is_set()
    assert_same_files(downloaded(address, s3, tmp_path / "m.zarr"), expected)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(shards, expected, tmp_path, processes):
    """When a worker dies halfway, its tasks run again, and the store is the same."""
    pids = list(processes.run(os.getpid).values())
    killed = threading.Event()

    def kill(phase, done, total):
        if not killed.is_set():
            os.kill(pids[0], signal.SIGKILL)
            killed.set()

    convert(shards, tmp_path / "m.zarr", processes, progress=kill)
    assert killed.is_set()
    assert pids[0] not in processes.run(os.getpid).values()
    assert_same_files(tmp_path / "m.zarr", expected)
    assert [p.name for p in tmp_path.iterdir()] == ["m.zarr"]


def test_errors_of_workers_leave_nothing_behind(shards, tmp_path, cluster, monkeypatch):
    from bf16codecs import dask as on_cluster

    def fail(*args):
        raise SafetensorsError("a worker's error")

    monkeypatch.setattr(on_cluster, "_digests", fail)
    with pytest.raises(SafetensorsError, match="a worker's error"):
        convert(shards, tmp_path / "m.zarr", cluster)
    # A task may still be running, about to write its chunk.
    assert wait_until(lambda: not list(tmp_path.iterdir()))


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
    with pytest.raises(ValueError, match="ZIP"):
        convert(shards, tmp_path / "m.zarr.zip", cluster)
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
