"""A file that is changed in one step, and not copied: what it had is changed by a journal.

New content goes behind the file's end at once, where nobody looks. Changes of what was there are
kept in memory. To commit, they are written to a *journal* beside the file, flushed, and carried
out, and the journal is removed. Whoever finds a complete journal of a dead process carries it out;
of one that is not complete, nothing was carried out yet, and it is dropped. So the file is as
before, or has all changes. The journal's lock tells whether its maker is alive, and lets one
process at a time change the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bf16codecs._lock import try_lock
from bf16codecs._sync import sync

__all__ = ["JOURNAL_SUFFIX", "JournaledFile", "carry_out_journal", "journal_of"]

JOURNAL_SUFFIX = ".bf16codecs-journal"

_MAGIC = b"bf16codecs journal 1\n"
# As little as changes in one place of an HDF5 file: with 4096, an append to 39 small tensors wrote
# six times as much.
_PAGE = 512
# Of a living process, carrying out takes as long as writing some pages.
_TRIES, _SECONDS = 100, 0.02
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def journal_of(path: Path) -> Path:
    """Return where the journal of a file is."""
    return path.with_name(path.name + JOURNAL_SUFFIX)


class JournaledFile:
    """A file that others see changed only by `commit`, and then whole; h5py takes it as a file.

    Parameters
    ----------
    path
        The file, which is there.
    durable
        Whether a loss of power may come between any two steps.

    Raises
    ------
    BlockingIOError
        If another process is changing it.
    """

    def __init__(self, path: Path, durable: bool) -> None:
        self._path, self._durable = path, durable
        self._journal = _Journal(path)
        try:
            self._journal.take()
            self._file = os.open(path, os.O_RDWR | _FLAGS)
        except BaseException:
            self._journal.close()
            raise
        #: The size that others see. What is behind is new.
        self._before = self._size = os.fstat(self._file).st_size
        self._pages: dict[int, bytearray] = {}
        self._at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, as files do."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = origin + offset
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def read(self, size: int) -> bytes:
        """Read at most a number of bytes from the place on."""
        content = bytearray(max(0, min(size, self._size - self._at)))
        self.readinto(content)
        return bytes(content)

    def readinto(self, buffer: Any) -> int:
        """Read from the place on."""
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        view[:count] = _read(self._file, self._at, count)
        for page, start, stop in _parts(self._at, min(self._at + count, self._before)):
            if page in self._pages:
                begin = page * _PAGE + start - self._at
                view[begin : begin + stop - start] = self._pages[page][start:stop]
        self._at += count
        return count

    def write(self, data: Any) -> int:
        """Write from the place on."""
        view = memoryview(data).cast("B")
        end = self._at + len(view)
        for page, start, stop in _parts(self._at, min(end, self._before)):
            if page not in self._pages:
                self._pages[page] = bytearray(_read(self._file, page * _PAGE, _PAGE))
            begin = page * _PAGE + start - self._at
            self._pages[page][start:stop] = view[begin : begin + stop - start]
        new = max(self._at, self._before)
        if new < end:
            content = bytes(view[new - self._at :])
            # Room for later takes no space on the disk, where nothing was yet.
            there = max(0, os.fstat(self._file).st_size - new)
            count = max(len(content.rstrip(b"\0")), min(there, len(content)))
            _write(self._file, new, memoryview(content)[:count])
        self._at, self._size = end, max(self._size, end)
        return len(view)

    def write_unseen(self, at: int, data: bytes) -> None:
        """Write at once to a place of which nothing that others see speaks."""
        _write(self._file, at, memoryview(data))
        for page, start, stop in _parts(at, at + len(data)):
            if page in self._pages:
                begin = page * _PAGE + start - at
                self._pages[page][start:stop] = data[begin : begin + stop - start]

    def truncate(self, size: int | None = None) -> int:
        """Let the file have a size."""
        self._size = self._at if size is None else size
        return self._size

    def flush(self) -> None:
        """Do nothing: all is written by `commit`."""

    def commit(self) -> int:
        """Let others see the changes; return how many bytes the journal took, twice written."""
        if self._durable:
            os.fsync(self._file)
        content = self._content()
        self._journal.write(content, self._durable)
        _carry_out(self._file, content, self._durable)
        self._journal.remove()
        self._close()
        return 2 * len(content)

    def abandon(self) -> None:
        """Leave the file as it was."""
        if self._file >= 0:
            with suppress(OSError):
                os.ftruncate(self._file, self._before)
            self._journal.remove()
            self._close()

    def _close(self) -> None:
        os.close(self._file)
        self._file = -1

    def _content(self) -> bytes:
        numbers = (self._before, self._size, len(self._pages))
        parts = [_MAGIC, *(number.to_bytes(8, "little") for number in numbers)]
        for page in sorted(self._pages):
            parts += [page.to_bytes(8, "little"), bytes(self._pages[page])]
        body = b"".join(parts)
        return body + hashlib.sha256(body).digest()


class _Journal:
    """The journal of a file, locked while it is open."""

    def __init__(self, path: Path) -> None:
        self._path = journal_of(path)
        self._file = -1

    def take(self) -> None:
        """Lock it, and carry out what a dead process has left."""
        while True:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
            try:
                try_lock(self._file)
            except (BlockingIOError, PermissionError):
                text = "another process is appending to it: try again when that is done"
                name = str(self._path).removesuffix(JOURNAL_SUFFIX)
                raise BlockingIOError(errno.EWOULDBLOCK, text, name) from None
            except OSError:
                pass  # there are no locks
            # Who held the lock before may have removed the file.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                    break
            self.close()
        self.finish()

    def finish(self) -> None:
        """Carry out what is there, if it is complete, and empty it."""
        content = _read(self._file, 0, os.fstat(self._file).st_size)
        if _is_complete(content):
            target = os.open(str(self._path).removesuffix(JOURNAL_SUFFIX), os.O_RDWR | _FLAGS)
            try:
                _carry_out(target, content, durable=True)
            finally:
                os.close(target)
        os.ftruncate(self._file, 0)

    def write(self, content: bytes, durable: bool) -> None:
        """Write it; once it is complete, the changes will be made."""
        _write(self._file, 0, memoryview(content))
        if durable:
            os.fsync(self._file)
            sync(self._path.parent)

    def remove(self) -> None:
        """Remove it, and free the lock."""
        if os.name == "nt":  # where nobody can remove what is open
            self.close()
        with suppress(FileNotFoundError):
            self._path.unlink()
        self.close()

    def close(self) -> None:
        """Free the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def carry_out_journal(path: Path) -> None:
    """Finish what a process has begun for a file, if it is dead; wait for one that is alive.

    Raises
    ------
    OSError
        If the changes are complete, and may not be made.
    """
    for _ in range(_TRIES):
        try:
            content = journal_of(path).read_bytes()
        except OSError:
            return
        if not _is_complete(content):
            return  # nothing has been changed yet
        journal = _Journal(path)
        try:
            journal.take()
            journal.remove()
            return
        except BlockingIOError:
            time.sleep(_SECONDS)
        finally:
            journal.close()


