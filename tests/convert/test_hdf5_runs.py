"""Runs in HDF5: files that grow in place, and are whole whenever an append fails.

tests/crashes lets appends fail, or be killed, at every operation.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import bf16codecs
import bf16codecs.hdf5
from bf16codecs.convert import (
    append_to_run,
    hdf5_to_safetensors,
    safetensors_to_run,
    verify_store,
)
from bf16codecs.errors import StoreError
from bf16codecs.store.hdf5 import reader as hdf5_reader
from folders import names_in
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


def journal_of(run: Path) -> Path:
    return run.with_name(run.name + ".bf16codecs-journal")


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
    assert not list(tmp_path.glob("*journal"))


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
    with pytest.raises(ValueError, match="has step 7 already: append one after 7, the last"):
        append_to_run(paths[1], run, 7)
    with pytest.raises(ValueError, match="step 2 is before the last one, 7"):
        append_to_run(paths[2], run)
    with bf16codecs.open_model(paths[0]) as model:
        like_it = {name: np.zeros((3, *tensor.shape), "bfloat16") for name, tensor in model.items()}
    for arrays in ({"other": np.zeros((4, 4), "bfloat16")}, like_it):
        other = write_safetensors(tmp_path / "step9.safetensors", arrays)
        with pytest.raises(StoreError, match="does not belong to the run"):
            append_to_run(other, run)
    assert run.read_bytes() == before
    assert not list(tmp_path.glob("*journal"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of two steps; `checkpoints` wrote four."""
    for path in checkpoints(tmp_path, 4)[:2]:
        append_to_run(path, tmp_path / "run.h5", as_hdf5=True)
    return tmp_path / "run.h5"


def step(run: Path, number: int) -> Path:
    return run.with_name(f"step{number}.safetensors")


def steps_of(run: Path) -> list[int]:
    """Verify a run, and return its steps."""
    with bf16codecs.open_run(run) as opened:
        steps = opened.steps
    verify_store(run)
    return list(steps)


def writes(
    run: Path, monkeypatch: pytest.MonkeyPatch, at: Callable[[int, int], BaseException | None]
) -> list[int]:
    """Let writing fail: with what `at` returns for the numbers of writes so far.

    That is of those before the journal is written, and of those behind that. Returns a list that
    gets the sizes of the journals that are written.
    """
    counts, journals, write = [0, 0], [], os.write

    def counted(file: int, data: Any) -> int:
        is_journal = journal_of(run).exists() and os.path.samestat(
            os.fstat(file), journal_of(run).stat()
        )
        if is_journal:
            journals.append(len(data))
            counts[1] = 0
        else:
            counts[bool(journals)] += 1
            if error := at(*counts):
                raise error
        return write(file, data)

    monkeypatch.setattr(os, "write", counted)
    return journals


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("when", ["first", "middle", "after"])
def test_failure_when_it_is_carried_out(
    run: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, when: str
) -> None:
    before, unlink = run.read_bytes(), os.unlink

    def keep(path: Any, **options: Any) -> None:
        if Path(path).name == journal_of(run).name:
            raise error
        unlink(path, **options)

    with monkeypatch.context() as patch:
        if when == "after":
            patch.setattr(os, "unlink", keep)
        else:
            failing = 1 if when == "first" else 3
            writes(run, patch, lambda _, page: error if page == failing else None)
        with pytest.raises(type(error), match=r"journal|^$|full") as caught:
            append_to_run(step(run, 2), run)
    if when != "after" and isinstance(error, OSError):
        assert str(run) in str(caught.value)
        assert "complete in its journal" in str(caught.value)
    assert run.read_bytes() != before
    assert journal_of(run).exists()
    assert steps_of(run) == [0, 1, 2]
    assert not journal_of(run).exists()
    append_to_run(step(run, 3), run)
    assert not journal_of(run).exists()
    assert steps_of(run) == [0, 1, 2, 3]


