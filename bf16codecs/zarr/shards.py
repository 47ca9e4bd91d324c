"""Index of a shard: offsets and sizes of its chunks, and which are missing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, SuffixByteRequest

from bf16codecs._base.buffers import Bytes
from bf16codecs._base.messages import advised
from bf16codecs.errors import CorruptDataError, StoreError

__all__ = [
    "CHECKSUM_BYTES",
    "ENTRY_BYTES",
    "NO_CHUNK",
    "CompleteShards",
    "complete_shards",
    "has_plain_index",
    "shard_index",
]

#: Bytes of an index entry, which has a chunk's offset and size, and of the index's checksum.
ENTRY_BYTES, CHECKSUM_BYTES = 16, 4
#: Offset of a missing chunk.
NO_CHUNK = (1 << 64) - 1


def has_plain_index(sharding: Mapping[str, Any]) -> bool:
    """Tell whether shards have the index that `shard_index` reads: at the end, little-endian.

    Parameters
    ----------
    sharding
        Configuration of Zarr's codec `sharding_indexed`.
    """
    codecs = [c for c in sharding.get("index_codecs", []) if isinstance(c, Mapping)]
    names = [c.get("name") for c in codecs]
    is_little = names[:1] == ["bytes"] and codecs[0].get("configuration") == {"endian": "little"}
    is_at_end = sharding.get("index_location", "end") == "end"
    return is_at_end and is_little and names == ["bytes", "crc32c"]


def shard_index(shard: Bytes, count: int) -> NDArray[np.uint64]:
    """Return offset and size of each chunk of a shard, from the shard or its end.

    Raises
    ------
    CorruptDataError
        If the bytes are fewer than those of the index.
    """
    data = np.asarray(shard).view(np.uint8)
    start = data.size - CHECKSUM_BYTES - count * ENTRY_BYTES
    if start < 0:
        raise CorruptDataError("a shard that is shorter than its index")
    return np.frombuffer(data[start : data.size - CHECKSUM_BYTES].tobytes(), "<u8").reshape(-1, 2)


def complete_shards(document: Mapping[str, Any], array: zarr.Array) -> CompleteShards | None:
    """Return a check for missing chunks of shards; None without shards that have a plain index.

    Parameters
    ----------
    document
        The array's metadata.
    array
        zarr's array of these metadata.
    """
    if array.shards is None or not has_plain_index(document["codecs"][0]["configuration"]):
        return None
    return CompleteShards(array.shape, array.chunks, array.shards)


@dataclass(frozen=True)
class CompleteShards:
    """Check that shards have every chunk of the array: zarr would read fill values.

    Attributes
    ----------
    shape, chunks, shards
        Shapes of the array, its chunks and its shards, in items.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...]

    def check(self, key: str, data: Bytes, byte_range: ByteRequest | None) -> None:
        """Check a whole shard, or its index.

        Raises
        ------
        StoreError
            If the shard lacks a chunk.
        """
        if byte_range is not None and not isinstance(byte_range, SuffixByteRequest):
            return  # a chunk
        counts = [s // c for s, c in zip(self.shards, self.chunks, strict=True)]
        index = shard_index(data, math.prod(counts)).reshape(*counts, 2)
        numbers = re.findall(r"\d+", key)
        shard = map(int, numbers[len(numbers) - len(self.shape) :])
        axes = zip(shard, counts, self.shape, self.chunks, strict=True)
        # Chunks beyond the end of the array may be missing.
        within = (slice(max(0, -(-size // chunk) - i * count)) for i, count, size, chunk in axes)
        if (index[..., 0][tuple(within)] == NO_CHUNK).any():
            raise StoreError(advised("a chunk of this shard is missing"))
