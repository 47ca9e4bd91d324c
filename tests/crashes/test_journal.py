"""Journals: a file is as before, or has all changes, whenever its writer dies.

Untrusted journals, in stores of any content, change nothing.
"""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

import bf16codecs
import tiers
from bf16codecs._files import journal as _journal
from bf16codecs.convert import append_to_run, safetensors_to_hdf5, verify_store
from bf16codecs.errors import BF16CodecsError, StoreError
from invoked import run
from journals import MAGIC, PAGE, entry, journal_of, sealed, superblock
from models import write_model

JournaledFile = _journal.JournaledFile


def change(file: JournaledFile, model: bytearray, rng: random.Random) -> None:
    """Write to a file and to its expected content, and read it."""
    for _ in range(rng.randrange(1, 30)):
        at, size = rng.randrange(15000), rng.randrange(1, 6000)
        file.seek(at)
        if rng.random() < 0.5:
            half = size // 2
            data = rng.choice([rng.randbytes(size), bytes(size), rng.randbytes(half) + bytes(half)])
            file.write(data)
            model.extend(bytes(max(0, at + len(data) - len(model))))
            model[at : at + len(data)] = data
        else:
            assert file.read(size) == model[at : at + size]


def test_reads_and_commits_what_was_written(tmp_path: Path) -> None:
    rng, path = tiers.rng("journal"), tmp_path / "file"
    for number in range(120):
        if number % 3 == 0:
            path.write_bytes(rng.randbytes(rng.choice([0, 10, 5000, 9000])))
        before = path.read_bytes()
        model = bytearray(before)
        file = JournaledFile(path, durable=False)
        change(file, model, rng)
        # Others see the old content; bytes past its end are new.
        assert path.read_bytes()[: len(before)] == before
        file.commit()
        assert path.read_bytes() == model, number
        assert list(tmp_path.iterdir()) == [path]


def test_abandoned(tmp_path: Path) -> None:
    rng, path = tiers.rng("abandoned"), tmp_path / "file"
    for number in range(5):
        before = rng.randbytes(5000)
        path.write_bytes(before)
        file = JournaledFile(path, durable=True)
        change(file, bytearray(before), rng)
        file.abandon()
        assert path.read_bytes() == before, number
        assert list(tmp_path.iterdir()) == [path]


def test_unused_bytes_are_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2000))
    file = JournaledFile(path, durable=False)
    file.seek(100)
    file.write(b"page")  # in a page that is kept by now
    file.write_unseen(110, b"unseen")
    assert path.read_bytes()[110:116] == b"unseen"
    file.seek(100)
    assert file.read(16) == b"page" + bytes(6) + b"unseen"
    file.commit()
    assert path.read_bytes()[100:116] == b"page" + bytes(6) + b"unseen"


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    file = JournaledFile(path, durable=False)
    with pytest.raises(BlockingIOError, match="another process") as caught:
        JournaledFile(path, durable=False)
    assert caught.value.filename == str(path)
    _journal.carry_out_journal(path)  # there is nothing to carry out
    file.abandon()
    JournaledFile(path, durable=False).abandon()


class Died(BaseException):
    pass


