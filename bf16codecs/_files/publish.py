"""Publishing: a finished file or folder gets its name in one step, whenever the process may die.

It is made in a *working folder* beside its target, `.bf16codecs-<random>.tmp/`:

    lock     locked as long as the maker lives
    new      the new content; after an exchange, the old
    target   where two names cannot be exchanged: the name of the target that becomes `old`
    old      there, the content that is replaced
    scratch  files from which `new` is made

A working folder whose lock is signed and free is a dead process's. The next process of the same
user that writes beside it removes these five names, and the folder if that was all. Where death
came between two renames, the target is missing: the next process that opens it, if only to read,
first gives it the new content.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import re
import secrets
import stat
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from bf16codecs._base.limits import MANY_FILES
from bf16codecs._base.paths import absolute
from bf16codecs._files.folders import Folder
from bf16codecs._files.locks import LifeLock
from bf16codecs._files.sync import sync
from bf16codecs.errors import BF16CodecsError, ManyFilesWarning, StoreError

__all__ = [
    "WORKING_PREFIX",
    "WorkingFolder",
    "is_working_name",
    "open_unreplaced",
    "recover",
    "recover_missing",
]

Opened = TypeVar("Opened")

WORKING_PREFIX = ".bf16codecs-"
_NAME = re.compile(re.escape(WORKING_PREFIX) + r"[0-9a-f]{16}\.tmp")

_LOCK, _NEW, _NOTE, _OLD, _SCRATCH = "lock", "new", "target", "old", "scratch"

# Listing a folder takes 32 KiB, and Python 1 MiB at once for its objects.
_MEMORY = 4 << 20
# Removing takes one for each level of folders. An array's path has at most 32 levels; 4 are spare.
_DESCRIPTORS = 36

# No name is longer, nor a note.
_LONGEST_NOTE = 4096

# Errors of systems and file systems that do not know a flag. NFS says EINVAL.
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
# Errors for a name that is taken: of a folder, they depend on what has the name.
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}

# linux/fs.h and linux/fcntl.h; sys/stdio.h and sys/fcntl.h of macOS.
_AT_FDCWD = -2 if sys.platform == "darwin" else -100
_NO_REPLACE, _EXCHANGE = (4, 2) if sys.platform == "darwin" else (1, 2)

Rename = Callable[[int, bytes, int, bytes, int], int]


def is_working_name(name: str) -> bool:
    """Tell whether a name is that of a working folder."""
    return _NAME.fullmatch(name) is not None


class _Reserve:
    """Memory and file descriptors, kept for removing files when no others are left."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _MEMORY)
        self._descriptors: list[int] = []
        try:
            while len(self._descriptors) < _DESCRIPTORS:
                self._descriptors.append(os.open(os.devnull, os.O_RDONLY))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give all of it back."""
        self._memory.close()
        while self._descriptors:
            os.close(self._descriptors.pop())


class WorkingFolder:
    """A working folder that this process holds. `make` and `adopt` give one."""

    def __init__(
        self, folder: Folder, lock: LifeLock, durable: bool, reserve: _Reserve | None = None
    ) -> None:
        self.path = folder.path
        #: The path of the new content.
        self.new = self.path / _NEW
        self._folder, self._lock, self._durable = folder, lock, durable
        self._process = os.getpid()
        self._reserve = reserve
        #: Why the folder is kept: an error after which its content may still be needed.
        self._kept_because: OSError | None = None

    @classmethod
    def make(cls, parent: Path, durable: bool) -> WorkingFolder:
        """Make a working folder in another one.

        If it is `durable`, a loss of power leaves nothing that later processes do not know,
        and does not undo `publish`.
        """
        try:
            reserve = _Reserve()
        except OSError as e:
            raise OSError(e.errno, e.strerror, str(parent)) from e
        try:
            return cls._make(parent, durable, reserve)
        except BaseException:
            reserve.close()
            raise

    @classmethod
    def _make(cls, parent: Path, durable: bool, reserve: _Reserve) -> WorkingFolder:
        while True:
            path = parent / f"{WORKING_PREFIX}{secrets.token_hex(8)}.tmp"
            path.mkdir()
            try:
                folder = Folder(path)
                lock = LifeLock(folder, _LOCK, is_new=True)
            except FileNotFoundError:
                continue  # taken for a dead process's, as it had no lock yet
            except OSError:
                with suppress(OSError):
                    path.rmdir()
                raise
            if lock.is_taken:
                lock.close()
                continue
            made = cls(folder, lock, durable, reserve)
            try:
                lock.sign()
                if durable:
                    # Whatever else is in the folder after a loss of power, the lock is.
                    sync(path / _LOCK)
                    sync(path)
            except BaseException:
                made.close()
                raise
            return made

    @classmethod
    def adopt(cls, path: Path) -> WorkingFolder | None:
        """Take over a folder if its maker is certainly dead."""
        folder = Folder(path)
        if not folder.is_ours():
            return None
        try:
            lock = LifeLock(folder, _LOCK, is_new=False)
        except FileNotFoundError:
            os.rmdir(path)  # of a maker that had no time to make a lock; if not, it stays
            return None
        is_alone = lock.is_unsigned() and folder.names() == [_LOCK]
        if lock.is_held and (is_alone or lock.is_of_the_dead()):
            return cls(folder, lock, durable=True)
        lock.close()
        return None

    def publish(self, target: Path, check: Callable[[Path], object]) -> None:
        """Give `new` the name of a target in the folder that holds this one.

        `check` is called with the path of the old target, and again when it has moved into this
        folder; it raises if the old target must stay.
        """
        # If this folder was moved away, files that were written by path since would be missing.
        self._folder.check()
        while not self._publish_once(target, check):
            pass  # another process made or removed the target in between
        if self._durable:
            self._sync_names(target)

    def _sync_names(self, target: Path) -> None:
        try:
            sync(target.parent)
        except OSError as e:
            # Until the disk has the new name, a loss of power may bring back the old content.
            self._kept_because = e
            text = f"replaced, but a loss of power may undo that: {e.strerror}"
            raise OSError(e.errno, text, str(target)) from e

    def _publish_once(self, target: Path, check: Callable[[Path], object]) -> bool:
        try:
            _rename_new(self._folder, _NEW, target)
            return True
        except FileExistsError:
            check(target)
        try:
            if _exchange(self._folder, _NEW, target):
                self._look_again(_NEW, target, check)
                return True
            made = self._folder.stat(_NEW)
            if made is not None and not stat.S_ISDIR(made.st_mode):
                with self._folder.at(_NEW) as (path, folder):
                    os.replace(path, target, src_dir_fd=folder)
                return True
            self._move_aside(target)
            self._look_again(_OLD, target, check)
        except FileNotFoundError:  # the target: another program has moved it
            if self._folder.stat(_NEW) is None:
                raise
        return False

    def _look_again(self, name: str, target: Path, check: Callable[[Path], object]) -> None:
        """Put back the old target if it must stay: it may have changed since the first look."""
        try:
            check(self.path / name)
        except BaseException:
            try:
                self._put_back(name, target)
            except OSError as e:
                text = f"its old content is now {self.path / name}: {e.strerror}"
                self._kept_because = OSError(e.errno, text, str(target))
                self._lock.remove()  # folders without a lock are left alone
                raise self._kept_because from e
            raise

    def _put_back(self, name: str, target: Path) -> None:
        try:
            if name == _NEW and _exchange(self._folder, name, target):
                return
        except FileNotFoundError:
            pass  # another program has removed the new target
        _rename_new(self._folder, name, target)

    def _move_aside(self, target: Path) -> None:
        """Move the old target to `old`: no plain rename replaces a folder that is not empty."""
        note = self._folder.open(_NOTE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(note, "wb") as file:
            file.write(os.fsencode(target.name))
        if self._durable:
            for path in (self.path / _NOTE, self.path, target.parent):
                sync(path)
        with suppress(OSError):
            self._folder.remove(_OLD)  # of an earlier round
        with self._folder.at(_OLD) as (old, folder):
            os.rename(target, old, dst_dir_fd=folder)

    def noted_target(self) -> Path | None:
        """Return the path that `old` had."""
        # Other users may be able to write here: a pipe, a link, gigabytes.
        found = self._folder.stat(_NOTE)
        if found is None or not stat.S_ISREG(found.st_mode):
            return None
        with open(self._folder.open(_NOTE, os.O_RDONLY), "rb") as file:
            text = file.read(_LONGEST_NOTE)
        name = os.fsdecode(text)
        is_plain = name == os.path.basename(name) and name not in {"", ".", ".."}
        is_name = is_plain and "\0" not in name and len(text) < _LONGEST_NOTE
        return self.path.with_name(name) if is_name else None

    def finish(self) -> None:
        """Give a target that is missing its new content, if death came between the two renames."""
        self._restore(_OLD if self._folder.stat(_NEW) is None else _NEW)

    def _restore(self, content: str) -> None:
        target = self.noted_target()
        if target is None or self._folder.stat(_OLD) is None or os.path.lexists(target):
            return
        try:
            with suppress(FileExistsError):
                _rename_new(self._folder, content, target)
                sync(target.parent)
        except OSError as e:
            self._kept_because = e
            raise

    def close(self) -> OSError | None:
        """Undo unfinished work, and remove the folder; return the error if that failed."""
        if os.getpid() != self._process:
            return None  # a forked process: the folder is its parent's
        if self._reserve is not None:
            self._reserve.close()
        try:
            self._restore(_OLD)
            if self._kept_because is None:
                self._remove()
        except OSError as e:
            return e
        finally:
            self.release()
        return self._kept_because

    def release(self) -> None:
        """Leave the folder to the next process that looks for one."""
        self._lock.close()
        self._folder.close()

    def _remove(self) -> None:
        with suppress(Exception):  # which must not keep it from being removed
            if _has_many(self.path):
                text = f"more than {MANY_FILES} files to remove, which takes a while: {self.path}"
                warnings.warn(text, ManyFilesWarning, stacklevel=5)
        # Once the note is gone, `old` may be incomplete, and must not get a name any more.
        self._folder.remove(_NOTE)
        errors = []
        for name in (_NEW, _OLD, _SCRATCH):
            try:
                self._folder.remove(name)
            except OSError as e:
                errors.append(e)
        if errors:
            raise errors[0]
        if self._durable:
            # A folder that a loss of power left without its lock would never be removed.
            with suppress(OSError):
                sync(self.path)
        self._lock.remove()
        with suppress(FileNotFoundError):  # another process took it for one that has no lock yet
            os.rmdir(self.path)


def _has_many(folder: Path) -> bool:
    """Tell whether many files and folders are below a folder, without counting all of them."""
    waiting, count = [str(folder)], 0
    while waiting and count <= MANY_FILES:
        with os.scandir(waiting.pop()) as entries:
            for entry in islice(entries, MANY_FILES + 1):
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return count > MANY_FILES


def recover(folder: Path) -> None:
    """Finish or undo the work of dead processes in a folder, and remove their working folders."""
    for path in _working_folders(folder):
        _recover(path, lambda dead: True)


def recover_missing(path: str | os.PathLike[str]) -> None:
    """Finish a dead process's work for a missing path; touch nothing else."""
    target = Path(absolute(path))
    if not os.path.lexists(target):
        for found in _working_folders(target.parent):
            if os.path.isfile(found / "target"):  # of others, False
                _recover(found, lambda dead: dead.noted_target() == target)


