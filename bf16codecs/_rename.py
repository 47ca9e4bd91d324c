"""Renaming as plain `rename` cannot: exchange two names, and never replace what is there."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["exchange", "rename_new"]

# How systems and file systems say that they do not know a flag. NFS says EINVAL.
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
# What says that a name is taken: of a folder, the answer depends on what is there.
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}

# linux/fs.h and linux/fcntl.h; sys/stdio.h of macOS.
_AT_FDCWD = -100
_NO_REPLACE, _EXCHANGE = (4, 2) if sys.platform == "darwin" else (1, 2)

Rename = Callable[[bytes, bytes, int], int]


@functools.cache
def _system_call() -> Rename | None:
    """Return the system's rename with flags, or None; -1 and `ctypes.get_errno()` are errors."""
    if os.name != "posix":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renamex_np"):
        call = libc.renamex_np
        call.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
        return call
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        at = libc.renameat2
        at.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        return lambda old, new, flags: at(_AT_FDCWD, old, _AT_FDCWD, new, flags)
    return None


def _rename(old: Path, new: Path, flags: int) -> bool:
    """Rename with flags; return False where that is not possible."""
    call = _system_call()
    if call is None:
        return False
    if call(os.fsencode(old), os.fsencode(new), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(old), None, str(new))


def exchange(one: Path, other: Path) -> bool:
    """Exchange what two names stand for, in one step.

    Returns
    -------
    bool
        False where the system or the file system cannot; then nothing was done.

    Raises
    ------
    OSError
        If a name does not exist, or may not be changed.
    """
    return _rename(one, other, _EXCHANGE)


def rename_new(old: Path, new: Path) -> None:
    """Rename a file or a folder to a name that nothing has.

    Raises
    ------
    FileExistsError
        If something has that name.
    OSError
        If it may not be renamed.
    """
    try:
        if _rename(old, new, _NO_REPLACE):
            return
        # Here, the name may be taken between this look and the renaming. What that could replace
        # is an empty folder, or a file where there are no hard links.
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
        if os.name == "nt" or old.is_dir() or not _linked(old, new):
            os.rename(old, new)
    except OSError as e:
        if e.errno in _TAKEN:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new)) from e
        raise


def _linked(old: Path, new: Path) -> bool:
    """Rename a file by a second hard link, which replaces nothing; False without hard links."""
    try:
        os.link(old, new)
    except OSError as e:
        if e.errno in {*_UNSUPPORTED, errno.EPERM, errno.EMLINK}:
            return False
        raise
    os.unlink(old)
    return True
