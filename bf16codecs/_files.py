"""Reading and writing files until everything is done: one system call may do less than asked."""

from __future__ import annotations

import os
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["HAS_PREADV", "SharedFile", "open_to_read", "read_at", "write_all"]

#: Whether threads can read from one descriptor side by side. Windows has no such call.
HAS_PREADV = hasattr(os, "preadv")


def open_to_read(path: str | os.PathLike[str]) -> int:
    """Open a file and return its descriptor."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))


class SharedFile:
    """A file that is open for reading as long as anybody has this."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.descriptor = open_to_read(path)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def read_at(descriptor: int, offset: int, out: NDArray[np.uint8]) -> int:
    """Fill `out` with the bytes of a file from `offset` on.

    Returns
    -------
    int
        How many bytes there were: fewer than `out` has where the file ends.
    """
    done = 0
    while done < out.size:
        count = _read_some(descriptor, offset + done, out[done:])
        if count == 0:
            break
        done += count
    return done


def _read_some(descriptor: int, offset: int, out: NDArray[np.uint8]) -> int:
    if HAS_PREADV:
        return os.preadv(descriptor, [out.data], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    part = os.read(descriptor, out.size)
    out[: len(part)] = np.frombuffer(part, np.uint8)
    return len(part)


def write_all(file: FileIO, data: Any) -> None:
    """Write a buffer to an unbuffered file."""
    view = memoryview(data).cast("B")
    while view:
        view = view[file.write(view) :]
