"""Limits the memory that an array's metadata and chunks make tensorstore allocate.

tensorstore ends the process when it gets no memory. So requests are limited by the array's size,
which is limited by the bytes that are stored, and the memory is allocated once before. tensorstore
reads stored chunks whole, and decodes them up to their size; with Blosc, up to the size that the
chunk claims.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bf16codecs._base.limits import Limits, stored_limit
from bf16codecs._base.messages import damaged, named_damage, named_errors
from bf16codecs.errors import CorruptDataError
from bf16codecs.zarr.inflation import chunk_check
from bf16codecs.zarr.shards import ENTRY_BYTES

__all__ = ["check_chunks", "check_memory", "check_stored", "is_longer"]

# Orbax cuts arrays at shards: its chunks are never larger than the array.
_SMALL_CHUNK, _MOST_OF_ARRAY = 64 << 20, 2
# Each chunk is a read, and a file or an entry in an index.
_FEW_CHUNKS, _TINY_CHUNK = 100_000, 1024
# Of arrays and groups, in which there is no chunk.
_DOCUMENTS = (b".zarray", b".zattrs", b"zarr.json")


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


def check_stored(label: str, array: Any, nbytes: int, shard_chunks: int, limits: Limits) -> None:
    """Refuse stored chunks that are too large, or of which Blosc would make too much.

    Parameters
    ----------
    label
        The array, for messages.
    array
        The array, a `tensorstore.TensorStore`.
    nbytes
        Size of its chunks once decoded.
    shard_chunks
        How many chunks a shard has; 1 where there are no shards.
    limits
        What the caller allows.

    Raises
    ------
    CorruptDataError
        If one of them is.
    LimitError
        If nobody can tell what Blosc would make of them.
    """
    document = array.codec.to_json()
    document["zarr_format"] = 2 if document["driver"] == "zarr" else 3
    check = None
    if '"blosc"' in json.dumps(document):
        with named_errors(label):
            check = chunk_check(document, nbytes, shard_chunks, limits)
    most = stored_limit(nbytes * shard_chunks) + ENTRY_BYTES * shard_chunks
    for key in array.kvstore.list().result():
        if key.endswith(_DOCUMENTS):
            continue
        name = f"{label}, chunk {key.decode(errors='replace')!r:.80}"
        if is_longer(array.kvstore, key, most):
            text = f"it has more than {most} bytes as it is stored, which is not credible"
            raise CorruptDataError(f"{name}: {damaged(text)}")
        if check is not None:
            data = np.frombuffer(array.kvstore.read(key).result().value, np.uint8)
            with named_damage(name):
                check(data, None)


def is_longer(store: Any, key: bytes, nbytes: int) -> bool:
    """Tell whether a value of a `tensorstore.KvStore` has more bytes, without reading them all."""
    try:
        store.read(key, byte_range=slice(nbytes, nbytes + 1)).result()
    except ValueError as e:
        if "OUT_OF_RANGE" not in str(e):
            raise
        return False
    return True


def _shown(shape: Sequence[int]) -> str:
    return f"{' x '.join(map(str, shape)):.80}"
