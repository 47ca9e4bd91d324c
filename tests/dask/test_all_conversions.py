"""Every conversion on a dask cluster makes what one process makes, and finds what it finds."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from bf16codecs.analysis import analyze
from bf16codecs.convert import (
    append_to_run,
    hdf5_to_safetensors,
    rebase_store,
    run_to_safetensors,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    undo_append,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import BF16CodecsError, SourceMismatchError
from clusters import assert_same_files, downloaded
from folders import files_in
from lazy_models import weights, write_shards
from run_stores import eventful, restored, write_checkpoints

on_dask = pytest.importorskip("bf16codecs.dask")

CHUNKS = {"chunk_size": 1 << 16}
RUN = {"allow_changed_tensors": True, "keyframe_every": 3, "sync": False}

pytestmark = pytest.mark.filterwarnings("ignore::bf16codecs.errors.TensorChangeWarning")


@pytest.fixture
def here(cluster):
    """Let conversions of the test run on the cluster."""
    with on_dask.cluster(cluster):
        yield cluster


@pytest.fixture(scope="module")
def tuned(shards, tmp_path_factory):
    """The shards with a few other weights."""
    names = ["a.weight", "b.weight", "c.weight"]
    arrays = {n: weights((1000, 700), seed=i) for i, n in enumerate(names)}
    for array in arrays.values():
        array.view("u2")[::7, ::3] += 1
    folder = tmp_path_factory.mktemp("tuned") / "model"
    return write_shards(folder, [{n: arrays[n] for n in names[:2]}, {names[2]: arrays[names[2]]}])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return write_checkpoints(tmp_path_factory.mktemp("checkpoints"), eventful())


@pytest.mark.parametrize("base", ["named", "found"])
def test_differences_to_a_base(shards, expected, tuned, tmp_path, cluster, base):
    for folder in ("one", "many"):
        shutil.copytree(expected, tmp_path / folder / "base.zarr")
    convert = {**CHUNKS, "sha256": True}

    def at(folder):
        given = tmp_path / folder / "base.zarr"
        return {"base": given if base == "named" else f"auto:{tmp_path / folder}"}

    one = safetensors_to_zarr(tuned, tmp_path / "one" / "m.zarr", **convert, **at("one"))
    with on_dask.cluster(cluster):
        many = safetensors_to_zarr(tuned, tmp_path / "many" / "m.zarr", **convert, **at("many"))
    assert_same_files(tmp_path / "many" / "m.zarr", tmp_path / "one" / "m.zarr")
    assert many.stored_nbytes == one.stored_nbytes
    assert many.stored_nbytes < 0.8 * many.nbytes * 0.66
    assert "3 of 3 tensors as differences" in many.base
    verify_store(tmp_path / "many" / "m.zarr", tuned)


def test_rebasing(expected, tuned, tmp_path, here):
    shutil.copytree(expected, tmp_path / "base.zarr")
    safetensors_to_zarr(tuned, tmp_path / "m.zarr", **CHUNKS)
    shutil.copytree(tmp_path / "m.zarr", tmp_path / "whole.zarr")
    rebase_store(tmp_path / "m.zarr", tmp_path / "base.zarr")
    verify_store(tmp_path / "m.zarr", tuned)
    rebase_store(tmp_path / "m.zarr")
    assert_same_files(tmp_path / "m.zarr", tmp_path / "whole.zarr")


def test_restoring(shards, expected, tmp_path, here):
    done = []
    summary = zarr_to_safetensors(
        expected, tmp_path / "back", progress=lambda *args: done.append(args)
    )
    assert_same_files(tmp_path / "back", shards)
    assert {phase for phase, _, _ in done} == {"restore"}
    assert done[-1][1] == done[-1][2]
    assert (summary.files, summary.tensors) == (2, 3)
    safetensors_to_hdf5(shards, tmp_path / "m.h5")  # by this process
    hdf5_to_safetensors(tmp_path / "m.h5", tmp_path / "from-hdf5")
    assert_same_files(tmp_path / "from-hdf5", shards)


def damaged(store, tmp_path):
    """Copy a store, and change a byte in two chunks of one tensor."""
    shutil.copytree(store, tmp_path / "damaged.zarr")
    for name in ("c.3.0", "c.9.0"):
        chunk = tmp_path / "damaged.zarr" / "b" / "weight" / name
        content = bytearray(chunk.read_bytes())
        content[len(content) // 2] ^= 1
        chunk.write_bytes(content)
    return tmp_path / "damaged.zarr"


def test_a_damaged_store_is_not_restored(expected, tmp_path, here):
    store = damaged(expected, tmp_path)
    with pytest.raises(BF16CodecsError, match="b/weight"):
        zarr_to_safetensors(store, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_verifying_lists_all_damage(expected, tmp_path, cluster):
    store = damaged(expected, tmp_path)
    with pytest.raises(BF16CodecsError) as one:
        verify_store(store)
    with on_dask.cluster(cluster), pytest.raises(BF16CodecsError) as many:
        verify_store(store)
    assert [damage.chunk for damage in many.value.damage] == [(3, 0), (9, 0)]
    assert (str(many.value), many.value.damage) == (str(one.value), one.value.damage)
    assert type(many.value) is type(one.value)


def test_verifying_lists_all_differences(expected, tuned, shards, cluster):
    with pytest.raises(SourceMismatchError) as one:
        verify_store(expected, tuned)
    done = []
    with on_dask.cluster(cluster):
        summary = verify_store(expected, shards, progress=lambda *args: done.append(args))
        with pytest.raises(SourceMismatchError) as many:
            verify_store(expected, tuned)
    assert many.value.differences == one.value.differences
    assert {phase for phase, _, _ in done} == {"verify"}
    assert done[-1][1] > 0.99 * summary.nbytes


def test_a_series(checkpoints, tmp_path, cluster):
    safetensors_to_run(checkpoints, tmp_path / "one.zarr", **RUN)
    with on_dask.cluster(cluster):
        safetensors_to_run(checkpoints, tmp_path / "many.zarr", **RUN)
        verify_store(tmp_path / "many.zarr")
    assert_same_files(tmp_path / "many.zarr", tmp_path / "one.zarr")


@pytest.mark.parametrize("name", ["run.zarr.zip", "run.h5"])
def test_a_series_in_one_file(checkpoints, tmp_path, here, name):
    safetensors_to_run(checkpoints, tmp_path / name, as_hdf5=name.endswith("h5"), **RUN)
    verify_store(tmp_path / name)
    run_to_safetensors(tmp_path / name, tmp_path / "back")
    assert files_in(tmp_path / "back") == {p.name: p.read_bytes() for p in checkpoints}


@pytest.mark.parametrize("name", ["run.zarr", "run.h5"])
def test_appends(checkpoints, tmp_path, cluster, name):
    options = {"allow_changed_tensors": True, "sync": False, "as_hdf5": name.endswith("h5")}
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    for path in checkpoints:
        append_to_run(path, tmp_path / "one" / name, **options)
        with on_dask.cluster(cluster):
            append_to_run(path, tmp_path / "many" / name, **options)
    if name == "run.zarr":
        assert_same_files(tmp_path / "many" / name, tmp_path / "one" / name)
    found = restored(tmp_path / "many" / name, tmp_path / "back")
    assert found == {p.name: p.read_bytes() for p in checkpoints}
    undo_append(tmp_path / "many" / name)


def test_a_series_in_an_object_store(checkpoints, tmp_path, cluster, s3):
    """Workers see the checkpoints and the bucket, not the folder that the run is made in."""
    address = f"s3://bucket/{tmp_path.name}/run.zarr"
    options = {**RUN, "target_options": s3}
    safetensors_to_run(checkpoints[:-1], f"{address}.one", **options)
    append_to_run(checkpoints[-1], f"{address}.one", allow_changed_tensors=True, target_options=s3)
    with on_dask.cluster(cluster):
        safetensors_to_run(checkpoints[:-1], address, **options)
        append_to_run(checkpoints[-1], address, allow_changed_tensors=True, target_options=s3)
        verify_store(address, storage_options=s3)
    ours = downloaded(address, s3, tmp_path / "many")
    assert_same_files(ours, downloaded(f"{address}.one", s3, tmp_path / "one"))


def test_a_source_that_changes_during_a_series(checkpoints, tmp_path, here):
    """Workers read parents from the checkpoints: these have to stay until the end."""
    copies = [shutil.copy(path, tmp_path / path.name) for path in checkpoints]

    def change(phase, done, total):
        with open(copies[0], "r+b") as file:
            file.seek(-1, 2)
            file.write(b"\x55")

    with pytest.raises(BF16CodecsError, match="changed while it was read"):
        safetensors_to_run(copies, tmp_path / "run.zarr", progress=change, **RUN)
    assert not (tmp_path / "run.zarr").exists()


@pytest.mark.parametrize("sample", [None, 1 << 20])
def test_analyzing(expected, tuned, cluster, sample):
    one = analyze(expected, tuned, sample=sample)
    with on_dask.cluster(cluster):
        many = analyze(expected, tuned, sample=sample)
    assert many.to_json() == one.to_json()
    assert [t.name for t in many.tensors] == [t.name for t in one.tensors]
    for ours, theirs in zip(many.tensors, one.tensors, strict=True):
        assert np.array_equal(ours.histogram.counts, theirs.histogram.counts)
        assert replace(ours, histogram=theirs.histogram, scales=theirs.scales) == theirs


def test_analyzing_a_damaged_run(checkpoints, tmp_path, cluster):
    store = tmp_path / "run.zarr"
    safetensors_to_run(checkpoints, store, **RUN)
    chunk = next(p for p in sorted((store / "always").rglob("c*0*")) if p.is_file())
    content = bytearray(chunk.read_bytes())
    content[-3] ^= 1
    chunk.write_bytes(content)
    one = analyze(store)
    with on_dask.cluster(cluster):
        many = analyze(store)
    assert one.damage
    assert many.damage == one.damage
    assert many.to_json() == one.to_json()


def test_a_job_for_each_file(shards, expected, tuned, tmp_path, cluster, monkeypatch):
    """As with models of many files, which are hashed while they are encoded or written."""
    for module in ("encoding", "restore"):
        monkeypatch.setattr(f"bf16codecs.convert.{module}.LEAST_FILES", 1)
    shutil.copytree(expected, tmp_path / "base.zarr")
    with on_dask.cluster(cluster):
        safetensors_to_zarr(shards, tmp_path / "m.zarr", **CHUNKS)
        safetensors_to_zarr(tuned, tmp_path / "tuned.zarr", base=tmp_path / "base.zarr", **CHUNKS)
        zarr_to_safetensors(tmp_path / "tuned.zarr", tmp_path / "back")
        with pytest.raises(BF16CodecsError, match="b/weight"):
            zarr_to_safetensors(damaged(expected, tmp_path), tmp_path / "other")
    assert_same_files(tmp_path / "m.zarr", expected)
    assert_same_files(tmp_path / "back", tuned)
    assert not (tmp_path / "other").exists()
    verify_store(tmp_path / "tuned.zarr", tuned)


def test_what_one_process_alone_can_read(tmp_path, here):
    """Tensors in memory, which no worker sees."""
    torch_files = pytest.importorskip("bf16codecs.torch.files")
    torch = pytest.importorskip("torch")
    torch_files.save_file({"w": torch.ones(3, 4)}, tmp_path / "m.zarr")
    verify_store(tmp_path / "m.zarr")


@pytest.mark.slow
def test_commands(shards, expected, tmp_path, processes, run_python):
    address = processes.scheduler.address
    shutil.copytree(shards, tmp_path / "hf")

    def command(name, *arguments):
        code = f"import sys; from bf16codecs.cli import {name}; {name}(sys.argv[1:])"
        return run_python(code, *map(str, arguments), "--dask", address).stdout

    assert "verified" in command("st2h5", shards, tmp_path / "m.h5")
    assert "in " in command("h52st", tmp_path / "m.h5", tmp_path / "back")
    assert_same_files(tmp_path / "back", shards)
    command("zarr2st", expected, tmp_path / "again")
    assert_same_files(tmp_path / "again", shards)
    assert "intact" in command("main", "verify", expected, shards)
    assert "3 tensors" in command("main", "analyze", expected)
    command("main", "pack-hf", tmp_path / "hf", tmp_path / "packed")
    command("main", "pack-hf", tmp_path / "packed", tmp_path / "unpacked", "--restore")
    assert_same_files(tmp_path / "unpacked", shards)
    assert "1 converted" in command("main", "fleet", shards, tmp_path / "stores")
