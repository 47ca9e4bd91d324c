"""A zarr store that refuses missing chunks and oversized replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Self

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from bf16codecs._arrays.http import largest_body
from bf16codecs._arrays.storage import LocalStorage, check_range
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.limits import MAX_BODY_BYTES, stored_limit
from bf16codecs._base.messages import advised, named_errors
from bf16codecs.errors import StoreError
from bf16codecs.zarr.inflation import ChunkCheck
from bf16codecs.zarr.shards import CompleteShards

__all__ = ["StrictStore", "has_bounded_replies"]


def has_bounded_replies(store: Store) -> bool:
    """Tell whether `largest_body` limits every reply of a store."""
    return "http" in getattr(getattr(store, "fs", None), "protocol", ())


_METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


class StrictStore(WrapperStore[Store]):
    """Wrapper of a store that must have every chunk: zarr reads a missing one as fill values.

    Parameters
    ----------
    store
        The store; it lists keys.
    storage
        Reads the keys with this package's checks; by default the store does.
    largest
        Largest size of a stored chunk, in bytes.
    check
        Refuses chunks that zarr's codecs would inflate without a limit.
    complete
        Refuses shards that lack a chunk.
    """

    def __init__(
        self,
        store: Store,
        storage: LocalStorage | None = None,
        largest: int = MAX_BODY_BYTES,
        check: ChunkCheck | None = None,
        complete: CompleteShards | None = None,
    ) -> None:
        super().__init__(store)
        self._storage, self._largest = storage, largest
        self._check, self._complete = check, complete

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, self._storage, self._largest, self._check, self._complete)

    def for_chunks_of(
        self, nbytes: int, check: ChunkCheck | None, complete: CompleteShards | None
    ) -> Self:
        """Return this store for an array with chunks of `nbytes` bytes once decoded."""
        return type(self)(self._store, self._storage, stored_limit(nbytes), check, complete)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return a value or a part of it."""
        if key.endswith(_METADATA):
            with named_errors(key, OSError):
                return await self._get(key, prototype, byte_range)
        with named_errors(f"chunk {key}", OSError):
            reply = await self._get(key, prototype, byte_range)
            # zarr reads an empty shard as one without any chunks.
            if reply is None or len(reply) == 0:
                raise StoreError(advised("it is missing, or empty"))
            if self._check is not None or self._complete is not None:
                await asyncio.to_thread(self._examine, key, reply.as_numpy_array(), byte_range)
        return reply

    def _examine(self, key: str, data: Bytes, byte_range: ByteRequest | None) -> None:
        if self._complete is not None:
            self._complete.check(key, data, byte_range)
        if self._check is not None:
            self._check(data, byte_range)

    async def _get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None
    ) -> Buffer | None:
        if self._storage is not None:
            data = await asyncio.to_thread(self._read, self._storage, key, byte_range)
            return None if data is None else prototype.buffer.from_bytes(data)
        request = byte_range
        if request is None and not has_bounded_replies(self._store):
            # One byte beyond the limit, so that longer values are noticed and refused.
            request = RangeByteRequest(0, self._largest + 1)
        with largest_body(self._largest):
            reply = await self._store.get(key, prototype, request)
        if reply is not None and isinstance(request, RangeByteRequest):
            check_range(len(reply), request.start, request.end)
        if reply is not None and byte_range is None and len(reply) > self._largest:
            raise StoreError(f"more than {self._largest} bytes")
        return reply

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Return several values or parts of values."""
        replies = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return await asyncio.gather(*replies)

    def _read(
        self, storage: LocalStorage, key: str, byte_range: ByteRequest | None
    ) -> bytes | None:
        """Return a value or a part of it; None if the key does not exist."""
        if key.endswith(_METADATA):
            document = storage.read(key)
            return None if document is None else document.tobytes()
        chunk = storage.find(key)
        if chunk is None:
            return None
        with chunk:
            size = chunk.size
            start, stop = 0, size
            if isinstance(byte_range, RangeByteRequest):
                start, stop = byte_range.start, min(byte_range.end, size)
            elif isinstance(byte_range, OffsetByteRequest):
                start = byte_range.offset
            elif isinstance(byte_range, SuffixByteRequest):
                start = max(0, size - byte_range.suffix)
            if size > self._largest:
                raise StoreError(f"{size} bytes, more than {self._largest}")
            (data,) = chunk.read([(start, stop)])
            return data.tobytes()
