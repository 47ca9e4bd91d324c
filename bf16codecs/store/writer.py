"""What every kind of store being written can do."""

from __future__ import annotations

from typing import Protocol

from bf16codecs._buffers import Bytes
from bf16codecs._chunks.grid import ArrayPlan, Piece
from bf16codecs.store.layout import StoreInfo

__all__ = ["StoreWriter"]


class StoreWriter(Protocol):
    """A store being written; `write` may be called by several threads."""

    def create(self, array: ArrayPlan) -> None:
        """Prepare an array."""

    def share(self, path: str, owner: str) -> None:
        """Let a path lead to the array at another, if that is possible."""

    def write(self, piece: Piece, chunk: Bytes, base: Bytes | None = None) -> int:
        """Encode and write a whole chunk, or its difference to `base`; return its stored size."""

    def finish(self, info: StoreInfo) -> int:
        """Write all metadata, close the store, and return the metadata's size."""

    def close(self) -> None:
        """Release what is open; `finish` does so too."""
