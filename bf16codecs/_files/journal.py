"""Journals: an append's changes to a file in place, which happen wholly or not at all.

A *journal* is a file beside another one: docs/runs.md has its format, and when it is made and
carried out. Its lock tells whether its maker is alive, and lets one process at a time change the
file.

`JournaledFile` writes new content behind the file's end at once, where no reader looks, and keeps
changes of old content in memory. To commit, it writes them to the journal, flushes that, carries
them out and removes the journal. So the file is as before, or has all changes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._files.folders import Folder
from bf16codecs._files.locks import LifeLock, take_lock
from bf16codecs._files.reading import read_at
from bf16codecs._files.sync import flush, sync
from bf16codecs.errors import StoreError

__all__ = [
    "HDF5_MAGIC",
    "JOURNAL_SUFFIX",
    "PAGE",
    "Change",
    "Journal",
    "JournaledFile",
    "carry_out_journal",
    "journal_of",
    "read_padded",
    "settle_journal",
    "superblock_end",
]

JOURNAL_SUFFIX = ".bf16codecs-journal"
# About as much as one change of an HDF5 file takes: with 512, appends to 39 small tensors wrote
# 1.28 times as much, with 4096 2.63 times. No page is in two sectors, which are written whole.
PAGE = 128

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_MAGIC = b"bf16codecs journal 1\n"
_HEAD = len(_MAGIC) + 24
_DIGEST = 8
_ENTRY = 8 + _DIGEST + PAGE
# The most pages of a journal, which are kept in memory: an append to 57 tensors has some 300.
_MOST_PAGES = 1 << 19
# A file, or 1 MiB if it is smaller, may become so much larger: chunks have room that is empty.
_GROWTH, _LEAST = 16, 1 << 20
# A living process carries out a change in the time of writing and flushing some pages.
_TRIES, _SECONDS = 250, 0.02
# In a stranger's store, the journal may be a link or a pipe.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"))


def journal_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file's journal: beside the file itself, not beside a link to it."""
    return Path(os.path.realpath(path) + JOURNAL_SUFFIX)


class Change(NamedTuple):
    """The contents of a journal: the sizes of a file before and after, and its new pages.

    `pages` has, by number, the digest of a page before and its content after. In the last page,
    bytes behind either size do not count.
    """

    before: int
    size: int
    pages: Mapping[int, tuple[bytes, bytes]]

    @classmethod
    def of(cls, file: int, before: int, size: int, pages: Mapping[int, bytearray]) -> Change:
        """Return the change that gives a file other pages, and another size."""
        end = min(before, size)
        changed = [page for page in sorted({0, *pages}) if page * PAGE < end]
        if len(changed) > _MOST_PAGES:
            raise StoreError(f"{len(changed)} of its pages change at once, more than {_MOST_PAGES}")
        entries = {}
        for page in changed:
            former = _read_page(file, page, end)
            entries[page] = _digest(former), bytes(pages.get(page, former.ljust(PAGE, b"\0")))
        return cls(before, size, entries)

    @classmethod
    def parse(cls, content: bytes) -> Change | None:
        """Parse a journal; return None if it is not complete."""
        body, digest = content[:-32], content[-32:]
        if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
            return None
        starts = range(len(_MAGIC), _HEAD, 8)
        before, size, count = (int.from_bytes(body[at : at + 8], "little") for at in starts)
        if len(body) != _HEAD + count * _ENTRY:
            return None
        pages = {}
        for at in range(_HEAD, len(body), _ENTRY):
            former, new = at + 8, at + 8 + _DIGEST
            pages[int.from_bytes(body[at:former], "little")] = (
                body[former:new],
                body[new : new + PAGE],
            )
        is_sound = len(pages) == count and list(pages) == sorted(pages)
        is_inside = all(page * PAGE < min(before, size) for page in pages)
        return cls(before, size, pages) if is_sound and is_inside else None

    def to_bytes(self) -> bytes:
        """Return the content of the journal's file: header, pages and a SHA-256 of both."""
        numbers = (self.before, self.size, len(self.pages))
        parts = [_MAGIC, *(number.to_bytes(8, "little") for number in numbers)]
        for page, (former, new) in self.pages.items():
            parts += [page.to_bytes(8, "little"), former, new]
        body = b"".join(parts)
        return body + hashlib.sha256(body).digest()

    def is_of(self, file: int) -> bool:
        """Tell whether this change belongs to a file, before it is made, halfway or afterwards."""
        now, end = os.fstat(file).st_size, min(self.before, self.size)
        if not end <= now or self.size > _GROWTH * max(now, _LEAST):
            return False
        if now and not self._has_head_of(file):
            return False
        for page, (former, new) in self.pages.items():
            found = _read_page(file, page, end)
            if _digest(found) != former and found != new[: len(found)]:
                return False
        return True

    def is_half_done(self, file: int) -> bool:
        """Tell whether some pages of its file have been changed, and others have not."""
        end, done = min(self.before, self.size), set()
        for page, (former, new) in self.pages.items():
            found = _read_page(file, page, end)
            is_new = found == new[: len(found)]
            if is_new != (_digest(found) == former):  # not one that does not change
                done.add(is_new)
        return len(done) > 1

    def _has_head_of(self, file: int) -> bool:
        """Tell whether this has the first page; in HDF5, its superblock says the size then.

        Without a page, a journal of two sizes would fit any file.
        """
        if 0 not in self.pages:
            return False
        head = self.pages[0][1]
        is_hdf5 = head.startswith(HDF5_MAGIC) or read_padded(file, 0, len(HDF5_MAGIC)) == HDF5_MAGIC
        return not is_hdf5 or superblock_end(head) == self.size

    def carry_out(self, file: int, durable: bool) -> None:
        """Make the changes; a second time, they change nothing."""
        end = min(self.before, self.size)
        for page, (_, new) in self.pages.items():
            _write_at(file, page * PAGE, memoryview(new)[: end - page * PAGE])
        os.ftruncate(file, self.size)
        if durable:
            flush(file)


