"""Ranges of files behind addresses, as the parts of local files are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bf16codecs._arrays.stored import AtMost, Request, Source, StoredChunk
from bf16codecs._base.buffers import Bytes
from bf16codecs.store.remote.source import StoreSource

__all__ = ["RemotePart", "RemoteParts"]


class RemotePart(NamedTuple):
    """Key of `RemoteParts`: a range of a key of a store of zarr's."""

    store: StoreSource
    file: str
    offset: int
    size: int


class RemoteParts(Source):
    """Chunks that are ranges of files behind addresses."""

    concurrency = StoreSource.concurrency

    def open(self, key: RemotePart) -> StoredChunk:
        """Return the range, which is asked for when it is read."""
        return _Part(key)


class _Part(StoredChunk):
    """A range of a file behind an address."""

    def __init__(self, key: RemotePart) -> None:
        self.key, self.size, self._part = key, key.size, key

    def read(self, request: Request) -> Sequence[Bytes]:
        """Ask for all ranges at once."""
        store, file, offset, size = self._part
        ranges = [(0, size)] if isinstance(request, AtMost) else request
        within = [(offset + min(a, size), offset + min(b, size)) for a, b in ranges]
        return store.open(file).read(within)
