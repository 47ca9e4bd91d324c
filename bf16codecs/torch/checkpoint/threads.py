"""How many threads a process of a job uses."""

from __future__ import annotations

import os

from bf16codecs._threads import configured_threads

__all__ = ["own_threads"]


def own_threads() -> int:
    """Return this process's part of the threads, where several of a job share a machine."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")  # torchrun tells it
    count = int(processes) if processes.isdecimal() and processes.isascii() else 1
    return max(1, configured_threads() // max(1, count))
