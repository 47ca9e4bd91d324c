"""The interface of stores that are written."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base.buffers import Bytes
from bf16codecs.store.checkpoint import CHECKPOINT_PATH, OBJECTS_PATH, CheckpointPaths
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.plan import plan_bytes

__all__ = ["ModelWriter", "write_bytes", "write_checkpoint"]


class ModelWriter(Protocol):
    """A store being written; `write` may be called by several threads.

    Attributes
    ----------
    concurrency
        How many chunks at a time to write pays off, beyond one for each processor.
    difference_folder
        A folder of each array's path that differences have their chunks in; empty for none.
    """

    concurrency: int
    difference_folder: str

    def create(self, array: ArrayPlan) -> None:
        """Prepare an array."""

    def share(self, path: str, owner: str) -> None:
        """Let a path lead to the array at another, if that is possible."""

    def write(self, piece: Piece, chunk: Bytes, base: Bytes | None = None) -> int:
        """Encode and write a whole chunk, or its difference to `base`; return its stored size."""

    def finish(self, info: StoreInfo) -> int:
        """Write all metadata, close the store, and return the metadata's size."""

    def close(self) -> None:
        """Close files, as `finish` does."""


def write_bytes(writer: ModelWriter, path: str, raw: bytes, chunk_size: int) -> int:
    """Write an array of bytes: a header, or the index; return its stored size."""
    plan = plan_bytes(path, len(raw), chunk_size)
    writer.create(plan)
    stored = 0
    for piece in plan.pieces():
        chunk = np.zeros(plan.chunk_nbytes, np.uint8)
        chunk[: piece.nbytes] = np.frombuffer(raw, np.uint8, piece.nbytes, piece.offset)
        stored += writer.write(piece, chunk)
    return stored


def write_checkpoint(
    writer: ModelWriter, text: bytes, objects: bytes, chunk_size: int
) -> tuple[CheckpointPaths, int]:
    """Write a checkpoint's text and objects; return their paths, and their stored size."""
    stored = write_bytes(writer, CHECKPOINT_PATH, text, chunk_size)
    if not objects:
        return CheckpointPaths(CHECKPOINT_PATH, None), stored
    stored += write_bytes(writer, OBJECTS_PATH, objects, chunk_size)
    return CheckpointPaths(CHECKPOINT_PATH, OBJECTS_PATH), stored
