"""Defaults and choices of the benchmark."""

from __future__ import annotations

__all__ = [
    "ALL_SECONDS",
    "DEFAULT_NBYTES",
    "GPU_REPEATS",
    "QUICK_GPU_NBYTES",
    "QUICK_NBYTES",
    "QUICK_SECONDS",
    "QUICK_SYSTEM_NBYTES",
    "SECONDS",
    "SYSTEM_NBYTES",
    "SYSTEM_TITLES",
]

#: Time that all contenders share: those of one table, of several, and with ``--quick``.
SECONDS, ALL_SECONDS, QUICK_SECONDS = 120.0, 240.0, 15.0
#: Bytes to measure: more than caches hold.
DEFAULT_NBYTES = 1 << 28
#: Bytes for the earlier systems, some of which take seconds for a megabyte.
SYSTEM_NBYTES = 1 << 25
#: Bytes of both with ``--quick``.
QUICK_NBYTES, QUICK_SYSTEM_NBYTES = 1 << 25, 1 << 21
#: Rounds on a GPU, and bytes with ``--quick``.
GPU_REPEATS, QUICK_GPU_NBYTES = 10, 1 << 28
#: Titles of the earlier systems, by their letters in the documentation.
SYSTEM_TITLES = {
    "A": "shuffled bytes and Zstandard",
    "B": "split streams",
    "C": "half precision, lossy",
    "D": "LMC",
}
