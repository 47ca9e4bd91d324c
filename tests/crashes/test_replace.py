"""Targets and files beside them: dead and other writers, planted folders, failing removals.

test_contract.py tries the same at every operation; here are the cases that need a plan.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from bf16codecs import cli, open_model
from bf16codecs._files import publish as _replace
from bf16codecs.convert import (
    safetensors_to_hdf5,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import LeftoverWarning
from folders import files_in, names_in
from invoked import done
from models import write_model

POSIX = pytest.mark.skipif(os.name != "posix", reason="kills, and permissions of POSIX")

CONVERT: dict[str, Callable[..., Any]] = {
    "m.zarr": safetensors_to_zarr,
    "m.zip": safetensors_to_zarr,
    "m.h5": safetensors_to_hdf5,
}


def dead_between_renames(folder: Path, old: Path, new: Path, name: str = "m.zarr") -> Path:
    """Leave the files of a writer that died after it had moved the old store aside."""
    working = _replace.WorkingFolder.make(folder, durable=False)
    safetensors_to_zarr(old, working.path / "old")
    safetensors_to_zarr(new, working.new)
    (working.path / "target").write_bytes(name.encode())
    working.release()
    return working.path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    (tmp_path / "sources").mkdir()
    return write_model(tmp_path / "sources" / "old", [("a", "BF16", (64, 8))], 1)


@pytest.fixture
def new(old: Path) -> Path:
    return write_model(old.with_name("new"), [("a", "BF16", (64, 8))], 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "targets").mkdir()
    return tmp_path / "targets"


def raise_error(number: int) -> Any:
    raise OSError(number, os.strerror(number))


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


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
def test_an_interrupted_replacement_is_finished(
    folder: Path, old: Path, new: Path, reader: str
) -> None:
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


def test_reading_a_missing_store_removes_nothing_else(folder: Path, old: Path, new: Path) -> None:
    other = dead_between_renames(folder, old, new, "other")
    unfinished = _replace.WorkingFolder.make(folder, durable=False)
    unfinished.release()
    with pytest.raises(FileNotFoundError):
        verify_store(folder / "m.zarr")
    assert names_in(folder) == {other.name, unfinished.path.name}


def test_note_that_leads_elsewhere(folder: Path, old: Path, new: Path) -> None:
    for name in ("../targets2", "/etc/x", "..", ".", "", "a/b", "a\0b"):
        dead_between_renames(folder, old, new, name)
        before = names_in(folder.parent)
        _replace.recover(folder)
        assert names_in(folder.parent) == before, name
        assert names_in(folder) == set(), name


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


def test_writers_on_other_machines_get_a_week(folder: Path) -> None:
    """Their locks may not be seen here."""
    for text in ("another-machine", "not locked"):
        working = _replace.WorkingFolder.make(folder, durable=False)
        working.release()
        lock = working.path / "lock"
        lock.write_text(f"bf16codecs {text}")
        _replace.recover(folder)
        assert lock.exists(), text
        os.utime(lock, (time.time() - 8 * 86400,) * 2)
        _replace.recover(folder)
        assert names_in(folder) == set(), text


@POSIX
def test_without_locks_nothing_is_removed(
    folder: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    dead = _replace.WorkingFolder.make(folder, durable=False)
    dead.release()
    monkeypatch.setattr("fcntl.flock", refuse)
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
def test_another_writer_while_writing(folder: Path, old: Path, new: Path, target: str) -> None:
    """Of two without overwrite, the first one to finish wins; with it, the last one."""

    def write(phase: str, done: int, total: int) -> None:
        if phase == "verify" and not calls:
            calls.append(phase)
            CONVERT[target](old, folder / target, overwrite=overwrite)

    for overwrite in (False, True):
        calls: list[str] = []
        if overwrite:
            CONVERT[target](new, folder / target, overwrite=True, progress=write)
        else:
            with pytest.raises(FileExistsError):
                CONVERT[target](new, folder / target, progress=write)
        assert calls
        verify_store(folder / target, new if overwrite else old)
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


def test_no_sync_flushes_nothing(
    old: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(old, "step1.safetensors")
    shutil.copy(new, "step2.safetensors")
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    monkeypatch.setattr("bf16codecs._files.sync.F_FULLFSYNC", None)
    commands = [
        "st2zarr step1.safetensors m.zarr",
        "st2zarr step1.safetensors m.zip",
        "st2h5 step1.safetensors m.h5",
        "st2zarr step2.safetensors fine.zarr --base m.zarr",
        "bf16codecs rebase fine.zarr",
        "zarr2st m.zarr back --overwrite",
        "h52st m.h5 back --overwrite",
        "st2zarr --series step1.safetensors run.zarr",
        "st2zarr step2.safetensors run.zarr --append",
        "st2h5 --series step1.safetensors run.h5",
        "st2h5 step2.safetensors run.h5 --append",
    ]
    for options, is_flushed in (["--no-sync"], False), ([], True):
        for command in commands:
            flushed.clear()
            done(*command.split(), *options)
            assert bool(flushed) == is_flushed, (command, options)
        for store in ("m.zarr", "fine.zarr", "run.zarr"):
            shutil.rmtree(store)
        for file in ("m.zip", "m.h5", "run.h5"):
            os.remove(file)


def test_failing_sync(folder: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, target in itertools.product((errno.ENOSPC, errno.EIO), CONVERT):
        fail = Mock(side_effect=lambda _, n=number: raise_error(n))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(OSError, match=os.strerror(number)) as caught:
                CONVERT[target](old, folder / target)
            assert caught.value.filename == str(folder / target)
            assert "; " in caught.value.strerror, "what to do"
            assert names_in(folder) == set(), (number, target)
            CONVERT[target](old, folder / target, sync=False)
        remove(folder / target)


def test_target_that_cannot_be_renamed(
    folder: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mounted folders, or folders of the lower layer of an overlay."""
    safetensors_to_zarr(old, folder / "m.zarr")
    for number in (errno.EXDEV, errno.EBUSY):
        monkeypatch.setattr(_replace, "_exchange", lambda *_, n=number: raise_error(n))
        with pytest.raises(OSError, match="remove it first") as caught:
            safetensors_to_zarr(old, folder / "m.zarr", overwrite=True)
        assert caught.value.filename == str(folder / "m.zarr")
        verify_store(folder / "m.zarr", old)


