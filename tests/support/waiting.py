"""Waiting for another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], limit: float = 60) -> bool:
    """Ask again and again; the limit only keeps a failing test from hanging."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
