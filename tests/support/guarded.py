"""Memory between two protected pages: reading or writing past its ends crashes."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest

needs_guards = pytest.mark.skipif(sys.platform != "linux", reason="uses mprotect of the C library")

PROT_NONE = 0


class Arena:
    """Memory of up to `size` bytes right before or after an unreadable page."""

    def __init__(self, size: int) -> None:
        pages = -(-size // mmap.PAGESIZE)
        self._map = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (0, pages + 1):
            address = ctypes.c_void_p(first + page * mmap.PAGESIZE)
            if libc.mprotect(address, ctypes.c_size_t(mmap.PAGESIZE), PROT_NONE) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self._view = memoryview(self._map)[mmap.PAGESIZE : (pages + 1) * mmap.PAGESIZE]

    def room(self, size: int, at_end: bool) -> memoryview:
        """Return `size` writable bytes that touch the page behind them or the one in front."""
        if size == 0:
            return self._view[:0]
        return self._view[-size:] if at_end else self._view[:size]

    def holding(self, data: bytes, at_end: bool) -> memoryview:
        """Return memory that holds `data`."""
        view = self.room(len(data), at_end)
        view[:] = data
        return view