def open_unreplaced(
    path: Path, opener: Callable[[], Opened], close: Callable[[Opened], None] = lambda opened: None
) -> Opened:
    """Open a model that another process may replace meanwhile; then, open the new one.

    Opening takes several looks at a path. If they see the old model and the new one, or nothing
    between two renames, the result is a mixture, or an error that is true of neither. `close`
    closes what `opener` returned of a model that was replaced.
    """
    while True:
        before = _identity(path)
        try:
            opened = opener()
        except (BF16CodecsError, OSError):
            if _identity(path) == before:
                raise
        else:
            if _identity(path) == before:
                return opened
            close(opened)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _recover(path: Path, condition: Callable[[WorkingFolder], bool]) -> None:
    # Folders that this user may not change or lock stay for those who may.
    with suppress(OSError, StoreError):
        dead = WorkingFolder.adopt(path)
        if dead is None:
            return
        if not condition(dead):
            dead.release()
            return
        try:
            dead.finish()
        finally:
            dead.close()


def _working_folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if is_working_name(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


@functools.cache
def _system_call() -> Rename | None:
    """Return the system's rename with flags, or None; -1 and `ctypes.get_errno()` are errors."""
    name = {"darwin": "renameatx_np", "linux": "renameat2"}.get(sys.platform)
    if name is None:
        return None
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if call is not None:
        path = [ctypes.c_int, ctypes.c_char_p]
        call.argtypes = [*path, *path, ctypes.c_uint]
    return call


def _rename(held: Folder, name: str, other: Path, flags: int) -> bool:
    """Rename with flags; return False where that is not possible."""
    call = _system_call()
    if call is None:
        return False
    with held.at(name) as (path, folder):
        old = _AT_FDCWD if folder is None else folder
        if call(old, os.fsencode(path), _AT_FDCWD, os.fsencode(other), flags) == 0:
            return True
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            return False
        raise OSError(number, os.strerror(number), path, None, str(other))


def _exchange(held: Folder, name: str, other: Path) -> bool:
    """Exchange what a name in a folder and a path stand for, in one step.

    It returns False, and has done nothing, where the system or the file system cannot do that.
    """
    return _rename(held, name, other, _EXCHANGE)


def _rename_new(held: Folder, name: str, new: Path) -> None:
    """Rename a file or a folder in a folder to a path where nothing is.

    FileExistsError is raised if the path exists.
    """
    try:
        if _rename(held, name, new, _NO_REPLACE):
            return
        # Here, the name may be taken between this look and the renaming. What that could replace
        # is an empty folder, or a file where there are no hard links.
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
        found = held.stat(name)
        is_folder = found is not None and stat.S_ISDIR(found.st_mode)
        with held.at(name) as (path, folder):
            if os.name == "nt" or is_folder or not _linked(path, folder, new):
                os.rename(path, new, src_dir_fd=folder)
    except OSError as e:
        if e.errno in _TAKEN:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new)) from e
        raise


def _linked(old: str, folder: int | None, new: Path) -> bool:
    """Rename a file by a second hard link, which replaces nothing; False without hard links."""
    try:
        os.link(old, new, src_dir_fd=folder, follow_symlinks=folder is None)
    except OSError as e:
        if e.errno in {*_UNSUPPORTED, errno.EPERM, errno.EMLINK}:
            return False
        raise
    os.unlink(old, dir_fd=folder)
    return True