@POSIX
@pytest.mark.parametrize("what", ["folder", "working folder"])
@pytest.mark.parametrize("target", CONVERT)
def test_folder_that_is_moved_meanwhile(
    folder: Path, old: Path, new: Path, target: str, what: str
) -> None:
    """The files that are written later must not be half of a store."""
    CONVERT[target](old, folder / target)
    moved = folder.with_name("moved")

    def move(phase: str, done: int, total: int) -> None:
        if not moved.exists():
            (hidden,) = names_in(folder) - {target}
            (folder if what == "folder" else folder / hidden).rename(moved)
            folder.mkdir(exist_ok=True)

    options = {"chunk_size": 128, "threads": 1, "sync": False, "progress": move}
    for verify in (True, False):
        with pytest.raises(FileNotFoundError, match="moved or removed"):
            CONVERT[target](new, folder / target, overwrite=True, verify=verify, **options)
        verify_store((moved if what == "folder" else folder) / target, old)
        assert names_in(folder) <= {target}
        if what == "folder":
            folder.rmdir()
            moved.rename(folder)
            _replace.recover(folder)
            assert names_in(folder) == {target}, verify
        else:
            shutil.rmtree(moved)


@POSIX
def test_two_dots_behind_a_link(folder: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are resolved as the system does."""
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
    """Links are replaced, not their targets; names may have the full length."""
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
def test_permissions_are_those_of_new_files(folder: Path, old: Path) -> None:
    before = os.umask(0o027)
    try:
        for target, overwrite in itertools.product(CONVERT, (False, True)):
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
    """The old store is an empty folder by then."""
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


def planted(folder: Path) -> Path:
    """Make a folder that merely has the name of a working folder."""
    path = folder / f".bf16codecs-{secrets.token_hex(8)}.tmp"
    path.mkdir()
    return path


def test_folders_without_a_signed_lock_are_left_alone(folder: Path, old: Path) -> None:
    locks = (None, b"", b"thesis", b"another-machine")
    for name, lock in itertools.product(("results", "new", "old"), locks):
        path = planted(folder) / name
        path.mkdir()
        (path / "thesis.txt").write_text("x")
        if lock is not None:
            (path.parent / "lock").write_bytes(lock)
            os.utime(path.parent / "lock", (time.time() - 8 * 86400,) * 2)
    before = files_in(folder)
    safetensors_to_zarr(old, folder / "m.zarr")
    assert {n: c for n, c in files_in(folder).items() if not n.startswith("m.zarr")} == before


def test_writers_that_die_at_once(folder: Path) -> None:
    for lock in (None, b""):
        path = planted(folder)
        if lock is not None:
            (path / "lock").write_bytes(lock)
        _replace.recover(folder)
        assert names_in(folder) == set(), lock


def test_only_known_names_are_removed(folder: Path) -> None:
    """In working folders of dead and of running writers."""
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
    """Someone with write access beside it tries to direct its removal to another user's files."""
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
        stat = os.stat

        def swap_and_stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
            if path == "new":  # the first look into a folder that was taken over
                monkeypatch.undo()
                swap()
            return stat(path, *args, **options)

        monkeypatch.setattr(os, "stat", swap_and_stat)
        _replace.recover(folder)
    else:
        swap()
        assert working.close() is not None
    assert files_in(precious) == before
    assert names_in(folder / "moved") == set()


@POSIX
def test_systems_without_names_in_open_folders(folder: Path, old: Path, run_python: Any) -> None:
    """As on Windows: there, and where names cannot be exchanged, only paths are used."""
    code = """
import os, shutil, sys
os.supports_dir_fd.clear()
from pathlib import Path
from bf16codecs.convert import safetensors_to_zarr
source, folder = sys.argv[1], Path(sys.argv[2])
precious = folder.parent / "precious"

def swap(phase, done, total):
    (working,) = folder.glob(".bf16codecs-*")
    shutil.copytree(working, precious)
    (precious / "new" / "thesis.txt").write_text("x")
    working.rename(folder / "moved")
    working.symlink_to(precious)
    raise KeyboardInterrupt

try:
    safetensors_to_zarr(source, folder / "m.zarr", progress=swap)
except KeyboardInterrupt:
    assert (precious / "lock").exists() and (precious / "new" / "thesis.txt").exists()
else:
    raise SystemExit("nothing was swapped")
for path in folder.iterdir():
    path.unlink() if path.is_symlink() else shutil.rmtree(path)
if sys.argv[3] == "no exchange":
    sys.platform = "another"
for name in ("m.zarr", "m.zip"):
    for overwrite in (False, True):
        safetensors_to_zarr(source, folder / name, overwrite=overwrite)
print(sorted(os.listdir(folder)))
"""
    for way in ("exchange", "no exchange"):
        done = run_python(code, str(old), str(folder), way)
        assert done.stdout == "['m.zarr', 'm.zip']\n", way
        for path in (*folder.iterdir(), folder.parent / "precious"):
            remove(path)


@POSIX
def test_folder_that_is_swapped_before_it_is_opened(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = _replace.WorkingFolder.make(folder, durable=False)
    working.new.write_text("y")
    working.release()
    open_it = os.open

    def swap_and_open(path: Any, *args: Any, **options: Any) -> int:
        monkeypatch.undo()
        working.path.rename(tmp_path / "moved")
        working.path.symlink_to(tmp_path / "moved")
        return open_it(path, *args, **options)

    monkeypatch.setattr(os, "open", swap_and_open)
    _replace.recover(folder)
    assert working.path.is_symlink()
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
    """Another process checks between the removals of the lock and of the folder."""
    working = _replace.WorkingFolder.make(folder, durable=False)
    rmdir = os.rmdir

    def recover_and_remove(path: Any, **options: Any) -> None:
        monkeypatch.undo()
        _replace.recover(folder)
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", recover_and_remove)
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
def test_a_file_that_takes_the_name_at_the_last_moment_stays(
    folder: Path, old: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between check and exchange, a replaceable store gives way to something that is not."""
    target = folder / "m.zarr"
    safetensors_to_zarr(old, target)
    step = _replace._exchange if exchange else Mock(return_value=False)

    def take_and_exchange(*args: Any) -> bool:
        monkeypatch.setattr(_replace, "_exchange", step)
        shutil.rmtree(target)
        target.mkdir()
        (target / "thesis.txt").write_text("x")
        return step(*args)

    monkeypatch.setattr(_replace, "_exchange", take_and_exchange)
    with pytest.raises(FileExistsError, match="exists and is") as caught:
        safetensors_to_zarr(old, target, overwrite=True)
    assert caught.value.filename == str(target)
    assert files_in(folder) == {"m.zarr": None, "m.zarr/thesis.txt": b"x"}


def test_what_cannot_be_put_back_is_kept(
    folder: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = folder / "m.zarr"
    working = _replace.WorkingFolder.make(folder, durable=False)
    working.new.mkdir()
    target.write_text("x")
    looks = []

    def check(path: Path) -> None:
        looks.append(path)
        if path != target:
            monkeypatch.setattr(_replace, "_exchange", refuse)
            raise FileExistsError

    def refuse(*args: Any) -> bool:
        raise PermissionError(errno.EPERM, "not allowed", str(target))

    with pytest.raises(PermissionError, match=r"its old content is now .*: not allowed"):
        working.publish(target, check)
    assert working.close() is not None
    assert len(looks) == 2
    monkeypatch.undo()
    _replace.recover(folder)
    assert working.new.read_text() == "x"
