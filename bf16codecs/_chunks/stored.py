"""A stored chunk, and what can be asked of a source of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol, Self

import numpy as np

from bf16codecs._buffers import Bytes
from bf16codecs.errors import StoreError

__all__ = ["InMemory", "KeySource", "Range", "Source", "StoredChunk", "check_range"]

#: First byte, and the one after the last.
Range = tuple[int, int]


class StoredChunk(Protocol):
    """A stored chunk, open for reading."""

    @property
    def key(self) -> Hashable:
        """What tells it from the others of its source; None where nothing does."""

    @property
    def size(self) -> int | None:
        """Its size, or None where asking for it would cost a request."""

    @property
    def piece(self) -> int | None:
        """How much to read at a time, or None where requests cost more than memory."""

    def read(self, ranges: Sequence[Range] | None) -> Sequence[Bytes]:
        """Read ranges of it, or (None) all of it; each is shorter only where the chunk ends."""

    def __enter__(self) -> Self:
        """Begin to read."""

    def __exit__(self, *exception: object) -> None:
        """Release what is open."""


class Source(Protocol):
    """Stored chunks by key; several threads may read."""

    @property
    def concurrency(self) -> int:
        """How many reads at a time pay off."""

    def open(self, key: Any) -> StoredChunk:
        """Open a chunk.

        Raises
        ------
        StoreError
            If there is none.
        """

    def close(self) -> None:
        """Release what is open."""


class KeySource(Source, Protocol):
    """A source whose keys are those of a Zarr store, metadata included."""

    def read(self, key: str) -> Bytes | None:
        """Read all of a key, which may not exist."""

    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""

    def folder_size(self, path: str) -> int | None:
        """Return the size of all keys below a path, or None if they cannot be listed."""


class InMemory:
    """A stored chunk whose bytes are here already."""

    key: Hashable = None
    piece: int | None = None

    def __init__(self, data: Any) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self.size = self._data.size

    def open(self, key: Any) -> InMemory:
        """Return the chunk itself: it is a source with one chunk, whatever the key."""
        return self

    concurrency = 1

    def read(self, ranges: Sequence[Range] | None) -> Sequence[Bytes]:
        """Return ranges of it."""
        if ranges is None:
            return [self._data]
        return [self._data[start:stop] for start, stop in ranges]

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_range(
    count: int, start: int, stop: int, where: str = "", error: type[ValueError] = StoreError
) -> None:
    """Refuse a reply that is longer than the range asked for: it holds other bytes.

    Raises
    ------
    StoreError
    """
    if count > stop - start:
        raise error(
            f"{where}asked for {stop - start} bytes at {start}, got {count}:"
            " the server ignores ranges"
        )
