"""Undoes checkpoints that were begun and not finished.

PyTorch does not tell a writer that another process failed, so a writer may just be forgotten. The
garbage collector calls in any thread, also in one that answers requests or renews a lease, and so
must not do it itself.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Unfinished", "undo_others"]

_open: set[Unfinished] = set()
_forgotten: SimpleQueue[Unfinished] = SimpleQueue()
_worker: tuple[int, threading.Thread] | None = None


class Unfinished:
    """A checkpoint of this process at `target`, until `end`; `abandon` undoes it.

    It is undone at the latest when its owner is forgotten, or the process ends.
    """

    def __init__(self, owner: object, target: str, abandon: Callable[[], None]) -> None:
        self.target, self._abandon, self._process = target, abandon, os.getpid()
        _open.add(self)
        _start()
        self._finalizer = weakref.finalize(owner, _forgotten.put, self)
        self._finalizer.atexit = False

    def end(self) -> bool:
        """Return whether it was still unfinished; from now on, it is not."""
        self._finalizer.detach()
        is_open = self in _open
        _open.discard(self)
        return is_open and self._process == os.getpid()

    def undo(self) -> None:
        """Undo the checkpoint, unless it is finished, or this process was forked since."""
        if self.end():
            self._abandon()


def undo_others(target: str) -> None:
    """Undo the checkpoints that this process has begun at a target: it begins another one."""
    for other in [each for each in list(_open) if each.target == target]:
        other.undo()


def _start() -> None:
    """Start the thread that undoes what was forgotten, once in each process."""
    global _worker
    if _worker is None or _worker[0] != os.getpid():
        # Here, not at import: zarr's loop has to outlive this at the end of the process.
        atexit.register(_undo_all)
        thread = threading.Thread(target=_undo_forgotten, name="bf16codecs undo", daemon=True)
        _worker = os.getpid(), thread
        thread.start()


def _undo_forgotten() -> None:
    while True:
        _forgotten.get().undo()


def _undo_all() -> None:
    for each in list(_open):
        each.undo()
