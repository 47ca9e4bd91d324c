"""Handle signals and show warnings while a command runs."""

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
    """Make signals that ask a process to end raise `Interrupted`, at the latest at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may install handlers
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    # Ignored signals stay ignored: SIGHUP under nohup, SIGINT in background jobs of shells.
    before = {n: old for n in numbers if (old := signal.getsignal(n)) is not signal.SIG_IGN}
    report = sys.unraisablehook

    def report_others(lost: Any) -> None:
        if lost.exc_type is not _interrupt.Interrupted:  # `check` raises it again
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
    # At once: zarr's pending tasks may be collected, and reported, before the command's message.
    logging.getLogger("asyncio").disabled = True
    _interrupt.note(number, frame)


@contextmanager
def shown_warnings(say: Callable[[str], None]) -> Iterator[None]:
    """Show warnings like errors: in one line, without a location in Python code."""
    with warnings.catch_warnings():
        for ours in _OURS:
            warnings.simplefilter("always", ours)
        warnings.showwarning = lambda message, *args, **options: say(f"warning: {message}")
        yield


def silence_what_is_left() -> None:
    """Silence what Python, zarr and asyncio report at exit about tasks that were broken off.

    An interrupted command then prints only its own line.
    """
    sys.unraisablehook = lambda lost: None
    warnings.simplefilter("ignore", RuntimeWarning)
    logging.getLogger("asyncio").disabled = True
