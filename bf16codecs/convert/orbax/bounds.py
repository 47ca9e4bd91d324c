"""What the metadata of an array may make tensorstore take.

Where it gets no memory, it ends the process. So what it is asked for is bounded by the array, whose
size is bounded by what is stored, and the memory is asked for once before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bf16codecs._messages import damaged
from bf16codecs.errors import CorruptDataError

__all__ = ["check_chunks", "check_memory"]

# Orbax cuts arrays at shards: its chunks are never larger than the array.
_SMALL_CHUNK, _MOST_OF_ARRAY = 64 << 20, 2
# Each chunk is a read, and a file or an entry in an index.
_FEW_CHUNKS, _TINY_CHUNK = 100_000, 1024


def check_chunks(label: str, shape: Sequence[int], chunks: Sequence[int], item_size: int) -> None:
    """Refuse chunks that are far larger than their array, or too many and tiny.

    Parameters
    ----------
    label
        The array, for messages.
    shape, chunks
        Of the array, in items.
    item_size
        Bytes of an item.

    Raises
    ------
    CorruptDataError
        If they are.
    """
    # Of an empty array, no chunk is read.
    nbytes = math.prod(max(1, size) for size in shape) * item_size
    if math.prod(chunks) * item_size > max(_SMALL_CHUNK, _MOST_OF_ARRAY * nbytes):
        text = f"chunks of {_shown(chunks)} items, in an array of {_shown(shape)}: not credible"
        raise CorruptDataError(f"{label}: {damaged(text)}")
    count = math.prod(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))
    if count > max(_FEW_CHUNKS, nbytes // _TINY_CHUNK):
        text = f"cut into {count} chunks of {math.prod(chunks) * item_size} bytes: not credible"
        raise CorruptDataError(f"{label}: {damaged(text)}")


def check_memory(label: str, chunk_nbytes: int) -> None:
    """Raise if there is no memory for a chunk.

    Parameters
    ----------
    label
        The array, for messages.
    chunk_nbytes
        Size of its chunks.

    Raises
    ------
    MemoryError
        If there is none.
    """
    try:
        # The chunk, and what is read of it or written to it. Nothing is touched: it takes no time.
        np.empty(2 * chunk_nbytes, np.uint8)
    except (MemoryError, ValueError) as e:
        raise MemoryError(f"{label}: no memory for a chunk of {chunk_nbytes} bytes") from e


def _shown(shape: Sequence[int]) -> str:
    return f"{' x '.join(map(str, shape)):.80}"