def dies_at(monkeypatch: pytest.MonkeyPatch, count: int, error: type[BaseException]) -> None:
    """Let one of a process's writes fail half-way, and after `Died`, all later ones.

    A sector is written as a whole or not at all.
    """
    left, write = [count], os.write

    def dying(file: int, data: memoryview) -> int:
        left[0] -= 1
        if left[0] == 0:
            if len(data) > PAGE:
                write(file, data[: len(data) // 2])
            raise error
        if left[0] < 0 and error is Died:
            raise error
        return write(file, data)

    monkeypatch.setattr(os, "write", dying)


def change_and_commit(file: JournaledFile) -> None:
    for at in (0, 600, 4990):
        file.seek(at)
        file.write(b"other one")
    file.seek(5000)
    file.write(b"behind" * 100)
    file.commit()


@pytest.mark.parametrize("error", [Died, OSError, KeyboardInterrupt])
def test_failure_at_every_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    path, outcomes = tmp_path / "file", []
    before = random.Random(0).randbytes(5000)
    after = bytearray(before) + b"behind" * 100
    for at in (0, 600, 4990):
        after[at : at + 9] = b"other one"
    for count in range(1, 20):
        path.write_bytes(before)
        with monkeypatch.context() as patch:
            dies_at(patch, count, error)
            file = JournaledFile(path, durable=True)
            try:
                change_and_commit(file)
            except error:
                if error is Died:
                    os.close(file._file)
                    file._journal.close()
                else:
                    file.abandon()
        _journal.carry_out_journal(path)
        found = path.read_bytes()
        assert (found[:5000] if error is Died else found) == before or found == after
        outcomes.append(found == after)
        # The next one finds nothing that disturbs it.
        again = JournaledFile(path, durable=False)
        again.abandon()
        assert list(tmp_path.iterdir()) == [path]
    # Behind the end, the journal, four pages; then there is no further write to fail.
    assert outcomes == [False, False] + 17 * [True]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_failure_of_the_next_one_to_carry_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    path, before = tmp_path / "file", bytes(5000)
    path.write_bytes(before)
    file = JournaledFile(path, durable=False)
    for failing in (5, 2):  # pages in the middle of those that are changed
        with monkeypatch.context() as patch:
            dies_at(patch, failing, error)
            with pytest.raises(error):
                change_and_commit(file) if failing == 5 else JournaledFile(path, durable=False)
        file.abandon()
        assert path.read_bytes() != before
    _journal.carry_out_journal(path)
    found = path.read_bytes()
    assert (found.count(b"other one"), found[5000:]) == (3, b"behind" * 100)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_reported_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    file = JournaledFile(path, durable=False)
    file.seek(6)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", Mock(side_effect=OSError(number, "full")))
        file.write(b"behind")
    with pytest.raises(OSError, match="full") as caught:
        file.commit()
    assert caught.value.errno == number
    file.abandon()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def left_by_a_dead_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Let a process die once its journal is complete; return the file's expected content."""
    with monkeypatch.context() as patch:
        dies_at(patch, 3, Died)  # after the bytes past the end, and the journal
        file = JournaledFile(path, durable=False)
        with pytest.raises(Died):
            change_and_commit(file)
    file.abandon()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:5000])
    change_and_commit(JournaledFile(other, durable=False))
    content = other.read_bytes()
    other.unlink()
    return content


@pytest.fixture
def file_with_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, bytes]:
    """Return a file with a complete journal, and its content once that is carried out."""
    path = tmp_path / "file"
    path.write_bytes(random.Random(0).randbytes(5000))
    return path, left_by_a_dead_process(path, monkeypatch)


def test_file_that_took_the_name_is_not_changed(file_with_journal: tuple[Path, bytes]) -> None:
    path, _ = file_with_journal
    content = random.Random(1).randbytes(9000)
    path.write_bytes(content)
    _journal.carry_out_journal(path)
    assert path.read_bytes() == content
    with pytest.raises(FileExistsError, match="append to another file of this name: remove it"):
        JournaledFile(path, durable=False)
    assert path.read_bytes() == content
    _journal.settle_journal(path)
    assert not journal_of(path).exists()
    assert path.read_bytes() == content
    JournaledFile(path, durable=False).abandon()


def test_change_is_completed_where_it_stopped(file_with_journal: tuple[Path, bytes]) -> None:
    path, content = file_with_journal
    with open(path, "r+b") as file:
        file.seek(512)
        file.write(content[512:1024])  # the page was already written
    _journal.carry_out_journal(path)
    assert path.read_bytes() == content


def test_link_to_a_file(file_with_journal: tuple[Path, bytes], tmp_path: Path) -> None:
    path, content = file_with_journal
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link"
    link.symlink_to(path)
    _journal.carry_out_journal(link)
    assert path.read_bytes() == content
    file = JournaledFile(link, durable=True)
    assert journal_of(path).exists()
    file.write(b"by the link")
    file.commit()
    assert path.read_bytes()[:11] == b"by the link"
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "folder"]


def test_file_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    file = JournaledFile(path, durable=False)
    file.write(b"after")
    path.unlink()
    path.write_bytes(b"another")
    with pytest.raises(StoreError, match="was replaced meanwhile"):
        file.commit()
    file.abandon()
    assert path.read_bytes() == b"another"
    assert list(tmp_path.iterdir()) == [path]