def _is_complete(content: bytes) -> bool:
    body, digest = content[:-32], content[-32:]
    return body.startswith(_MAGIC) and hashlib.sha256(body).digest() == digest


def _carry_out(file: int, content: bytes, durable: bool) -> None:
    at = len(_MAGIC)
    numbers = (int.from_bytes(content[i : i + 8], "little") for i in (at, at + 8, at + 16))
    before, size, count = numbers
    at += 24
    for _ in range(count):
        page = int.from_bytes(content[at : at + 8], "little")
        part = memoryview(content)[at + 8 : at + 8 + _PAGE]
        # Of the last page, what is behind the file's former end was written at once.
        _write(file, page * _PAGE, part[: max(0, min(before, size) - page * _PAGE)])
        at += 8 + _PAGE
    os.ftruncate(file, size)
    if durable:
        os.fsync(file)


def _parts(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield pages, and the range in each, of a range of bytes."""
    while start < stop:
        page, first = divmod(start, _PAGE)
        last = min(_PAGE, first + stop - start)
        yield page, first, last
        start += last - first


def _read(file: int, at: int, size: int) -> bytes:
    """Read a range, with zeros behind the end."""
    os.lseek(file, at, os.SEEK_SET)
    parts = []
    left = size
    while left and (part := os.read(file, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts) + bytes(left)


def _write(file: int, at: int, data: memoryview) -> None:
    os.lseek(file, at, os.SEEK_SET)
    while data:
        data = data[os.write(file, data) :]
