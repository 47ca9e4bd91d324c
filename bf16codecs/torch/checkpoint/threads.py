"""Threads of a job's processes: those on one machine share its processors."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bf16codecs._base.threads import configured_threads

__all__ = ["Processors", "count_sharing", "thread_share", "usable_processors"]

# Containers on one machine share its processors, although their host names differ.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Processors(NamedTuple):
    """The processors that a process may use: numbers on a machine, empty where unknown."""

    machine: str
    numbers: frozenset[int]


def usable_processors() -> Processors:
    """Return the processors that this process may use."""
    try:
        machine = _BOOT.read_text()
    except OSError:
        machine = socket.gethostname()
    is_known = hasattr(os, "sched_getaffinity")
    return Processors(machine, frozenset(os.sched_getaffinity(0)) if is_known else frozenset())


def count_sharing(processors: Processors, all_processors: Sequence[Processors]) -> int:
    """Count the processes that use the same processors, among those of each process of a job."""
    return max(1, all_processors.count(processors))


def thread_share(processes: int) -> int:
    """Return how many threads each of some processes uses that share their processors."""
    return max(1, configured_threads() // processes)
