"""Texts that a store keeps in arrays of bytes: safetensors headers, and an index."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.limits import check_metadata, check_parsed
from bf16codecs._base.messages import named_errors
from bf16codecs.errors import StoreError

__all__ = ["read_text"]


def read_text(
    plan: ArrayPlan, label: str, stored: Callable[[], int], read: Callable[[Piece, Bytes], None]
) -> bytes:
    """Read an array of bytes.

    Parameters
    ----------
    plan
        The array.
    label
        What it is, for messages.
    stored
        Returns how many bytes it takes in the store.
    read
        Reads a chunk.

    Raises
    ------
    StoreError
        If it is of anything else than bytes, or larger than texts are.
    """
    if plan.dtype != "uint8" or len(plan.shape) != 1:
        raise StoreError(f"{label}: is not an array of bytes")
    with named_errors(label):
        check_metadata(max(plan.nbytes, plan.chunk_nbytes), stored)
    content = bytearray()
    for piece in plan.pieces():
        chunk = np.empty(plan.chunk_nbytes, np.uint8)
        read(piece, chunk)
        content += chunk[: piece.nbytes].data
    with named_errors(label):
        check_parsed(content, stored)
    return bytes(content)
