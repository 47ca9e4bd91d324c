"""The threads of a process of a job: all its processes on a machine share the processors."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bf16codecs._base.threads import configured_threads

__all__ = ["Place", "own_place", "own_threads", "sharing"]

# Two containers on one machine have different host names, and share its processors.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Place(NamedTuple):
    """Where a process runs: a machine, and which of its processors, if the system tells."""

    machine: str
    processors: frozenset[int]


def own_place() -> Place:
    """Return where this process runs."""
    try:
        machine = _BOOT.read_text()
    except OSError:
        machine = socket.gethostname()
    known = hasattr(os, "sched_getaffinity")
    return Place(machine, frozenset(os.sched_getaffinity(0)) if known else frozenset())


def sharing(place: Place, places: Sequence[Place]) -> int:
    """Return how many processes share a process's processors on its machine, itself included."""
    return max(1, places.count(place))


def own_threads(processes: int) -> int:
    """Return a process's part of the threads, where so many share its processors."""
    return max(1, configured_threads() // processes)
