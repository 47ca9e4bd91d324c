"""A folder that is held open: whatever takes its path later, this one is meant."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["HeldFolder"]

_HAS_AT = {os.open, os.stat, os.unlink, os.rename, os.link} <= os.supports_dir_fd

# Opening a pipe must not wait for a writer.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"))

# Workers of a cluster may still put files into a folder that is being removed.
_REMOVALS = 3


class HeldFolder:
    """A folder, and the names in it; no symbolic link is followed.

    Where the system knows no names relative to a folder that is open, as on Windows, each step
    makes sure first that the path is still this folder's.

    Parameters
    ----------
    path
        The folder.

    Raises
    ------
    OSError
        If it is not a folder, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        if _HAS_AT:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            self._status = os.fstat(self._descriptor)
        else:
            self._status = os.lstat(path)
            if not stat.S_ISDIR(self._status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def close(self) -> None:
        """Let go of the folder."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # nothing was written through it
                os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()

    def is_own(self) -> bool:
        """Tell whether it is this user's."""
        return not hasattr(os, "geteuid") or self._status.st_uid == os.geteuid()

    @contextmanager
    def at(self, name: str) -> Iterator[tuple[Any, int | None]]:
        """Yield a path and the `dir_fd` that it is relative to; errors get the whole path."""
        whole = str(self.path / name)
        if self._descriptor is None:
            self.check()
        try:
            yield (whole if self._descriptor is None else name), self._descriptor
        except OSError as e:
            if e.filename == name:
                e.filename = whole
            raise

    def check(self) -> None:
        """Raise FileNotFoundError if the path is no longer this folder's."""
        if not os.path.samestat(os.lstat(self.path), self._status):
            raise FileNotFoundError(errno.ENOENT, "It was replaced or removed", str(self.path))

    def stat(self, name: str) -> os.stat_result | None:
        """Return what a name, not what a link there, stands for; None if nothing has it."""
        with self.at(name) as (path, folder):
            try:
                return os.stat(path, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def open(self, name: str, flags: int) -> int:
        """Open a regular file, and return its descriptor.

        Raises
        ------
        OSError
            If it is something else, or cannot be opened.
        """
        with self.at(name) as (path, folder):
            descriptor = os.open(path, flags | _FLAGS, 0o666, dir_fd=folder)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(self.path / name))

    def names(self) -> list[str]:
        """Return the names of what is in the folder."""
        if self._descriptor is None:
            self.check()
            return os.listdir(self.path)
        return os.listdir(self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file or a folder, as much of it as possible.

        Raises
        ------
        OSError
            The first error; a name that nothing has is none.
        """
        errors: list[OSError] = []

        def note(function: Any, path: str, info: Any) -> None:
            if not isinstance(info[1], FileNotFoundError):
                errors.append(info[1])

        for _ in range(_REMOVALS):
            errors.clear()
            found = self.stat(name)
            if found is None:
                return
            with self.at(name) as (path, folder):
                if stat.S_ISDIR(found.st_mode):
                    shutil.rmtree(path, onerror=note, dir_fd=folder)
                else:
                    try:
                        os.unlink(path, dir_fd=folder)
                    except OSError as e:
                        note(None, path, (None, e))
            if not errors:
                return
        raise errors[0]
