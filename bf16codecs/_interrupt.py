"""Signals that end a command: noted at once, and raised where nothing is left behind.

An exception out of a signal handler may come between any two steps, and may get lost: Python
drops what is raised in a weakref's callback or in `__del__`. So a signal is noted as well, and
whoever works in pieces looks at the note. This package installs no handlers; its commands do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Interrupted", "check", "exposed", "forget", "note", "shielded"]


class Interrupted(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Thread(threading.local):
    """Handlers run in the main thread, and see whether that one is shielded."""

    is_shielded = False


_noted: int | None = None
_thread = _Thread()


def note(number: int, frame: object = None) -> None:
    """Handle a signal: the first one is noted, and raised unless that has to wait.

    Later ones change nothing. They come from the impatient, and would interrupt the clean-up.
    """
    global _noted
    if _noted is None:
        _noted = number
        if not _thread.is_shielded:
            raise Interrupted(number)


def check() -> None:
    """Raise `Interrupted` if a signal was noted."""
    if _noted is not None:
        raise Interrupted(_noted)


def forget() -> None:
    """Begin anew, without a signal."""
    global _noted
    _noted = None


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
    """Inside of a shielded block: raise what arrives here, or was noted before."""
    before = _thread.is_shielded
    try:
        _thread.is_shielded = False
        check()
        yield
    finally:
        _thread.is_shielded = before