def test_who_lives_is_waited_for(
    file_with_journal: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = file_with_journal
    slow = _journal.Journal(path)
    slow.lock()
    naps = []
    monkeypatch.setattr(time, "sleep", naps.append)
    with pytest.raises(BlockingIOError, match="another process"):
        _journal.carry_out_journal(path)
    assert sum(naps) == pytest.approx(5)
    monkeypatch.setattr(time, "sleep", lambda _: slow.close())
    _journal.carry_out_journal(path)
    assert path.read_bytes() == content


def test_what_a_killed_process_added_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0005,left by it" * 1000)
    file = JournaledFile(path, False, end_of=lambda file: int(_journal.read_padded(file, 0, 4)))
    file.seek(0, os.SEEK_END)
    assert file.tell() == 5
    file.write(b"new")
    assert path.read_bytes() == b"0005,new"
    file.commit()
    assert path.read_bytes() == b"0005,new"


@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_where_nothing_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    path = tmp_path / "file"
    path.write_bytes(b"before")
    file = JournaledFile(path, durable=False)
    with pytest.raises(BlockingIOError, match=f"if there is none, remove {journal_of(path)}"):
        JournaledFile(path, durable=False)
    file.write(b"after!")
    file.commit()
    assert path.read_bytes() == b"after!"
    JournaledFile(path, durable=False).abandon()
    assert list(tmp_path.iterdir()) == [path]


def test_journal_that_is_not_complete_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    sound = sealed(6, 6, 1, entries=entry(0, b"before", b"after!".ljust(PAGE, b"\0")))
    flipped = (sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for at in range(len(sound)))
    for content in (sound[:-1], b"", *flipped):
        journal_of(path).write_bytes(content)
        _journal.carry_out_journal(path)
        JournaledFile(path, durable=False).abandon()
        assert path.read_bytes() == b"before", content
    journal_of(path).write_bytes(sound)
    _journal.carry_out_journal(path)
    assert path.read_bytes() == b"after!"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_kill(tmp_path: Path, run_python) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    code = f"""
import os, signal
from bf16codecs._files import journal as _journal
from pathlib import Path
write, left = os.write, [b"behind the end", b"the journal"]
def kill(*args):
    left.pop() if left else os.kill(os.getpid(), signal.SIGKILL)
    return write(*args)
os.write = kill
file = _journal.JournaledFile(Path({str(path)!r}), True)
file.write(b"after, and longer")
file.commit()
"""
    assert run_python(code, check=False).returncode == -signal.SIGKILL
    assert path.read_bytes()[:6] == b"before"
    _journal.carry_out_journal(path)
    assert path.read_bytes() == b"after, and longer"
    assert sys.platform == "win32" or not journal_of(path).exists()


CONTENT = bytes(range(256)) * 20
PAGE_0, PAGE_1 = entry(0, CONTENT[:PAGE]), entry(1, CONTENT[PAGE : 2 * PAGE])
HOSTILE = {
    "sizes alone": sealed(len(CONTENT), 1 << 50, 0),
    "sizes that fit": sealed(len(CONTENT), len(CONTENT) + 500, 0),
    "empties": sealed(0, 0, 0),
    "cuts off": sealed(len(CONTENT), 500, 0),
    "without the first page": sealed(len(CONTENT), len(CONTENT), 1, entries=PAGE_1),
    "grows": sealed(len(CONTENT), 17 << 20, 1, entries=PAGE_0),
    "was larger": sealed(len(CONTENT) + 1, len(CONTENT) + 1, 1, entries=PAGE_0),
    "count": sealed(len(CONTENT), len(CONTENT), 1 << 60, entries=PAGE_0),
    "counts less": sealed(len(CONTENT), len(CONTENT), 1, entries=PAGE_0 + PAGE_1),
    "page": sealed(len(CONTENT), len(CONTENT), 1, entries=entry(1 << 60, b"")),
    "order": sealed(len(CONTENT), len(CONTENT), 2, entries=PAGE_1 + PAGE_0),
    "twice": sealed(len(CONTENT), len(CONTENT), 2, entries=PAGE_0 + PAGE_0),
    "other file": sealed(len(CONTENT), len(CONTENT), 1, entries=entry(0, b"x" * PAGE)),
    "numbers": sealed(len(CONTENT)),
}


def test_strange_journal_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    for name, journal in HOSTILE.items():
        journal_of(path).write_bytes(journal)
        _journal.carry_out_journal(path)
        assert path.read_bytes() == CONTENT, name
        _journal.settle_journal(path)
        assert path.read_bytes() == CONTENT, name
        assert list(tmp_path.iterdir()) == [path], name


def test_sound_journal_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    journal_of(path).write_bytes(sealed(len(CONTENT), 6000, 2, entries=PAGE_0 + PAGE_1))
    _journal.carry_out_journal(path)
    assert path.read_bytes() == bytes(2 * PAGE) + CONTENT[2 * PAGE :] + bytes(6000 - len(CONTENT))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid(), reason="only root gives files away")
