"""Working folders that others planted, swapped or filled."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from bf16codecs import _held, _lock, _rename, _replace
from bf16codecs.convert import safetensors_to_zarr
from folders import files_in, names_in
from models import write_model

POSIX = pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "source", [("a", "BF16", (64, 8))])


def planted(folder: Path) -> Path:
    """Make a folder that merely has the name of a working folder."""
    path = folder / f".bf16codecs-{secrets.token_hex(8)}.tmp"
    path.mkdir()
    return path


@pytest.mark.parametrize("lock", [None, b"", b"thesis", b"another-machine"])
@pytest.mark.parametrize("name", ["results", "new", "old"])
def test_folders_without_a_signed_lock_are_left_alone(
    folder: Path, source: Path, name: str, lock: bytes | None
) -> None:
    path = planted(folder) / name
    path.mkdir()
    (path / "thesis.txt").write_text("x")
    if lock is not None:
        (path.parent / "lock").write_bytes(lock)
        os.utime(path.parent / "lock", (time.time() - 8 * 86400,) * 2)
    before = files_in(folder)
    safetensors_to_zarr(source, folder / "m.zarr")
    assert {n: c for n, c in files_in(folder).items() if not n.startswith("m.zarr")} == before


@pytest.mark.parametrize("lock", [None, b""])
def test_writers_that_die_at_once(folder: Path, lock: bytes | None) -> None:
    path = planted(folder)
    if lock is not None:
        (path / "lock").write_bytes(lock)
    _replace.recover(folder)
    assert names_in(folder) == set()


def test_only_known_names_are_removed(folder: Path) -> None:
    """Of the dead and of the living."""
    for is_dead in (True, False):
        working = _replace.WorkingFolder.make(folder, durable=False)
        (working.path / "thesis.txt").write_text("x")
        working.new.mkdir()
        if is_dead:
            working.release()
            _replace.recover(folder)
        else:
            assert working.close() is not None
        assert names_in(working.path) == {"thesis.txt"}
        shutil.rmtree(working.path)


@POSIX
@pytest.mark.parametrize("is_dead", [True, False])
def test_folder_that_is_swapped(
    folder: Path, tmp_path: Path, is_dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write beside it leads its removal to what another user has."""
    working = _replace.WorkingFolder.make(folder, durable=False)
    working.new.write_text("y")
    precious = tmp_path / "precious"
    shutil.copytree(working.path, precious)
    (precious / "thesis.txt").write_text("x")
    before = files_in(precious)

    def swap() -> None:
        working.path.rename(folder / "moved")
        working.path.symlink_to(precious)

    if is_dead:
        working.release()
        adopt = _replace.WorkingFolder.adopt.__func__  # type: ignore[attr-defined]

        def adopt_and_swap(kind: Any, path: Path) -> Any:
            dead = adopt(kind, path)
            swap()
            return dead

        monkeypatch.setattr(_replace.WorkingFolder, "adopt", classmethod(adopt_and_swap))
        _replace.recover(folder)
    else:
        swap()
        assert working.close() is not None
    assert files_in(precious) == before
    assert names_in(folder / "moved") == set()


@POSIX
def test_systems_without_names_in_open_folders(
    folder: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_held, "_HAS_AT", False)
    working = _replace.WorkingFolder.make(folder, durable=False)
    shutil.copytree(working.path, tmp_path / "precious")
    (tmp_path / "precious" / "new").write_text("x")
    working.path.rename(folder / "moved")
    working.path.symlink_to(tmp_path / "precious")
    assert working.close() is not None
    assert names_in(tmp_path / "precious") == {"lock", "new"}
    working.path.unlink()
    (folder / "moved").rename(working.path)
    for system_call in (_rename._system_call, lambda: None):
        monkeypatch.setattr(_rename, "_system_call", system_call)
        safetensors_to_zarr(source, folder / "m.zarr", overwrite=True)
        safetensors_to_zarr(source, folder / "m.zip", overwrite=True)
        assert names_in(folder) == {"m.zarr", "m.zip"}


@POSIX
def test_folder_that_is_swapped_before_it_is_opened(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = _replace.WorkingFolder.make(folder, durable=False)
    working.new.write_text("y")
    working.release()
    working.path.rename(tmp_path / "moved")
    working.path.symlink_to(tmp_path / "moved")
    monkeypatch.setattr(_replace, "_working_folders", lambda folder: [working.path])
    _replace.recover(folder)
    assert names_in(tmp_path / "moved") == {"lock", "new"}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners of POSIX")
def test_folders_of_other_users_are_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = _replace.WorkingFolder.make(folder, durable=False)
    working.release()
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(folder).st_uid + 1)
    _replace.recover(folder)
    assert names_in(working.path) == {"lock"}


def test_folder_that_is_taken_for_a_new_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process looks when the lock is gone and the folder is not."""
    working = _replace.WorkingFolder.make(folder, durable=False)
    remove = _lock.LifeLock.remove

    def remove_and_recover(lock: _lock.LifeLock) -> None:
        remove(lock)
        monkeypatch.undo()
        _replace.recover(folder)

    monkeypatch.setattr(_lock.LifeLock, "remove", remove_and_recover)
    assert working.close() is None
    assert names_in(folder) == set()


@POSIX
@pytest.mark.parametrize("kind", ["pipe", "link", "huge"])
def test_note_that_is_not_one(folder: Path, kind: str) -> None:
    working = _replace.WorkingFolder.make(folder, durable=False)
    (working.path / "old").mkdir()
    note = working.path / "target"
    if kind == "pipe":
        os.mkfifo(note)
    elif kind == "link":
        (folder.parent / "name").write_text("m.zarr")
        note.symlink_to(folder.parent / "name")
    else:
        note.write_text("m.zarr")
        os.truncate(note, 1 << 34)
    working.release()
    _replace.recover(folder)
    assert names_in(folder) == set()


@pytest.mark.parametrize("exchange", [True, False])
def test_what_takes_the_name_in_the_last_moment_stays(
    folder: Path, source: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may be replaced makes room, between the look and the step, for what may not."""
    target = folder / "m.zarr"
    safetensors_to_zarr(source, target)
    if not exchange:
        monkeypatch.setattr(_rename, "_system_call", lambda: None)
    step = _replace.exchange

    def take_and_exchange(*args: Any) -> bool:
        monkeypatch.setattr(_replace, "exchange", step)
        shutil.rmtree(target)
        target.mkdir()
        (target / "thesis.txt").write_text("x")
        return step(*args)

    monkeypatch.setattr(_replace, "exchange", take_and_exchange)
    with pytest.raises(FileExistsError, match="is not overwritten") as caught:
        safetensors_to_zarr(source, target, overwrite=True)
    assert caught.value.filename == str(target)
    assert files_in(folder) == {"m.zarr": None, "m.zarr/thesis.txt": b"x"}


def test_what_cannot_be_put_back_is_kept(
    folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = folder / "m.zarr"
    working = _replace.WorkingFolder.make(folder, durable=False)
    working.new.mkdir()
    target.write_text("x")
    looks = []

    def check(path: Path) -> None:
        looks.append(path)
        if path != target:
            monkeypatch.setattr(_replace, "exchange", refuse)
            raise FileExistsError

    def refuse(*args: Any) -> bool:
        raise PermissionError(errno.EPERM, "not allowed", str(target))

    with pytest.raises(PermissionError, match=r"what was there is now .*: not allowed"):
        working.publish(target, check)
    assert working.close() is not None
    assert len(looks) == 2
    monkeypatch.undo()
    _replace.recover(folder)
    assert working.new.read_text() == "x"
