"""Journals that are none of their file's: of strangers, whose stores have anything."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from bf16codecs import _journal
from bf16codecs._journal import carry_out_journal, journal_of, settle_journal
from bf16codecs._journaled import JournaledFile

# As docs/runs.md has it.
PAGE = 128


def sealed(*numbers: int, entries: bytes = b"") -> bytes:
    """Return a journal with any numbers in it."""
    body = _journal._MAGIC + b"".join(n.to_bytes(8, "little") for n in numbers) + entries
    return body + hashlib.sha256(body).digest()


def entry(page: int, former: bytes, new: bytes = bytes(PAGE)) -> bytes:
    return page.to_bytes(8, "little") + hashlib.sha256(former).digest()[:8] + new


CONTENT = bytes(range(256)) * 20
PAGE_0, PAGE_1 = entry(0, CONTENT[:PAGE]), entry(1, CONTENT[PAGE : 2 * PAGE])
HOSTILE = {
    "sizes alone": sealed(len(CONTENT), 1 << 50, 0),
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


@pytest.mark.parametrize("name", HOSTILE)
def test_strange_journal_changes_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    journal_of(path).write_bytes(HOSTILE[name])
    carry_out_journal(path)
    assert path.read_bytes() == CONTENT
    settle_journal(path)
    assert path.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [path]


def test_sound_journal_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    journal_of(path).write_bytes(sealed(len(CONTENT), 6000, 2, entries=PAGE_0 + PAGE_1))
    carry_out_journal(path)
    assert path.read_bytes() == bytes(2 * PAGE) + CONTENT[2 * PAGE :] + bytes(6000 - len(CONTENT))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "sparse"])
def test_what_is_no_journal(tmp_path: Path, kind: str) -> None:
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
        journal.write_bytes(_journal._MAGIC)
        os.truncate(journal, 1 << 42)
    carry_out_journal(path)
    if kind == "sparse":
        JournaledFile(path, durable=False).abandon()
        assert not journal.exists()
    else:
        with pytest.raises(OSError, match=re.escape(str(journal))):
            JournaledFile(path, durable=False)
        assert os.path.lexists(journal)
    assert path.read_bytes() == CONTENT