def test_journal_of_a_user_who_may_not_write_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    sound = sealed(len(CONTENT), len(CONTENT), 1, entries=PAGE_0)
    for mode, owner in ((0o644, 65534), (0o664, 65534), (0o644, 0)):
        path.write_bytes(CONTENT)
        path.chmod(mode)
        journal_of(path).write_bytes(sound)
        os.chown(journal_of(path), owner, -1)
        _journal.carry_out_journal(path)
        is_left_alone = owner and not mode & 0o020
        assert path.read_bytes()[:PAGE] == (CONTENT[:PAGE] if is_left_alone else bytes(PAGE))
        journal_of(path).unlink(missing_ok=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "sparse"])
def test_files_that_are_no_journals(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    journal = journal_of(path)
    if kind == "pipe":
        os.mkfifo(journal)
    elif kind == "link":
        journal.symlink_to("/dev/zero")
    elif kind == "folder":
        journal.mkdir()
    else:
        journal.write_bytes(MAGIC)
        os.truncate(journal, 1 << 42)
    _journal.carry_out_journal(path)
    if kind == "sparse":
        JournaledFile(path, durable=False).abandon()
        assert not journal.exists()
    else:
        with pytest.raises(OSError, match=re.escape(str(journal))):
            JournaledFile(path, durable=False)
        assert os.path.lexists(journal)
    assert path.read_bytes() == CONTENT


def hdf5_file(path: Path, kind: str, **options: Any) -> bytes:
    """Write an HDF5 file of some kind, and return its content."""
    source = write_model(path.with_name("source"), [("w", "BF16", (40, 30))])
    if kind == "run":
        append_to_run(source, path, step=1, as_hdf5=True)
    elif kind == "model":
        safetensors_to_hdf5(source, path)
    else:
        with h5py.File(path, "w", **options) as file:
            file["x"] = np.arange(1000)
            if kind == "attribute":
                file.attrs["bf16codecs"] = '{"run": {}}'
    return path.read_bytes()


def journals_beside(content: bytes) -> dict[str, bytes]:
    """Return journals by an attacker who may know the file."""
    size, page = len(content), content[:PAGE]
    zeros = next(n for n in range(1, size // PAGE) if not any(content[n * PAGE : (n + 1) * PAGE]))
    return {
        "empties": sealed(0, 0, 0),
        "empties it from its size": sealed(size, 0, 0),
        "cuts off": sealed(size, 100, 0),
        "grows": sealed(size, size + 1000, 0),
        "cuts off behind the first page": sealed(size, 300, 1, entries=entry(0, page, page)),
        "page of zeros": sealed(size, size, 1, entries=entry(zeros, bytes(PAGE), b"x" * PAGE)),
        "no superblock": sealed(size, 300, 1, entries=entry(0, page, bytes(PAGE))),
        "another file's": sealed(
            size, 300, 1, entries=entry(0, bytes(PAGE), superblock(content, 300))
        ),
    }


@pytest.mark.parametrize("kind", ["plain", "libver", "attribute", "model", "run"])
def test_journals_of_strangers_beside_hdf5(tmp_path: Path, kind: str) -> None:
    """With every function that opens the file or detects its kind."""
    path = tmp_path / "file.h5"
    content = hdf5_file(path, kind, **({"libver": "latest"} if kind == "libver" else {}))
    for name, journal in journals_beside(content).items():
        journal_of(path).write_bytes(journal)
        for read in (bf16codecs.open_model, bf16codecs.open_run, verify_store):
            with suppress(BF16CodecsError):
                opened = read(path)
                if hasattr(opened, "close"):
                    opened.close()
        run("bf16codecs", "info", path)
        assert path.read_bytes() == content, name


@pytest.mark.parametrize("kind", ["plain", "model"])
@pytest.mark.parametrize("is_half_done", [False, True])
def test_a_valid_journal_beside_what_is_no_run(
    tmp_path: Path, kind: str, is_half_done: bool
) -> None:
    path = tmp_path / "file.h5"
    content = hdf5_file(path, kind, libver="latest")
    head, second = content[:PAGE], content[PAGE : 2 * PAGE]
    size, entries = (300, entry(0, head, superblock(content, 300)))
    if is_half_done:  # the first page seems to have been changed
        size, entries = len(content), entry(0, b"x" * PAGE, head) + entry(1, second)
    journal_of(path).write_bytes(sealed(len(content), size, 1 + is_half_done, entries=entries))
    with suppress(BF16CodecsError), bf16codecs.open_model(path) as model:
        model.load()
    for read in (verify_store, bf16codecs.open_run):
        with suppress(BF16CodecsError):
            read(path)
    run("h52st", path, tmp_path / "restored")
    run("bf16codecs", "info", path)
    assert path.read_bytes() == content
