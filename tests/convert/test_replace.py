"""Targets and what is beside them: dead writers, other writers, what cannot be removed."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bf16codecs import _lock, _rename, _replace, cli, open_model
from bf16codecs.convert import (
    safetensors_to_hdf5,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import LeftoverWarning
from folders import files_in, names_in

POSIX = pytest.mark.skipif(os.name != "posix", reason="kills, and permissions of POSIX")

CONVERT: dict[str, Callable[..., Any]] = {
    "m.zarr": safetensors_to_zarr,
    "m.zip": safetensors_to_zarr,
    "m.h5": safetensors_to_hdf5,
}


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rename, "_system_call", lambda: None)


def dead_between_renames(folder: Path, old: Path, new: Path, name: str = "m.zarr") -> Path:
    """Leave what a writer leaves that dies when the old store is aside and the new one is not."""
    working = _replace.WorkingFolder.make(folder, durable=False)
    safetensors_to_zarr(old, working.path / "old")
    safetensors_to_zarr(new, working.new)
    (working.path / "target").write_bytes(name.encode())
    working.release()
    return working.path


READERS: dict[str, Callable[[Path], object]] = {
    "info": lambda store: CliRunner().invoke(cli.main, ["info", str(store)]),
    "verify": verify_store,
    "restore": lambda store: zarr_to_safetensors(store, store.with_name("back")),
    "open_model": lambda store: open_model(store).close(),
    "convert": lambda store: safetensors_to_zarr(
        store.parents[1] / "sources" / "new", store, overwrite=True
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_was_begun_is_finished(folder: Path, old: Path, new: Path, reader: str) -> None:
    dead_between_renames(folder, old, new)
    READERS[reader](folder / "m.zarr")
    assert names_in(folder) - {"back"} == {"m.zarr"}
    verify_store(folder / "m.zarr", new)


def test_source_that_was_being_replaced(folder: Path, old: Path, tmp_path: Path) -> None:
    working = _replace.WorkingFolder.make(folder, durable=False)
    for name in ("old", "new"):
        (working.path / name).mkdir()
        shutil.copy(old, working.path / name / "a.safetensors")
    (working.path / "target").write_bytes(b"shards")
    working.release()
    safetensors_to_zarr(folder / "shards", tmp_path / "m.zarr")
    assert names_in(folder) == {"shards"}


def test_old_store_without_a_new_one_comes_back(folder: Path, old: Path, new: Path) -> None:
    shutil.rmtree(dead_between_renames(folder, old, new) / "new")
    verify_store(folder / "m.zarr", old)
    assert names_in(folder) == {"m.zarr"}


def test_target_that_was_made_since_stays(folder: Path, old: Path, new: Path) -> None:
    dead = dead_between_renames(folder, old, old)
    safetensors_to_zarr(new, folder.parent / "made")
    (folder.parent / "made").rename(folder / "m.zarr")
    verify_store(folder / "m.zarr", new)
    assert dead.exists(), "reading an existing store removes nothing"
    _replace.recover(folder)
    verify_store(folder / "m.zarr", new)
    assert names_in(folder) == {"m.zarr"}


def test_reading_what_is_missing_removes_nothing_else(folder: Path, old: Path, new: Path) -> None:
    other = dead_between_renames(folder, old, new, "other")
    unfinished = _replace.WorkingFolder.make(folder, durable=False)
    unfinished.release()
    with pytest.raises(FileNotFoundError):
        verify_store(folder / "m.zarr")
    assert names_in(folder) == {other.name, unfinished.path.name}


@pytest.mark.parametrize("name", ["../targets2", "/etc/x", "..", ".", "", "a/b", "a\0b"])
def test_journal_that_leads_elsewhere(folder: Path, old: Path, new: Path, name: str) -> None:
    dead_between_renames(folder, old, new, name)
    before = names_in(folder.parent)
    _replace.recover(folder)
    assert names_in(folder.parent) == before
    assert names_in(folder) == set()


@POSIX
def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (folder / f".bf16codecs-{secrets.token_hex(8)}.tmp").symlink_to(precious)
    working = _replace.WorkingFolder.make(folder, durable=False)
    working.new.symlink_to(precious)
    (working.path / "lock").unlink()
    (working.path / "lock").symlink_to(precious / "made")
    working.release()
    _replace.recover(folder)
    assert files_in(precious) == {"file": b"x"}


def test_living_writers_are_left_alone(folder: Path, old: Path) -> None:
    living = _replace.WorkingFolder.make(folder, durable=False)
    living.new.mkdir()
    _replace.recover(folder)
    assert names_in(living.path) == {"lock", "new"}
    assert living.close() is None
    assert names_in(folder) == set()


@pytest.mark.parametrize("text", ["another-machine", "not locked"])
def test_writers_on_other_machines_get_a_week(folder: Path, text: str) -> None:
    """Their locks may not be seen here."""
    working = _replace.WorkingFolder.make(folder, durable=False)
    working.release()
    lock = working.path / "lock"
    lock.write_text(f"bf16codecs {text}")
    _replace.recover(folder)
    assert lock.exists()
    os.utime(lock, (time.time() - 8 * 86400,) * 2)
    _replace.recover(folder)
    assert names_in(folder) == set()


def test_without_locks_nothing_is_removed(
    folder: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    dead = _replace.WorkingFolder.make(folder, durable=False)
    dead.release()
    monkeypatch.setattr(_lock, "try_lock", refuse)
    safetensors_to_zarr(old, folder / "m.zarr")
    assert names_in(folder) == {"m.zarr", dead.path.name}


def test_folders_of_others_are_left_alone(folder: Path, old: Path) -> None:
    """An earlier development version's names do not tell whether a writer is alive."""
    names = {".bf16codecs-123-0123abcd.old", ".bf16codecs-123-0123abcd.tmp", ".bf16codecs-x.tmp"}
    for name in names:
        (folder / name).mkdir()
    safetensors_to_zarr(old, folder / "m.zarr")
    assert names_in(folder) == {"m.zarr", *names}


