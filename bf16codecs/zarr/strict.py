"""A zarr store that refuses missing chunks and replies that are too long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from zarr.abc.store import ByteRequest, RangeByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from bf16codecs._chunks.stored import check_range
from bf16codecs.errors import StoreError

__all__ = ["StrictStore"]

_METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


class StrictStore(WrapperStore):
    """Wraps a store that has every chunk. To zarr itself, a missing chunk means fill values."""

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return a value or a part of it."""
        reply = await self._store.get(key, prototype, byte_range)
        if reply is None:
            if not key.endswith(_METADATA):
                raise StoreError(f"chunk {key} is missing")
            return None
        if isinstance(byte_range, RangeByteRequest):
            check_range(len(reply), byte_range.start, byte_range.end, f"chunk {key}: ")
        return reply

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Return several parts."""
        replies = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return await asyncio.gather(*replies)
