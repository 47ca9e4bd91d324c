"""Files: opened only if they are regular, and read and written whole."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import sys
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from bf16codecs.errors import StoreError

__all__ = [
    "HAS_PREADV",
    "READ_FLAGS",
    "SharedFile",
    "disk_size",
    "open_to_read",
    "read_at",
    "require_regular",
    "reserve",
    "write_all",
]

#: Whether threads can read from one descriptor side by side. Windows has no such call.
HAS_PREADV = hasattr(os, "preadv")

#: Opening a pipe must not wait for a writer, and opening a terminal must not make it the one that
#: controls this process.
READ_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY")
)
# Of smaller files, reserving takes as long as it saves.
_WORTH_RESERVING = 1 << 20


def open_to_read(path: str | os.PathLike[str]) -> int:
    """Open a file, and return its descriptor.

    StoreError is raised if it is not a regular file: reading from a pipe or a device may never end.
    """
    return require_regular(os.open(path, READ_FLAGS))


def require_regular(descriptor: int) -> int:
    """Return the descriptor of a regular file; close another one, and raise StoreError."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise StoreError("it is not a regular file")


class SharedFile:
    """A regular file that is open for reading as long as this object is referred to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.descriptor = open_to_read(path)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            with suppress(OSError):  # nothing was written
                os.close(self.descriptor)


def read_at(descriptor: int, offset: int, out: Any) -> int:
    """Fill a buffer of bytes from an offset of a file on; return how many the file had."""
    view, done = memoryview(out), 0
    while done < len(view):
        count = _read_some(descriptor, offset + done, view[done:])
        if count == 0:
            break
        done += count
    return done


def _read_some(descriptor: int, offset: int, view: memoryview) -> int:
    if HAS_PREADV:
        return os.preadv(descriptor, [view], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    part = os.read(descriptor, len(view))
    view[: len(part)] = part
    return len(part)


def write_all(file: FileIO, data: Any) -> None:
    """Write a buffer to an unbuffered file."""
    view = memoryview(data).cast("B")
    while view:
        view = view[file.write(view) :]


def disk_size(path: Path) -> int:
    """Return the size of a file, or of all files in a folder, without the holes of HDF5's runs."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(_data_size(file) for file in files if file.is_file())


def _data_size(path: Path) -> int:
    state = path.stat()
    # Fewer blocks are no proof of holes: ZFS counts them when it writes, seconds later.
    if 512 * getattr(state, "st_blocks", state.st_size) >= state.st_size:
        return state.st_size
    end = total = 0
    with open(path, "rb") as file, suppress(OSError):  # no more data
        while end < state.st_size:
            start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            total += end - start
    return total


# Errors of systems and file systems that cannot reserve space; then none is reserved.
_CANNOT_RESERVE = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


def reserve(descriptor: int, nbytes: int) -> None:
    """Reserve space for a file that will be so long, where the system can, and give it that size.

    On ext4, writing it then runs at 7.2 GB/s instead of 4.6, in a file of 670 MB or in files of 11
    MB, and 1.25 times as fast in files of 1 MB. A full disk raises an OSError at once.
    """
    function = _fallocate()
    # Not os.posix_fallocate(): where the file system cannot, that writes into each block.
    if nbytes >= _WORTH_RESERVING and function is not None and function(descriptor, 0, 0, nbytes):
        number = ctypes.get_errno()
        if number not in _CANNOT_RESERVE:
            raise OSError(number, os.strerror(number))


@functools.cache
def _fallocate() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function
