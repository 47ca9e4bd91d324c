"""Runs in HDF5: files that grow in place, whole at every moment."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

import bf16codecs
import bf16codecs.hdf5
from bf16codecs._journal import JOURNAL_SUFFIX
from bf16codecs._journaled import JournaledFile
from bf16codecs.convert import (
    append_to_run,
    hdf5_to_safetensors,
    safetensors_to_run,
    verify_store,
)
from bf16codecs.errors import StoreError
from checkout import package_environment
from lazy_models import write_safetensors
from models import every_dtype
from run_stores import restored


def checkpoints(folder: Path, count: int) -> list[Path]:
    """Write checkpoints that drift, with a tensor that comes at step 2 and goes at step 5."""
    rng = np.random.default_rng(0)
    weights, paths = rng.normal(0, 0.02, (64, 96)), []
    for step in range(count):
        rounded = weights.astype("bfloat16")
        tensors = {"a.weight": rounded, "b": rounded[0], "scalar": np.array(rounded[0, 0])}
        if 2 <= step < 5:
            tensors["late"] = (weights[:8] * 2).astype("bfloat16")
            tensors["ints"] = np.arange(50, dtype=np.int32) * step
        paths.append(write_safetensors(folder / f"step{step}.safetensors", tensors))
        weights = weights + rng.normal(0, 1e-4, weights.shape)
    return paths


def same_files(run: Path, paths: list[Path]) -> None:
    """Compare all steps of a run with the original files."""
    assert restored(run, run.with_name("all")) == {p.name: p.read_bytes() for p in paths}


@pytest.mark.parametrize("group", [1, 2, 3, 16])
def test_series_and_appends(tmp_path: Path, group: int) -> None:
    paths = checkpoints(tmp_path, 7)
    series, grown = tmp_path / "series.h5", tmp_path / "grown.h5"
    safetensors_to_run(paths, series, keyframe_every=group, as_hdf5=True)
    for path in paths:
        append_to_run(path, grown, keyframe_every=group, as_hdf5=True)
    for run in (series, grown):
        verify_store(run)
        same_files(run, paths)
        hdf5_to_safetensors(f"{run}@3", tmp_path / "3", overwrite=True)
        assert (tmp_path / "3").read_bytes() == paths[3].read_bytes()
    assert not list(tmp_path.glob(f"*{JOURNAL_SUFFIX}"))


def test_every_dtype(tmp_path: Path) -> None:
    path = every_dtype(tmp_path / "step1.safetensors")
    other = every_dtype(tmp_path / "step2.safetensors")
    run = tmp_path / "run.h5"
    append_to_run(path, run, as_hdf5=True)
    append_to_run(other, run)
    same_files(run, [path, other])


def test_reading_by_hdf5_alone(tmp_path: Path) -> None:
    paths = checkpoints(tmp_path, 6)
    run = tmp_path / "run.h5"
    safetensors_to_run(paths[:4], run, keyframe_every=2, as_hdf5=True)
    for path in paths[4:]:
        append_to_run(path, run)
    with bf16codecs.open_run(run) as ours, h5py.File(run, "r") as file:
        dataset = file["a/weight"]
        assert dataset.shape == (6, 64, 96)
        assert dataset.maxshape == (None, 64, 96)
        assert dataset.dims[0].keys() == ["step"]
        assert list(file["step"]) == [0, 1, 2, 3, 4, 5]
        for name, path in (("a.weight", "a/weight"), ("late", "late"), ("scalar", "scalar")):
            # h5py reads them as float32, which holds every bfloat16.
            values = np.asarray(file[path].astype("f4")[...])
            np.testing.assert_array_equal(values, ours[name][...].astype("f4"))
        assert np.isnan(file["late"].astype("f4")[0]).all()
        assert ours["late"].steps == [2, 3, 4]
        assert (ours["ints"][0] == 0).all()
        np.testing.assert_array_equal(ours["ints"][3], np.arange(50) * 3)


def test_chunks_are_those_of_zarr(tmp_path: Path) -> None:
    paths = checkpoints(tmp_path, 3)
    safetensors_to_run(paths, tmp_path / "run.zarr")
    safetensors_to_run(paths, tmp_path / "run.h5", as_hdf5=True)
    with h5py.File(tmp_path / "run.h5", "r") as file:
        stored = file["a/weight"].id.read_direct_chunk((0, 0, 0))[1]
    assert stored == (tmp_path / "run.zarr/a/weight/c.0.0.0").read_bytes()


def test_steps_in_order_and_of_this_run(tmp_path: Path) -> None:
    paths, run = checkpoints(tmp_path, 3), tmp_path / "run.h5"
    safetensors_to_run(paths[:2], run, steps=[0, 7], as_hdf5=True)
    before = run.read_bytes()
    with pytest.raises(ValueError, match="has step 7 already"):
        append_to_run(paths[1], run, 7)
    with pytest.raises(ValueError, match="step 2 is before the last one, 7"):
        append_to_run(paths[2], run)
    with bf16codecs.open_model(paths[0]) as model:
        like_it = {name: np.zeros((3, *tensor.shape), "bfloat16") for name, tensor in model.items()}
    for arrays in ({"other": np.zeros((4, 4), "bfloat16")}, like_it):
        other = write_safetensors(tmp_path / "step9.safetensors", arrays)
        with pytest.raises(StoreError, match="is not of the run"):
            append_to_run(other, run)
    assert run.read_bytes() == before
    assert not list(tmp_path.glob(f"*{JOURNAL_SUFFIX}"))


def test_a_reader_reads_on_beside_appends(tmp_path: Path) -> None:
    paths, run = checkpoints(tmp_path, 6), tmp_path / "run.h5"
    append_to_run(paths[0], run, as_hdf5=True)
    with bf16codecs.open_run(run) as reader:
        first = reader["a.weight"][...]
        for path in paths[1:]:
            append_to_run(path, run)
        np.testing.assert_array_equal(reader["a.weight"][...].view("u2"), first.view("u2"))
        assert reader.steps == [0]


def test_two_at_once(tmp_path: Path) -> None:
    paths, run = checkpoints(tmp_path, 2), tmp_path / "run.h5"
    append_to_run(paths[0], run, as_hdf5=True)
    held = JournaledFile(run, durable=False)
    with pytest.raises(BlockingIOError, match="another process is appending"):
        append_to_run(paths[1], run)
    held.abandon()
    append_to_run(paths[1], run)
    same_files(run, paths)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_killed_again_and_again(tmp_path: Path) -> None:
    paths, run = checkpoints(tmp_path, 8), tmp_path / "run.h5"
    append_to_run(paths[0], run, keyframe_every=4, as_hdf5=True)
    code = """
import sys
from bf16codecs.convert import append_to_run
print("ready", flush=True)
sys.stdin.readline()
append_to_run(sys.argv[1], sys.argv[2])
"""
    there, kills = 1, 0
    for attempt in range(18):
        child = subprocess.Popen(
            [sys.executable, "-c", code, paths[there], run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=package_environment(),
            text=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(0.003 * attempt)
        child.kill()
        child.communicate()
        kills += child.returncode == -signal.SIGKILL
        with bf16codecs.open_run(run) as opened:
            assert opened.steps in (list(range(there)), list(range(there + 1)))
            there = len(opened.steps)
        if there == len(paths):
            break
    for path in paths[there:]:
        append_to_run(path, run)
    verify_store(run)
    same_files(run, paths)
    assert kills > 5
