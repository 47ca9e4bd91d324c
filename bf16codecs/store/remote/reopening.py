"""Stores of zarr's that go on being read in a process that was forked."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from zarr.abc.store import Store
from zarr.storage import FsspecStore, ObjectStore, WrapperStore

from bf16codecs.errors import StoreError

__all__ = ["ReopeningStore", "surviving"]


def surviving(store: Store) -> Store:
    """Return a store that goes on being read, or says that it cannot, in a forked process."""
    if not isinstance(store, (FsspecStore, ObjectStore)):
        return store
    return ReopeningStore(partial(_copied, store, os.getpid()))


def _copied(store: Store, process: int) -> Store:
    if os.getpid() == process:
        return store
    if isinstance(store, ObjectStore):  # whose threads are gone: any request would wait for ever
        raise StoreError(
            "opened with obstore before this process was forked, which that does not survive: start"
            " processes with multiprocessing.get_context('spawn') or 'forkserver'"
        )
    copy: Store = pickle.loads(pickle.dumps(store))
    return copy


class ReopeningStore(WrapperStore[Store]):
    """A store at an address, which is opened again in a process that was forked.

    What fsspec opens belongs to an event loop, and that to a thread, which a forked process does
    not have: multiprocessing makes such processes on Linux, and PyTorch for its `DataLoader`.

    Parameters
    ----------
    open_store
        Opens it.
    """

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store, self._process = open_store, os.getpid()
        super().__init__(open_store())

    # Of the class above: all that it does goes through this.
    @property
    def _store(self) -> Store:
        if self._process != os.getpid():
            # Several threads may do so at once: all get the same, and the last one stays.
            self._current, self._process = self._open_store(), os.getpid()
        return self._current

    @_store.setter
    def _store(self, store: Store) -> None:
        self._current = store

    @property
    def current(self) -> Store:
        """The store that this process reads."""
        return self._store

    @property
    def fs(self) -> Any:
        """The file system of fsspec that it is in, None if it is in none."""
        return getattr(self._store, "fs", None)

    @property
    def path(self) -> Any:
        """Where it is in that file system."""
        return getattr(self._store, "path", None)

    async def getsize(self, key: str) -> int:
        """Return the size of a key, for which the class above would read all of it."""
        return await self._store.getsize(key)

    def _with_store(self, store: Store) -> Store:  # type: ignore[override]
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        return ReopeningStore, (self._open_store,)
