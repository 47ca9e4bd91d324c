"""One process at a time appends to a run in a folder, with locks and without.

test_contract.py has another writer at every moment of an append.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bf16codecs.convert import append_to_run, safetensors_to_run, safetensors_to_zarr, verify_store
from bf16codecs.errors import StoreError
from folders import files_in
from run_stores import drifting, make_run, restored, write_checkpoints

fcntl = pytest.importorskip("fcntl", reason="locks of POSIX")
LOCK = "step/.appending/lock"


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    arrays = {n: {"w": drifting((16, 8), n)} for n in range(3)}
    return write_checkpoints(tmp_path_factory.mktemp("steps"), arrays)


@pytest.fixture
def run(steps: list[Path], tmp_path: Path) -> Path:
    return make_run("zarr 3", steps[:1], tmp_path)


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refuse)


def append(steps: list[Path], run: Path, beside: Callable[[], object]) -> None:
    """Append to a run; call a function once during that."""
    calls: list[str] = []

    def call(phase: str, done: int, total: int) -> None:
        if not calls:
            calls.append(phase)
            beside()

    append_to_run(steps[1], run, progress=call)
    assert calls


def refused(steps: list[Path], run: Path, match: str) -> None:
    """Append to and replace a run, and expect that it stays as it is."""
    before = files_in(run)
    with pytest.raises(BlockingIOError, match=match):
        append_to_run(steps[1], run)
    with pytest.raises(BlockingIOError, match=match):
        safetensors_to_run(steps[1:], run, overwrite=True)
    assert files_in(run) == before


def grows(steps: list[Path], run: Path, folder: Path) -> None:
    """Append to a run, and expect that nothing else is left."""
    append_to_run(steps[1], run)
    ends(steps, run, folder)


def ends(steps: list[Path], run: Path, folder: Path) -> None:
    """Expect a run of two steps, and nothing else."""
    assert not (run / LOCK).parent.exists()
    assert restored(run, folder) == {p.name: p.read_bytes() for p in steps[:2]}


def test_two_at_once(steps: list[Path], run: Path, tmp_path: Path) -> None:
    append(steps, run, lambda: refused(steps, run, r"try again when that is done: .*run\.zarr"))
    ends(steps, run, tmp_path / "back")


def test_leftovers_of_a_dead_process(steps: list[Path], run: Path, tmp_path: Path) -> None:
    (run / LOCK).parent.mkdir()
    (run / LOCK).touch()
    grows(steps, run, tmp_path / "back")
    safetensors_to_run(steps, run, overwrite=True)


@pytest.mark.usefixtures("without_locks")
def test_without_locks(steps: list[Path], run: Path, tmp_path: Path) -> None:
    """As on network file systems, or where only files that are open for reading can be locked."""
    match = r"if there is none, remove .*run\.zarr.step..appending.lock: .*run\.zarr"
    append(steps, run, lambda: refused(steps, run, match))
    ends(steps, run, tmp_path / "back")


@pytest.mark.usefixtures("without_locks")
def test_a_kill_without_locks(steps: list[Path], run: Path, tmp_path: Path) -> None:
    (run / LOCK).parent.mkdir()
    (run / LOCK).touch()
    refused(steps, run, "or was killed: files cannot be locked here; if there is none, remove")
    (run / LOCK).unlink()
    grows(steps, run, tmp_path / "back")


@pytest.mark.parametrize("what", ["file", "folder"])
def test_who_had_the_lock_is_done_meanwhile(
    steps: list[Path], run: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / LOCK).parent.mkdir()
    (run / LOCK).touch()
    flock = fcntl.flock

    def wait(descriptor: int, operation: int) -> None:
        """Lock the file that was opened, when it has no name any more."""
        monkeypatch.undo()
        (run / LOCK).unlink()
        (run / LOCK).parent.rmdir()
        if what == "file":
            (run / LOCK).parent.mkdir()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", wait)
    append(steps, run, lambda: refused(steps, run, "another process"))
    assert fcntl.flock is flock
    ends(steps, run, tmp_path / "back")


def test_what_is_no_run_gets_no_lock(steps: list[Path], tmp_path: Path) -> None:
    model = tmp_path / "model.zarr"
    safetensors_to_zarr(steps[0], model)
    before = files_in(model)
    with pytest.raises(StoreError, match="one model, not a run"):
        append_to_run(steps[1], model)
    assert files_in(model) == before
    verify_store(model)


def test_steps_that_are_appended_while_a_run_is_verified(steps: list[Path], tmp_path: Path) -> None:
    run = make_run("zarr 3", steps[:1], tmp_path)
    left = steps[1:]

    def append_all(phase: str, done: int, total: int) -> None:
        while left:
            append_to_run(left.pop(0), run)

    assert verify_store(run, progress=append_all).tensors == 1
    assert not left