@pytest.mark.parametrize("target", CONVERT)
def test_name_that_is_taken_in_between(
    folder: Path, old: Path, new: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two writers without overwrite, the first one to finish wins."""
    for patched in (False, True):
        if patched:
            monkeypatch.setattr(_rename, "_system_call", lambda: None)

        def take(phase: str, done: int, total: int) -> None:
            if phase == "verify" and not (folder / target).exists():
                CONVERT[target](old, folder / target)

        with pytest.raises(FileExistsError):
            CONVERT[target](new, folder / target, progress=take)
        verify_store(folder / target, old)
        assert names_in(folder) == {target}
        CONVERT[target](new, folder / target, overwrite=True)
        verify_store(folder / target, new)
        (shutil.rmtree if target == "m.zarr" else os.unlink)(folder / target)


@pytest.mark.parametrize("target", CONVERT)
@pytest.mark.parametrize("exchange", [True, False])
def test_replaced_while_replacing(
    folder: Path,
    old: Path,
    new: Path,
    target: str,
    exchange: bool,
    request: pytest.FixtureRequest,
) -> None:
    if not exchange:
        request.getfixturevalue("no_exchange")
    CONVERT[target](old, folder / target)
    calls = []

    def replace(phase: str, done: int, total: int) -> None:
        if not calls:
            calls.append(phase)
            CONVERT[target](old, folder / target, overwrite=True)

    CONVERT[target](new, folder / target, overwrite=True, progress=replace)
    assert calls
    verify_store(folder / target, new)
    assert names_in(folder) == {target}


def test_old_store_that_stays_is_mentioned(
    folder: Path, old: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safetensors_to_zarr(old, folder / "m.zarr")
    remove = os.unlink

    def refuse(path: Any, *args: Any, **options: Any) -> None:
        if os.path.basename(path) == "c.0.0":
            raise PermissionError(errno.EACCES, "not allowed", path)
        remove(path, *args, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.warns(LeftoverWarning, match="not allowed") as caught:
        safetensors_to_zarr(new, folder / "m.zarr", overwrite=True)
    (left,) = names_in(folder) - {"m.zarr"}
    assert str(folder / left) in str(caught[0].message)
    args = [str(old), str(folder / "m.zarr"), "--overwrite", "--quiet"]
    result = CliRunner().invoke(cli.st2zarr, args, prog_name="st2zarr")
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"st2zarr: warning: {folder / '.bf16codecs-'}")
    assert line.endswith("not allowed")
    monkeypatch.undo()
    safetensors_to_zarr(new, folder / "m.zarr", overwrite=True)
    assert names_in(folder) == {"m.zarr"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("target", CONVERT)
def test_failing_sync(
    folder: Path, old: Path, target: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        CONVERT[target](old, folder / target)
    assert caught.value.filename == str(folder / target)
    assert "; " in caught.value.strerror  # and what to do
    assert names_in(folder) == set()
    CONVERT[target](old, folder / target, sync=False)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EBUSY], ids=errno.errorcode.get)
def test_target_that_cannot_be_renamed(
    folder: Path, old: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mounted, or a folder of the image below an overlay."""

    def fail(*args: Any) -> bool:
        raise OSError(number, os.strerror(number))

    safetensors_to_zarr(old, folder / "m.zarr")
    monkeypatch.setattr(_replace, "exchange", fail)
    with pytest.raises(OSError, match="remove it first") as caught:
        safetensors_to_zarr(old, folder / "m.zarr", overwrite=True)
    assert caught.value.filename == str(folder / "m.zarr")
    verify_store(folder / "m.zarr", old)


@POSIX
@pytest.mark.parametrize("what", ["folder", "working folder"])
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("target", CONVERT)
def test_folder_that_is_moved_meanwhile(
    folder: Path, old: Path, new: Path, target: str, verify: bool, what: str
) -> None:
    """What is written after it must not be half of a store."""
    CONVERT[target](old, folder / target)
    moved = folder.with_name("moved")

    def move(phase: str, done: int, total: int) -> None:
        if not moved.exists():
            (hidden,) = names_in(folder) - {target}
            (folder if what == "folder" else folder / hidden).rename(moved)
            folder.mkdir(exist_ok=True)

    options = {"chunk_size": 128, "threads": 1, "sync": False, "verify": verify, "progress": move}
    with pytest.raises(FileNotFoundError, match="moved or removed"):
        CONVERT[target](new, folder / target, overwrite=True, **options)
    verify_store((moved if what == "folder" else folder) / target, old)
    assert names_in(folder) <= {target}


@POSIX
def test_two_dots_behind_a_link(folder: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what they are to the system."""
    (folder / "far" / "near").mkdir(parents=True)
    (folder / "link").symlink_to("far/near")
    monkeypatch.chdir(folder)
    safetensors_to_zarr(old, "link/../m.zarr")
    assert names_in(folder / "far") == {"near", "m.zarr"}
    verify_store("link/../m.zarr", old)
    (folder / "m.zarr").mkdir()
    with open_model("link/../m.zarr") as model:
        assert model["a"].shape == (64, 8)
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        safetensors_to_zarr(old, "link/../m.zarr")


@POSIX
def test_places(folder: Path, old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are replaced, not what they lead to; names may be as long as any."""
    safetensors_to_zarr(old, folder / "m.zarr")
    (folder / "link").symlink_to("m.zarr")
    safetensors_to_zarr(new, folder / "link", overwrite=True)
    assert not (folder / "link").is_symlink()
    verify_store(folder / "link", new)
    verify_store(folder / "m.zarr", old)
    (folder / "dangling").symlink_to("nowhere")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError):
            safetensors_to_zarr(new, folder / "dangling", overwrite=overwrite)
    monkeypatch.chdir(folder / "m.zarr")
    safetensors_to_zarr(new, ".", overwrite=True)
    verify_store(folder / "m.zarr", new)
    with pytest.raises(ValueError, match="would replace the source"):
        safetensors_to_zarr(new, "/", overwrite=True)
    safetensors_to_zarr(new, folder / ("x" * 255))
    with pytest.raises(OSError, match="too long"):
        safetensors_to_zarr(new, folder / ("x" * 256))
    assert names_in(folder) == {"m.zarr", "link", "dangling", "x" * 255}


@POSIX
@pytest.mark.parametrize("target", CONVERT)
def test_permissions_are_those_of_new_files(folder: Path, old: Path, target: str) -> None:
    before = os.umask(0o027)
    try:
        for overwrite in (False, True):
            CONVERT[target](old, folder / target, overwrite=overwrite)
            mode = (folder / target).stat().st_mode & 0o777
            assert mode == (0o750 if target == "m.zarr" else 0o640)
    finally:
        os.umask(before)


@POSIX
@pytest.mark.parametrize("overwrite", [True, False])
def test_target_that_is_replaced_while_it_is_looked_at(
    folder: Path, old: Path, new: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there is a folder without anything by then."""
    target = folder / "m.zarr"
    safetensors_to_zarr(old, target)
    safetensors_to_zarr(old, folder / "other.zarr")
    names = os.listdir
    seen: list[Any] = []

    def replaced(path: Any) -> list[str]:
        if path == target and not seen:
            seen.append(path)
            target.rename(folder / "gone")
            (folder / "other.zarr").rename(target)
            return []
        return names(path)

    monkeypatch.setattr(os, "listdir", replaced)
    if overwrite:
        safetensors_to_zarr(new, target, overwrite=True)
    else:
        with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
            safetensors_to_zarr(new, target)
    assert seen
    verify_store(target, new if overwrite else old)
