"""Signals that end a command: noted at once, and raised where nothing is left behind.

An exception out of a signal handler may come between any two steps, and may get lost: Python
drops what is raised in a weakref's callback or in `__del__`. So a signal is noted as well, and
code that works in pieces looks at the note. This package installs no handlers; its commands do.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "Interrupted",
    "check",
    "exposed",
    "finish",
    "finished_before",
    "forget",
    "note",
    "shielded",
    "temporary",
]


class Interrupted(BaseException):
    """A signal asked this process to end.

    Attributes
    ----------
    number : int
        The signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Thread(threading.local):
    """Whether a thread is shielded. Handlers run in the main thread, and look at its value."""

    is_shielded = False


# A user who repeats a signal does so after this time; timeouts and shells send several at once.
_SECONDS_BETWEEN = 0.5

_noted: int | None = None
_raised_at = -math.inf
_finished: str | None = None
_thread = _Thread()


def note(number: int, frame: Any = None) -> None:
    """Handle a signal: the first one is noted, and raised unless that has to wait.

    Later signals raise the first again, which may have been lost in code that never looks at the
    note. Those that arrive together with it do not: they would interrupt its undoing. While modules
    are imported, no signal is raised.
    """
    global _noted, _raised_at
    if _noted is None:
        _noted = number
    now = time.monotonic()
    if _is_importing(frame):
        return
    if not _thread.is_shielded and now - _raised_at >= _SECONDS_BETWEEN:
        _raised_at = now
        raise Interrupted(_noted)


def _is_importing(frame: Any) -> bool:
    """Tell whether modules are being imported: NumPy would report a signal in forty lines."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def check() -> None:
    """Raise `Interrupted` if a signal was noted."""
    if _noted is not None:
        raise Interrupted(_noted)


def finish(what: str) -> None:
    """Note work that is complete, and stays, whatever ends the command."""
    global _finished
    _finished = what


@contextmanager
def temporary() -> Iterator[None]:
    """Forget work that is completed inside the block: it does not stay, or is reported."""
    global _finished
    try:
        yield
    finally:
        _finished = None


def finished_before() -> str | None:
    """Return the complete work, for the message of a later error."""
    return _finished


def forget() -> None:
    """Forget the noted signal, and the complete work."""
    global _noted, _raised_at, _finished
    _noted, _raised_at, _finished = None, -math.inf, None


@contextmanager
def shielded() -> Iterator[None]:
    """Only note the signals that arrive inside of the block."""
    before, _thread.is_shielded = _thread.is_shielded, True
    try:
        yield
    finally:
        _thread.is_shielded = before


@contextmanager
def exposed() -> Iterator[None]:
    """Inside of a shielded block: raise signals that arrive here, or were noted before."""
    before = _thread.is_shielded
    try:
        _thread.is_shielded = False
        check()
        yield
    finally:
        _thread.is_shielded = before
