"""Writes the keys of a new Zarr store to an object store, and reads it before it is published."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from bf16codecs._base.buffers import Bytes
from bf16codecs._base.limits import DEFAULT_LIMITS
from bf16codecs.errors import StoreError
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.remote.claim import ROOT, Claim, has_note
from bf16codecs.store.remote.object_folder import ConflictError, ObjectFolder
from bf16codecs.store.remote.storage import RemoteStorage
from bf16codecs.store.zarr.reader import ZarrArrays
from bf16codecs.zarr.strict import StrictStore

__all__ = ["ObjectSink", "open_unpublished"]

# Writers that have lost their claim may still write a key or two.
_ATTEMPTS = 3


class ObjectSink:
    """Keys as objects, by the writer whose claim has this token.

    The root's document is kept in `root`, for `Claim.publish`, and if another store is replaced,
    other documents are kept in `late`: they have the keys of that store's. Other processes have no
    `claim`.
    """

    # Latency is tens of milliseconds, and a connection carries some 50 MB/s.
    concurrency = 16

    def __init__(
        self, folder: ObjectFolder, token: str, replaces: bool, claim: Claim | None = None
    ) -> None:
        self._folder, self._token, self._claim = folder, token, claim
        self._replaces = replaces
        self.root = b""
        self.late: dict[str, bytes] = {}

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
        for _ in range(_ATTEMPTS):
            if self._claim is not None:
                self._claim.check()
            try:
                self._folder.create(key, data)
            except ConflictError:
                self._check_note()
                self._folder.remove([key])
            else:
                return
        raise StoreError(f"{self._folder.where}/{key}: another process writes it again and again")

    def _check_note(self) -> None:
        """Raise StoreError if the store is another writer's by now, or complete."""
        found = self._folder.read(ROOT)
        if found is None or not has_note(found, self._token):
            raise StoreError(f"{self._folder.where}: another process took over, or ended this")

    def remove(self, path: str) -> None:
        """Remove all keys below a path."""
        self._folder.remove(self._folder.listed(path))

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
