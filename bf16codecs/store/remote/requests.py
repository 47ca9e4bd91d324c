"""Requests in zarr's event loop, of which nothing is heard when the interpreter exits."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from zarr.core.sync import sync

__all__ = ["ask"]

T = TypeVar("T")

# At exit, requests that are under way may end; the rest of the exit takes less than the second.
_LAST_SECONDS, _HELD_SECONDS = 0.5, 10


class _Requests:
    """Counts requests, and lets daemon threads begin none when the interpreter exits.

    zarr closes its loop then. What had been handed to the loop, and had not begun, Python warns of
    on the terminal, in one of ten exits beside a thread that reads all the time; what comes later
    is an error in a thread that nobody waits for.
    """

    def __init__(self) -> None:
        self._changed, self._under_way, self._is_over = threading.Condition(), 0, False

    def __enter__(self) -> None:
        with self._changed:
            if self._is_over:
                self._hold()
            self._under_way += 1

    def __exit__(self, kind: object, error: object, *_: object) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()
            # Python's executors, which ZIP files need, are shut down before `end` is called.
            is_shut = isinstance(error, RuntimeError) and "shutdown" in str(error)
            if self._is_over or is_shut:
                self._hold()

    def _hold(self) -> None:
        """Let a daemon thread, which nobody waits for, end with the process."""
        if threading.current_thread().daemon:
            self._changed.wait_for(lambda: False, _HELD_SECONDS)

    def end(self) -> None:
        """Let those under way end, and daemon threads begin no more."""
        with self._changed:
            self._is_over = True
            self._changed.wait_for(lambda: not self._under_way, _LAST_SECONDS)


_requests = _Requests()


def ask(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Call a coroutine function in zarr's event loop, and wait for what it returns."""
    with _requests:
        return sync(function(*args))


def _end() -> None:
    _requests.end()


def _forget_requests() -> None:
    global _requests
    _requests = _Requests()  # those of other threads, which a forked process does not have


# After zarr's, which is imported above: the last that is registered is called first.
atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_requests)
