"""A file that is changed in one step, and not copied: what it had is changed by a journal.

New content goes behind the file's end at once, where nobody looks. Changes of what was there are
kept in memory. To commit, they are written to a journal beside the file, flushed, and carried out,
and the journal is removed. So the file is as before, or has all changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._files.journal import PAGE, Change, Journal, read_at, write_at
from bf16codecs._files.sync import flush
from bf16codecs.errors import StoreError

__all__ = ["JournaledFile"]

_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class JournaledFile:
    """A file that others see changed only by `commit`, and then whole; h5py takes it as a file.

    Errors of writing are kept for `commit`, as on a full disk: libhdf5 goes on after one, and what
    it raises in the end is none that Python knows.

    Parameters
    ----------
    path
        The file, which is there.
    durable
        Whether a loss of power may come between any two steps.
    end_of
        Returns where the content of an open file ends. What is behind is left of a killed process.

    Raises
    ------
    BlockingIOError
        If another process is changing it.
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
            # What a dead process has decided, and could not be carried out, stays.
            self._journal.close()
            raise
        try:
            self._file = os.open(os.path.realpath(path), os.O_RDWR | _FLAGS)
            size = os.fstat(self._file).st_size
            #: The size that others see. What is behind is new.
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
        view[:count] = read_at(self._file, self._at, count)
        for page, start, stop in self._changed_parts(self._at, min(self._at + count, self.before)):
            begin = page * PAGE + start - self._at
            view[begin : begin + stop - start] = self._pages[page][start:stop]
        self._at += count
        return count

    def write(self, data: Any) -> int:
        """Write from the place on."""
        view = memoryview(data).cast("B")
        end = self._at + len(view)
        until = min(end, self.before)
        for page, start, stop in _parts(_pages(self._at, until), self._at, until):
            if page not in self._pages:
                self._pages[page] = bytearray(read_at(self._file, page * PAGE, PAGE))
            begin = page * PAGE + start - self._at
            self._pages[page][start:stop] = view[begin : begin + stop - start]
        new = max(self._at, self.before)
        if new < end:
            self._write_new(new, bytes(view[new - self._at :]))
        self._at, self._size = end, max(self._size, end)
        return len(view)

    def write_unseen(self, at: int, data: bytes) -> None:
        """Write at once to a place of which nothing that others see speaks."""
        write_at(self._file, at, memoryview(data))
        for page, start, stop in self._changed_parts(at, at + len(data)):
            begin = page * PAGE + start - at
            self._pages[page][start:stop] = data[begin : begin + stop - start]

    def truncate(self, size: int | None = None) -> int:
        """Let the file have a size."""
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

        Raises
        ------
        OSError
            If the file is as before; or, as the message says then, if the changes are in the
            journal: whoever opens the file next makes them.
        StoreError
            If something else has taken the file's name.
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
                text = f"{e.strerror}; what is added is complete in its journal, and comes into its"
                raise OSError(e.errno, f"{text} place when it is opened next", self._path) from e
            self._journal.remove()
            self._close()
        return 2 * nbytes

    def abandon(self) -> None:
        """Leave the file as it was, unless that is decided otherwise."""
        if self._file < 0:
            return
        if self._has_begun:
            self._journal.close()
        else:
            # First: one that is complete speaks of what is cut off then.
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
            write_at(self._file, at, memoryview(content)[:count])
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
