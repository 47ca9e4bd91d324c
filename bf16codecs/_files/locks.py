"""Lock files, which show whether the process that made them is alive."""

from __future__ import annotations

import errno
import os
import platform
import time
from contextlib import closing, suppress
from pathlib import Path

from bf16codecs._files.folders import Folder
from bf16codecs.errors import StoreError

__all__ = ["LifeLock", "refuse_taken", "take_lock"]

# The first word of a lock file that this package made.
_MARK = "bf16codecs"

# Some shared file systems are mounted with locks that other machines do not see. What another
# machine left is taken for dead only if its lock is free and this time has passed.
_FOREIGN_SECONDS = 7 * 24 * 3600.0

try:
    import fcntl

    # Not lockf(): its locks belong to the process, which may have several of these.
    def _try_lock(descriptor: int) -> None:
        """Lock a file, or raise BlockingIOError if another process has."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

except ImportError:
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        """Lock a file, or raise PermissionError if another process has."""
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]


# Windows' locks forbid others to read the locked bytes: lock one behind the text.
_LOCKED_BYTE = 1 << 20


def _machine() -> str:
    """Return words for this machine: containers have different names, but share the boot's id."""
    words = [platform.node() or "unnamed"]
    with suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return " ".join(words)


class LifeLock:
    """A lock file in a folder, locked unless another process holds it.

    The system frees the lock when its process ends, however that happens. If the lock `is_new`, the
    file is made, and an existing one is never used.
    """

    def __init__(self, folder: Folder, name: str, is_new: bool) -> None:
        self._folder, self._name = folder, name
        flags = os.O_CREAT | os.O_EXCL if is_new else 0
        path = str(folder.path / name)
        try:
            self.descriptor = folder.open(name, os.O_RDWR | flags)
        except StoreError as e:
            raise FileExistsError(errno.EEXIST, "Not a regular file: remove it", path) from e
        except OSError as e:
            e.filename = path
            raise
        #: Whether the lock is this object's. Someone else has it, or locks do not work there.
        self.is_held = False
        #: Whether it is certain that someone else has it.
        self.is_taken = False
        try:
            _try_lock(self.descriptor)
            self.is_held = self.is_current()
            self.is_taken = not self.is_held
        except (BlockingIOError, PermissionError):
            self.is_taken = True
        except OSError:
            pass

    def is_current(self) -> bool:
        """Tell whether the file still has its name: an earlier holder may have removed it."""
        try:
            named = self._folder.stat(self._name)
        except OSError:
            return False
        return named is not None and os.path.samestat(named, os.fstat(self.descriptor))

    def refuse_current(self, target: str) -> None:
        """Raise BlockingIOError if the file still has its name: another process has the lock."""
        if not self.is_current():
            return
        text = "another process is writing to it: try again when that is done"
        if not self.is_taken:
            text = (
                "another process is writing to it, or was killed: files cannot be locked here; if"
                f" there is none, remove {self._folder.path / self._name}"
            )
        raise BlockingIOError(errno.EWOULDBLOCK, text, target)

    def sign(self) -> None:
        """Write into the file which machine its maker is on."""
        # A file that could not be locked has no owner: it never looks like a dead one of this
        # machine, even if locks work here by then.
        maker = _machine() if self.is_held else "not locked"
        os.write(self.descriptor, f"{_MARK} {maker}".encode())

    def is_unsigned(self) -> bool:
        """Tell whether the file is empty: its maker had no time to sign it."""
        return os.fstat(self.descriptor).st_size == 0

    def is_of_the_dead(self) -> bool:
        """Tell whether this package made the file, and its free lock proves the maker dead."""
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        words = os.read(self.descriptor, 1000).decode(errors="replace").split()
        if words[:1] != [_MARK]:
            return False
        if set(words[1:]) & set(_machine().split()):
            return True
        return time.time() - os.fstat(self.descriptor).st_mtime > _FOREIGN_SECONDS

    def close(self) -> None:
        """Free the lock; the file stays."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            self.close()

    def remove(self) -> None:
        """Remove the file, and free the lock."""
        if os.name == "nt":  # where no open file can be removed
            self.close()
        try:
            # Not with `Folder.remove`: a folder may have taken the name.
            with suppress(FileNotFoundError), self._folder.at(self._name) as (path, folder):
                os.unlink(path, dir_fd=folder)
        finally:
            self.close()


def take_lock(folder: Folder, name: str, target: str) -> LifeLock:
    """Take the lock of an append, which one process at a time has; make its file if need be.

    Where locks do not work, the file is the lock: its maker holds it. BlockingIOError, with the
    path of the `target` that is appended to, is raised if another process has it; FileNotFoundError
    if the folder was removed.
    """
    while True:
        is_new = True
        try:
            lock = LifeLock(folder, name, is_new)
        except FileExistsError:
            is_new = False
            try:
                lock = LifeLock(folder, name, is_new)
            except FileNotFoundError:
                continue  # its holder is done
        if lock.is_held or (is_new and not lock.is_taken):
            return lock
        with closing(lock):
            lock.refuse_current(target)


def refuse_taken(folder: Folder, name: str, target: str) -> None:
    """Raise BlockingIOError if another process has a lock that `take_lock` gives."""
    try:
        lock = LifeLock(folder, name, is_new=False)
    except FileNotFoundError:
        return
    with closing(lock):
        if not lock.is_held:
            lock.refuse_current(target)
