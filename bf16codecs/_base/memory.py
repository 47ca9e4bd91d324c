"""The memory of this process, for benchmarks: its peak, and equal conditions for all codecs."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["give_back_freed_memory", "keep_freed_memory", "no_peak_because", "peak_memory"]

# Parameters of glibc's mallopt(), and what it takes for "never".
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _NEVER = -1, -3, 1 << 30


def keep_freed_memory() -> None:
    """Let the allocator keep freed memory, for the rest of the process (glibc).

    Otherwise other allocations decide whether freed memory goes back to the system. If it does,
    every result that is kept is written to fresh pages: the same encoder then ran at 2.0
    GB/s, or at 4.2.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_TRIM_THRESHOLD, _NEVER)
    mallopt(_MMAP_THRESHOLD, _NEVER)


def give_back_freed_memory() -> None:
    """Return free memory to the system (glibc), so that a peak counts new memory."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def peak_memory() -> Iterator[Callable[[], int | None]]:
    """Yield a function that returns by how many bytes resident memory has risen (Linux)."""
    try:
        _forget_peak()
        before = _status("VmRSS")
    except OSError:
        yield lambda: None
        return
    yield lambda: max(0, _status("VmHWM") - before)


def no_peak_because() -> str | None:
    """Return why `peak_memory` does not work here; None if it does."""
    if not sys.platform.startswith("linux"):
        return "only Linux has a peak that can be reset"
    try:
        _forget_peak()
        _status("VmHWM")
    except OSError as e:
        return f"this system does not report it: {e}"
    return None


def _forget_peak() -> None:
    """Reset the peak to the current resident memory."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")
