"""A file that is changed in one step: as before, or with all changes, whenever its writer dies."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest

from bf16codecs import _journal
from bf16codecs._journal import JournaledFile, carry_out_journal, journal_of


def change(file: JournaledFile, model: bytearray, rng: random.Random) -> None:
    """Write to a file, and to what it should be, and read it."""
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


@pytest.mark.parametrize("seed", range(40))
def test_reads_and_commits_what_was_written(tmp_path: Path, seed: int) -> None:
    rng, path = random.Random(seed), tmp_path / "file"
    path.write_bytes(rng.randbytes(rng.choice([0, 10, 5000, 9000])))
    for _ in range(3):
        before = path.read_bytes()
        model = bytearray(before)
        file = JournaledFile(path, durable=False)
        change(file, model, rng)
        # Others see what was there; what is behind it is new.
        assert path.read_bytes()[: len(before)] == before
        file.commit()
        assert path.read_bytes() == model
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seed", range(5))
def test_abandoned(tmp_path: Path, seed: int) -> None:
    rng, path = random.Random(seed), tmp_path / "file"
    before = rng.randbytes(5000)
    path.write_bytes(before)
    file = JournaledFile(path, durable=True)
    change(file, bytearray(before), rng)
    file.abandon()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_nobody_looks_at_is_written_at_once(tmp_path: Path) -> None:
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
    carry_out_journal(path)  # there is nothing to carry out
    file.abandon()
    JournaledFile(path, durable=False).abandon()


class Died(BaseException):
    pass


def dies_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the process die, as far as files are concerned, at one of its writes."""
    write, left = _journal._write, [count]

    def dying(file: int, at: int, data: memoryview) -> None:
        left[0] -= 1
        if left[0] == 0:
            write(file, at, data[: len(data) // 2])
            raise Died
        write(file, at, data)

    monkeypatch.setattr(_journal, "_write", dying)


def test_death_at_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, outcomes = tmp_path / "file", set()
    before = random.Random(0).randbytes(5000)
    after = bytearray(before) + b"behind" * 100
    for at in (0, 600, 4990):
        after[at : at + 9] = b"other one"
    for count in range(1, 20):
        path.write_bytes(before)
        with monkeypatch.context() as patch:
            dies_at(patch, count)
            file = JournaledFile(path, durable=True)
            try:
                for at in (0, 600, 4990):
                    file.seek(at)
                    file.write(b"other one")
                file.seek(5000)
                file.write(b"behind" * 100)
                file.commit()
            except Died:
                os.close(file._file)
                file._journal.close()
        carry_out_journal(path)
        found = path.read_bytes()
        assert found[:5000] == before or found == after
        outcomes.add(found == after)
        # The next one finds nothing that disturbs it.
        again = JournaledFile(path, durable=False)
        again.abandon()
        assert list(tmp_path.iterdir()) == [path]
    assert outcomes == {False, True}


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_journal_that_is_not_complete_is_dropped(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    file = JournaledFile(path, durable=False)
    file.seek(0)
    file.write(b"after!")
    content = bytearray(file._content())
    file.abandon()
    if damage == "cut":
        del content[-1:]
    elif damage == "flipped":
        content[40] ^= 1
    else:
        content.clear()
    journal_of(path).write_bytes(content)
    carry_out_journal(path)
    JournaledFile(path, durable=False).abandon()
    assert path.read_bytes() == b"before"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_kill(tmp_path: Path, run_python) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    code = f"""
import os, signal
from bf16codecs import _journal
from pathlib import Path
_journal._carry_out = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
file = _journal.JournaledFile(Path({str(path)!r}), True)
file.write(b"after, and longer")
file.commit()
"""
    assert run_python(code, check=False).returncode == -signal.SIGKILL
    assert path.read_bytes()[:6] == b"before"
    carry_out_journal(path)
    assert path.read_bytes() == b"after, and longer"
    assert sys.platform == "win32" or not journal_of(path).exists()
