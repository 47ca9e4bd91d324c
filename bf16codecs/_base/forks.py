"""Locks that are free in a forked process, even if they were held when it was forked."""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

__all__ = ["make_lock"]

_locks: WeakSet[threading.Lock] = WeakSet()


def make_lock() -> threading.Lock:
    """Return a lock that a forked child finds free.

    A fork copies every lock in its state, but only the thread that forks, so no thread in the child
    would release a lock that another thread held. The data that these locks guard are consistent
    whenever a process can fork.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _release_all() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)
