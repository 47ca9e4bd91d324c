"""Appends to runs in HDF5 that fail, or that others read beside."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest

import bf16codecs
from bf16codecs import _journal, _journaled
from bf16codecs._journal import Change, journal_of, write_at
from bf16codecs._journaled import JournaledFile
from bf16codecs.convert import append_to_run, safetensors_to_run, verify_store
from folders import names_in
from lazy_models import write_safetensors

NAMES = [f"layer.{i}.weight" for i in range(5)]


def checkpoint(folder: Path, step: int) -> Path:
    """Write a checkpoint that drifts."""
    path = folder / f"step{step}.safetensors"
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(0, 0.02, (16, 64)) for name in NAMES}
    rng = np.random.default_rng(1)
    for array in arrays.values():
        array += step * rng.normal(0, 1e-4, array.shape)
    write_safetensors(path, {n: a.astype(ml_dtypes.bfloat16) for n, a in arrays.items()})
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of two steps."""
    for step in range(2):
        append_to_run(checkpoint(tmp_path, step), tmp_path / "run.h5", as_hdf5=True)
    return tmp_path / "run.h5"


def steps_of(run: Path) -> list[int]:
    """Return a run's steps, all of which are sound."""
    with bf16codecs.open_run(run) as opened:
        steps = opened.steps
    verify_store(run)
    return steps


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("when", ["first", "middle", "after"])
def test_failure_when_it_is_carried_out(run, tmp_path, monkeypatch, error, when):
    before = run.read_bytes()
    with monkeypatch.context() as patch:
        if when == "after":
            patch.setattr(_journal.Journal, "remove", Mock(side_effect=error))
        else:
            patch.setattr(_journal, "write_at", failing_at(2 if when == "first" else 4, error))
        with pytest.raises(type(error), match=r"journal|^$|full") as caught:
            append_to_run(checkpoint(tmp_path, 2), run)
    if when != "after" and isinstance(error, OSError):
        assert str(run) in str(caught.value)
        assert "complete in its journal" in str(caught.value)
    assert run.read_bytes() != before
    assert steps_of(run) == [0, 1, 2]
    assert not journal_of(run).exists()
    append_to_run(checkpoint(tmp_path, 3), run)
    assert steps_of(run) == [0, 1, 2, 3]


def failing_at(count, error):
    """Return a `write_at` that fails the count-th time."""
    left = [count]

    def write(file, at, data):
        left[0] -= 1
        if left[0] == 0:
            raise error
        write_at(file, at, data)

    return write


@pytest.mark.parametrize("count", [1, 2, 5])
def test_full_disk(run, tmp_path, monkeypatch, count):
    before = run.stat().st_size
    error = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(_journaled, "write_at", failing_at(count, error))
        with pytest.raises(OSError, match="No space left on device; free some space") as caught:
            append_to_run(checkpoint(tmp_path, 2), run)
    assert caught.value.filename == str(run)
    # What went into the room of chunks is seen by nobody.
    assert run.stat().st_size == before
    assert steps_of(run) == [0, 1]
    assert names_in(tmp_path) == {"run.h5", *(f"step{i}.safetensors" for i in range(3))}


@pytest.mark.parametrize("group", [1, 2, 4])
def test_reader_reads_on_what_it_has_not_touched(tmp_path, group):
    run, last = tmp_path / "run.h5", 6 * group
    append_to_run(checkpoint(tmp_path, 0), run, keyframe_every=group, as_hdf5=True)
    with bf16codecs.open_run(run) as reader:
        expected = reader[NAMES[0]][0]
        for step in range(1, last):
            append_to_run(checkpoint(tmp_path, step), run)
        assert reader.steps == [0]
        with bf16codecs.open_model(tmp_path / "step0.safetensors") as first:
            for name in NAMES:
                assert reader[name][:].tobytes() == first[name][:].tobytes()
        assert reader[NAMES[0]][0].tobytes() == expected.tobytes()
    assert steps_of(run) == list(range(last))


def test_what_a_killed_append_left_is_not_journalled(run, tmp_path, monkeypatch):
    sizes = []
    to_bytes = Change.to_bytes
    monkeypatch.setattr(
        Change, "to_bytes", lambda self: sizes.append(len(to_bytes(self))) or to_bytes(self)
    )
    with open(run, "ab") as file:
        file.write(bytes(range(256)) * 4000)
    append_to_run(checkpoint(tmp_path, 2), run)
    append_to_run(checkpoint(tmp_path, 3), run)
    assert steps_of(run) == [0, 1, 2, 3]
    assert run.stat().st_size < 300_000
    assert max(sizes) < 2 * min(sizes)


def test_replaced_with_a_journal_left(run, tmp_path, monkeypatch):
    left = tmp_path / "left"
    with monkeypatch.context() as patch:
        patch.setattr(Change, "carry_out", lambda *_: os.link(journal_of(run), left))
        append_to_run(checkpoint(tmp_path, 2), run)
    # As if the process had been killed: the journal is complete, and nothing of it is done.
    os.replace(left, journal_of(run))
    safetensors_to_run([tmp_path / "step0.safetensors"], run, as_hdf5=True, overwrite=True)
    assert not journal_of(run).exists()
    assert steps_of(run) == [0]


def test_not_replaced_while_it_is_appended_to(run, tmp_path):
    file = JournaledFile(run, durable=False)
    with pytest.raises(BlockingIOError, match="another process is appending"):
        safetensors_to_run([tmp_path / "step0.safetensors"], run, as_hdf5=True, overwrite=True)
    file.abandon()
    assert steps_of(run) == [0, 1]


def test_by_a_link(run, tmp_path):
    link = tmp_path / "link.h5"
    link.symlink_to(run)
    append_to_run(checkpoint(tmp_path, 2), link)
    assert link.is_symlink()
    assert steps_of(run) == steps_of(link) == [0, 1, 2]