class Journal:
    """The journal of a file, locked while it is open."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._target = os.path.realpath(path)
        self._path = journal_of(path)
        self._lock: LifeLock | None = None

    def take(self) -> None:
        """Lock it, and carry out the change that a dead process has left.

        BlockingIOError is raised if another process has it, FileExistsError if it is complete and
        belongs to another file.
        """
        self.lock()
        change = self._content(self._file)
        if change is not None and not self._settle(change):
            self.close()
            text = "is left of an append to another file of this name: remove it"
            raise FileExistsError(errno.EEXIST, text, str(self._path))
        os.ftruncate(self._file, 0)

    def settle(self) -> None:
        """Lock it, carry out its change if that belongs to the file, and remove it."""
        self.lock()
        change = self._content(self._file)
        if change is not None:
            self._settle(change)
        self.remove()

    def lock(self) -> None:
        """Open it, or make it, and lock it."""
        # Files may be made in a folder whose content may not be listed.
        folder = Folder(self._path.parent, follow=True, lists=False)
        try:
            self._lock = take_lock(folder, self._path.name, self._target)
        except BaseException:
            folder.close()  # callers may keep the error, and with it this folder
            raise

    def write(self, change: Change, durable: bool) -> int:
        """Write it, and return its size; once it is complete, the changes will be made."""
        content = change.to_bytes()
        _write_at(self._file, 0, memoryview(content))
        if durable:
            flush(self._file)
            sync(self._path.parent)
        return len(content)

    def remove(self) -> None:
        """Remove it, and free the lock."""
        if self._lock is not None:
            if os.name == "nt":  # where no open file can be removed
                os.ftruncate(self._file, 0)
            self._lock.remove()
        self.close()

    def close(self) -> None:
        """Free the lock."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def pending(self) -> Change | None:
        """Return its change if that is complete and belongs to the file; take no lock."""
        try:
            file = os.open(self._path, os.O_RDONLY | _FLAGS)
        except OSError:  # none, or no journal
            return None
        try:
            change = self._content(file)
        finally:
            os.close(file)
        is_of = change is not None and self._with_target(os.O_RDONLY, change.is_of)
        return change if is_of else None

    def is_half_done(self) -> bool:
        """Tell whether its change was carried out in part: the file is damaged until that ends."""
        change = self.pending()
        return change is not None and self._with_target(os.O_RDONLY, change.is_half_done)

    @property
    def _file(self) -> int:
        assert self._lock is not None
        return self._lock.descriptor

    def _content(self, file: int) -> Change | None:
        """Read the change, unless it cannot be of the file: strangers' stores have anything."""
        state, target = os.fstat(file), os.stat(self._target)
        pages = min(target.st_size // PAGE + 1, _MOST_PAGES)
        if not stat.S_ISREG(state.st_mode) or state.st_size > _HEAD + pages * _ENTRY + 32:
            return None
        if not _may_write(state.st_uid, target):
            return None
        return Change.parse(read_padded(file, 0, state.st_size))

    def _settle(self, change: Change) -> bool:
        """Carry out a change, if it belongs to the file."""

        def carry_out(file: int) -> bool:
            if not change.is_of(file):
                return False
            change.carry_out(file, durable=True)
            return True

        return self._with_target(os.O_RDWR, carry_out)

    def _with_target(self, flags: int, call: Callable[[int], bool]) -> bool:
        file = os.open(self._target, flags | _FLAGS)
        try:
            return call(file)
        finally:
            os.close(file)


def carry_out_journal(path: str | os.PathLike[str]) -> None:
    """Finish the change of a file by a process that is dead; wait for one that is alive.

    OSError is raised if the changes are complete, and may not be made, or are not made in five
    seconds.
    """
    for _ in range(_TRIES):
        if Journal(path).pending() is None:
            return  # nothing has been changed yet
        try:
            settle_journal(path)
            return
        except BlockingIOError as e:
            error = e
        time.sleep(_SECONDS)
    raise error


def settle_journal(path: str | os.PathLike[str]) -> None:
    """Finish the change of a file by a dead process, and remove the journal.

    BlockingIOError is raised if a process is changing the file.
    """
    journal = Journal(path)
    with closing(journal):
        journal.settle()


def superblock_end(head: bytes) -> int | None:
    """Return where an HDF5 file ends by its superblock; None if that is unclear.

    `head` has the first 64 bytes of the file, or more.
    """
    # Offsets of an address's size and of the base address, by the superblock's version.
    fields = {0: (13, 24), 1: (13, 28), 2: (9, 12), 3: (9, 12)}
    if not head.startswith(HDF5_MAGIC) or head[8] not in fields:
        return None
    size_at, base_at = fields[head[8]]
    base, end = (int.from_bytes(head[at : at + 8], "little") for at in (base_at, base_at + 16))
    return end if head[size_at] == 8 and base == 0 else None


def _may_write(user: int, file: os.stat_result) -> bool:
    """Tell whether the owner of a journal may have been allowed to write to its file.

    In a folder such as /tmp, any user can put a file beside another one.
    """
    others = stat.S_IWGRP | stat.S_IWOTH
    known = {file.st_uid, 0, *([os.geteuid()] if hasattr(os, "geteuid") else ())}
    return user in known or bool(file.st_mode & others)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:_DIGEST]


