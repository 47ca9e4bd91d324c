"""Renaming as plain `rename` cannot: exchange two names, and never replace what is there."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from bf16codecs._files.held import HeldFolder

__all__ = ["exchange", "rename_new"]

# How systems and file systems say that they do not know a flag. NFS says EINVAL.
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
# What says that a name is taken: of a folder, the answer depends on what is there.
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}

# linux/fs.h and linux/fcntl.h; sys/stdio.h and sys/fcntl.h of macOS.
_AT_FDCWD = -2 if sys.platform == "darwin" else -100
_NO_REPLACE, _EXCHANGE = (4, 2) if sys.platform == "darwin" else (1, 2)

Rename = Callable[[int, bytes, int, bytes, int], int]


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


def _rename(held: HeldFolder, name: str, other: Path, flags: int) -> bool:
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


def exchange(held: HeldFolder, name: str, other: Path) -> bool:
    """Exchange what a name in a folder and a path stand for, in one step.

    Returns
    -------
    bool
        False where the system or the file system cannot; then nothing was done.

    Raises
    ------
    OSError
        If one of them does not exist, or may not be changed.
    """
    return _rename(held, name, other, _EXCHANGE)


def rename_new(held: HeldFolder, name: str, new: Path) -> None:
    """Rename a file or a folder in a folder to a path where nothing is.

    Raises
    ------
    FileExistsError
        If something is there.
    OSError
        If it may not be renamed.
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
