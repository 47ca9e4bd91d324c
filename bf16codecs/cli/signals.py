"""Signals and warnings while a command runs."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs.errors import LeftoverWarning, ManyFilesWarning, TensorChangeWarning

__all__ = ["handled_signals", "shown_warnings", "silence_what_is_left"]

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # SIGBREAK is Windows' Ctrl-Break
_OURS = (LeftoverWarning, ManyFilesWarning, TensorChangeWarning)


@contextmanager
def handled_signals() -> Iterator[None]:
    """Let signals that ask a process to end raise `Interrupted`, here at the latest."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may install handlers
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    # What is ignored stays so: nohup ignores SIGHUP, and shells do SIGINT of background jobs.
    before = {n: old for n in numbers if (old := signal.getsignal(n)) is not signal.SIG_IGN}
    report = sys.unraisablehook

    def report_others(lost: Any) -> None:
        if lost.exc_type is not _interrupt.Interrupted:  # it is raised again
            report(lost)

    _interrupt.forget()
    try:
        for number in before:
            signal.signal(number, _note)
        sys.unraisablehook = report_others
        try:
            yield
        finally:
            _interrupt.check()
    finally:
        sys.unraisablehook = report
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)
        _interrupt.forget()


def _note(number: int, frame: object = None) -> None:
    # Now, because what zarr waits for may be collected before the command says why it ends.
    logging.getLogger("asyncio").disabled = True
    _interrupt.note(number, frame)


@contextmanager
def shown_warnings(say: Callable[[str], None]) -> Iterator[None]:
    """Show warnings as commands show errors: in one line, without a place in Python code."""
    with warnings.catch_warnings():
        for ours in _OURS:
            warnings.simplefilter("always", ours)
        warnings.showwarning = lambda message, *args, **options: say(f"warning: {message}")
        yield


def silence_what_is_left() -> None:
    """Let a command that breaks off show one line, and nothing behind it.

    At exit, Python, zarr and asyncio tell of everything that was begun and could not run.
    """
    sys.unraisablehook = lambda lost: None
    warnings.simplefilter("ignore", RuntimeWarning)
    logging.getLogger("asyncio").disabled = True