@pytest.mark.parametrize(("failing", "is_read"), [(1, True), (3, False)])
def test_a_file_that_is_half_changed_is_not_read(
    run: Path, monkeypatch: pytest.MonkeyPatch, failing: int, is_read: bool
) -> None:
    """Before its journal was carried out: in a heap that is torn, libhdf5 goes round in circles."""
    error, read, called = OSError(errno.EIO, "broken"), hdf5_reader.hdf5_attributes, []
    with monkeypatch.context() as patch:
        writes(run, patch, lambda _, page: error if page == failing else None)
        with pytest.raises(OSError, match="complete in its journal"):
            append_to_run(step(run, 2), run)

    def noted(*args: Any) -> Any:
        called.append(args)
        return read(*args)

    monkeypatch.setattr(hdf5_reader, "hdf5_attributes", noted)
    assert steps_of(run) == [0, 1, 2]
    assert bool(called) == is_read


def test_full_disk(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run.stat().st_size
    for count in (1, 2, 5):
        error = OSError(errno.ENOSPC, "No space left on device")
        with monkeypatch.context() as patch:
            writes(run, patch, lambda new, _, c=count, e=error: e if new == c else None)
            with pytest.raises(OSError, match="No space left on device; free some space") as caught:
                append_to_run(step(run, 2), run)
        assert caught.value.filename == str(run)
        # Nobody sees what was written into the reserved space of chunks.
        assert run.stat().st_size == before, count
        assert steps_of(run) == [0, 1]
        assert names_in(run.parent) == {"run.h5", *(f"step{i}.safetensors" for i in range(4))}


@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_reader_reads_on_beside_appends(tmp_path: Path, group: int) -> None:
    paths, run = checkpoints(tmp_path, 6 * group), tmp_path / "run.h5"
    append_to_run(paths[0], run, keyframe_every=group, as_hdf5=True)
    with bf16codecs.open_run(run) as reader, bf16codecs.open_model(paths[0]) as first:
        expected = reader["a.weight"][...].tobytes()
        for path in paths[1:]:
            append_to_run(path, run)
        assert reader.steps == [0]
        assert reader["a.weight"][...].tobytes() == expected
        for name in first:  # most of them were not touched before
            assert reader[name][:].tobytes() == first[name][...].tobytes(), name
    assert steps_of(run) == list(range(6 * group))


def test_leftovers_of_a_killed_append_are_not_journalled(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = writes(run, monkeypatch, lambda *_: None)
    with open(run, "ab") as file:
        file.write(bytes(range(256)) * 4000)
    for number in (2, 3):
        append_to_run(step(run, number), run)
    assert steps_of(run) == [0, 1, 2, 3]
    assert run.stat().st_size < 300_000
    assert max(sizes) < 2 * min(sizes)


def test_replaced_with_a_journal_left(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        # The journal is complete, and nothing of it is done.
        writes(run, patch, lambda _, page: OSError(errno.EIO, "dead") if page else None)
        with pytest.raises(OSError, match="journal"):
            append_to_run(step(run, 2), run)
    assert journal_of(run).exists()
    safetensors_to_run([step(run, 0)], run, as_hdf5=True, overwrite=True)
    assert not journal_of(run).exists()
    assert steps_of(run) == [0]


def test_two_at_once(run: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="locks of POSIX")
    with open(journal_of(run), "wb") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)  # as an append does
        with pytest.raises(BlockingIOError, match="another process is writing to it"):
            append_to_run(step(run, 2), run)
        with pytest.raises(BlockingIOError, match="another process is writing to it"):
            safetensors_to_run([step(run, 0)], run, as_hdf5=True, overwrite=True)
    assert steps_of(run) == [0, 1]
    append_to_run(step(run, 2), run)
    same_files(run, [step(run, number) for number in range(3)])


def test_by_a_link(run: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.h5"
    link.symlink_to(run)
    append_to_run(step(run, 2), link)
    assert link.is_symlink()
    assert steps_of(run) == steps_of(link) == [0, 1, 2]
