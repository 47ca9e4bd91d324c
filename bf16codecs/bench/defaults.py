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
#: Size of what is measured, which is in no cache.
DEFAULT_NBYTES = 1 << 28
#: The same for the earlier systems, some of which take seconds a megabyte.
SYSTEM_NBYTES = 1 << 25
#: With ``--quick``.
QUICK_NBYTES, QUICK_SYSTEM_NBYTES = 1 << 25, 1 << 21
#: On a GPU: rounds, and what is decoded at a time with ``--quick``.
GPU_REPEATS, QUICK_GPU_NBYTES = 10, 1 << 28
#: The earlier systems, by the letters that documents call them.
SYSTEM_TITLES = {
    "A": "shuffled bytes and Zstandard",
    "B": "split streams",
    "C": "half precision, lossy",
    "D": "LMC",
}
