"""Writes the keys of a new Zarr store to an object store, and reads it before it is published."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import numpy as np

from bf16codecs._base.buffers import Bytes
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import DEFAULT_LIMITS
from bf16codecs.errors import StoreError
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.remote.lease import ROOT, Lease, has_note, is_held
from bf16codecs.store.remote.object_folder import ConflictError, ObjectFolder
from bf16codecs.store.remote.storage import RemoteStorage
from bf16codecs.store.zarr.reader import ZarrArrays
from bf16codecs.zarr.strict import StrictStore

__all__ = ["ObjectSink", "open_unpublished"]

# Writers that have lost their lease may still write a key or two.
_ATTEMPTS = 3
# How often another process looks whether the store is still being made.
_LOOK_SECONDS = 10


class ObjectSink:
    """Keys as objects, by the writer whose lease has this token.

    The root's document is kept in `root`, for `Lease.publish`, and if another store is replaced,
    other documents are kept in `late`: they have the keys of that store's. `removed` are paths of
    arrays that were given up. Other processes have no `lease`.
    """

    # Latency is tens of milliseconds, and a connection carries some 50 MB/s.
    concurrency = 16

    def __init__(
        self, folder: ObjectFolder, token: str, replaces: bool, lease: Lease | None = None
    ) -> None:
        self._folder, self._token, self._lease = folder, token, lease
        self._replaces = replaces
        self._looked_at, self._lock = -math.inf, make_lock()
        self.root = b""
        self.late: dict[str, bytes] = {}
        self.removed: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectSink, (self._folder, self._token, self._replaces)

    def put(self, key: str, data: Any) -> None:
        """Write an object, which no other writer may have written."""
        if key == ROOT:
            self.root = bytes(data)
        elif self._replaces and key.endswith(f"/{ROOT}"):
            self.late[key] = bytes(data)
        else:
            # A copy: the caller's memory is used again, and a request may outlive an error.
            self._create(key, bytes(data))

    def _create(self, key: str, data: bytes) -> None:
        self._check()
        try:
            self._folder.create(key, data)
            return
        except ConflictError:
            self._check_note()
        for _ in range(_ATTEMPTS):
            found = self._folder.read(key, limited=False)
            try:
                if found is None:
                    self._folder.create(key, data)
                elif found.data != data:
                    self._folder.replace(key, data, found.version)
                return
            except ConflictError:
                self._check_note()
        raise StoreError(f"{self._folder.where}/{key}: another process writes it again and again")

    def _check(self) -> None:
        """Raise StoreError if another process has taken over, or the store is not made any more."""
        if self._lease is not None:
            self._lease.check()
            return
        with self._lock:  # one of the threads looks
            if time.monotonic() - self._looked_at > _LOOK_SECONDS:
                self._check_note()

    def _check_note(self) -> None:
        found = self._folder.read(ROOT)
        if found is None or not (has_note(found, self._token) and is_held(found)):
            raise StoreError(f"{self._folder.where}: another process took over, or ended this")
        self._looked_at = time.monotonic()

    def remove(self, path: str) -> None:
        """Note that what was written below a path is to be removed before the store appears."""
        self.removed.append(path)
        for key in [key for key in self.late if key.startswith(f"{path}/")]:
            del self.late[key]

    def shared(self) -> ObjectSink:
        """Return the target for other processes, which write chunks."""
        return ObjectSink(self._folder, self._token, self._replaces)

    def close(self) -> None:
        """Do nothing: every object is complete."""


class _Unpublished(RemoteStorage):
    """The keys of a store whose root's document is not there yet."""

    def __init__(self, folder: ObjectFolder, root: bytes) -> None:
        super().__init__(folder.as_zarr())
        self._root = np.frombuffer(root, np.uint8)

    def read(self, key: str) -> Bytes | None:
        """Read a document, which may not exist."""
        return self._root if key == ROOT else super().read(key)


def open_unpublished(folder: ObjectFolder, root: bytes) -> ModelReader:
    """Open a store, given the document that its root will have."""
    make_store = partial(StrictStore, folder.as_zarr())
    storage = _Unpublished(folder, root)
    reader = ModelReader(ZarrArrays(folder.where, storage, make_store, DEFAULT_LIMITS))
    reader.reopen = partial(open_unpublished, folder, root)
    return reader
