"""Waits for other processes or threads, with limits that keep tests from hanging."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def wait_until(condition: Callable[[], bool]) -> bool:
    """Poll a condition; the limit only keeps a failing test from hanging."""
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Fail once this process has used far more processor time than any machine needs."""
    if not hasattr(signal, "SIGVTALRM"):  # Windows
        yield
        return

    def fail(*_: Any) -> None:
        raise AssertionError(f"still not done after {seconds} s of processor time")

    before = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