def _read_page(file: int, page: int, end: int) -> bytes:
    """Return the part of a page that is before the end of its file."""
    return read_padded(file, page * PAGE, min(PAGE, end - page * PAGE))


def read_padded(file: int, at: int, size: int) -> bytes:
    """Read a range, with zeros behind the file's end."""
    content = bytearray(size)
    read_at(file, at, content)
    return bytes(content)


def _write_at(file: int, at: int, data: memoryview) -> None:
    """Write all of some bytes at an offset."""
    os.lseek(file, at, os.SEEK_SET)
    while data:
        data = data[os.write(file, data) :]


class JournaledFile:
    """A file that others see changed only by `commit`, and then whole; h5py takes it as a file.

    Errors of writing are kept for `commit`, as on a full disk: libhdf5 goes on after one, and the
    error that it raises in the end does not say why. BlockingIOError is raised if another process
    is changing the file.

    Parameters
    ----------
    path
        The file, which must exist.
    durable
        Whether a loss of power may come between any two steps.
    end_of
        Returns where the content of an open file ends. Bytes behind it are a killed process's.
    """

    def __init__(
        self, path: Path, durable: bool, end_of: Callable[[int], int] | None = None
    ) -> None:
        self._path, self._durable = path, durable
        self._journal = Journal(path)
        self._file = -1
        try:
            self._journal.take()
        except BaseException:
            # A dead process's change that could not be carried out stays.
            self._journal.close()
            raise
        try:
            self._file = os.open(os.path.realpath(path), os.O_RDWR | _FLAGS)
            size = os.fstat(self._file).st_size
            #: The size that others see. Bytes behind it are new.
            self.before = self._size = size if end_of is None else min(size, end_of(self._file))
            if self.before < size:
                os.ftruncate(self._file, self.before)
        except BaseException:
            self._journal.remove()
            self._close()
            raise
        self._pages: dict[int, bytearray] = {}
        self._at = 0
        self._error: OSError | None = None
        self._has_begun = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, as files do."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = origin + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def read(self, size: int) -> bytes:
        """Read at most a number of bytes from the position on."""
        content = bytearray(max(0, min(size, self._size - self._at)))
        self.readinto(content)
        return bytes(content)

    def readinto(self, buffer: Any) -> int:
        """Read from the position on."""
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        view[:count] = read_padded(self._file, self._at, count)
        for page, start, stop in self._changed_parts(self._at, min(self._at + count, self.before)):
            begin = page * PAGE + start - self._at
            view[begin : begin + stop - start] = self._pages[page][start:stop]
        self._at += count
        return count

    def write(self, data: Any) -> int:
        """Write from the position on."""
        view = memoryview(data).cast("B")
        end = self._at + len(view)
        until = min(end, self.before)
        for page, start, stop in _parts(_pages(self._at, until), self._at, until):
            if page not in self._pages:
                self._pages[page] = bytearray(read_padded(self._file, page * PAGE, PAGE))
            begin = page * PAGE + start - self._at
            self._pages[page][start:stop] = view[begin : begin + stop - start]
        new = max(self._at, self.before)
        if new < end:
            self._write_new(new, bytes(view[new - self._at :]))
        self._at, self._size = end, max(self._size, end)
        return len(view)

    def write_unseen(self, at: int, data: bytes) -> None:
        """Write at once to a range that nothing refers to which others see."""
        _write_at(self._file, at, memoryview(data))
        for page, start, stop in self._changed_parts(at, at + len(data)):
            begin = page * PAGE + start - at
            self._pages[page][start:stop] = data[begin : begin + stop - start]

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file."""
        self._size = self._at if size is None else size
        return self._size

    def flush(self) -> None:
        """Do nothing: all is written by `commit`."""

    def check(self) -> None:
        """Raise the first error of writing."""
        if self._error is not None:
            raise self._error

    def commit(self) -> int:
        """Let others see the changes; return how many bytes were written twice for it.

        After an OSError, the file is as before; or, if the message says so, the changes are in the
        journal, and the next process that opens the file makes them. StoreError is raised if
        something else has taken the file's name.
        """
        self.check()
        if self._durable:
            flush(self._file)
        if not os.path.samestat(os.fstat(self._file), os.stat(self._path)):
            raise StoreError(f"{self._path}: was replaced meanwhile")
        change = Change.of(self._file, self.before, self._size, self._pages)
        # From the first page on, only making all of them leaves a file that is whole.
        with _interrupt.shielded():
            nbytes = self._journal.write(change, self._durable)
            self._has_begun = True
            try:
                change.carry_out(self._file, self._durable)
            except OSError as e:
                text = (
                    "the append is complete in its journal: whoever opens the file next finishes it"
                )
                raise OSError(e.errno, f"{e.strerror}; {text}", self._path) from e
            self._journal.remove()
            self._close()
        return 2 * nbytes

    def abandon(self) -> None:
        """Leave the file as it was, unless its journal is complete."""
        if self._file < 0:
            return
        if self._has_begun:
            self._journal.close()
        else:
            # First: a complete journal refers to content that is cut off below.
            self._journal.remove()
            with suppress(OSError):
                os.ftruncate(self._file, self.before)
        self._close()

    def _changed_parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Return the changed ones of a range's pages, in any order: see `_parts`."""
        # Chunks have many more pages than there are changed ones.
        few, many = sorted((_pages(start, stop), self._pages), key=len)
        return _parts((page for page in few if page in many), start, stop)

    def _write_new(self, at: int, content: bytes) -> None:
        # Room for later takes no space on the disk, where nothing was yet.
        try:
            there = max(0, os.fstat(self._file).st_size - at)
            count = max(len(content.rstrip(b"\0")), min(there, len(content)))
            _write_at(self._file, at, memoryview(content)[:count])
        except OSError as e:
            self._error = self._error or e

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _pages(start: int, stop: int) -> range:
    """Return the pages of a range of bytes."""
    return range(start // PAGE, -(-stop // PAGE) if start < stop else 0)


def _parts(pages: Iterable[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield pages of a range of bytes, and which bytes of each are in it."""
    for page in pages:
        at = page * PAGE
        yield page, max(start - at, 0), min(stop - at, PAGE)
