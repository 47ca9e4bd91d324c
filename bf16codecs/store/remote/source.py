"""Stored chunks in a store of zarr's: remote ones, and those in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import ZipStore

from bf16codecs._arrays.http import failure_of, is_gone, is_refused, largest_body
from bf16codecs._arrays.stored import AtMost, KeySource, Request, StoredChunk, check_range
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cached import cached_property
from bf16codecs._base.limits import MAX_METADATA_BYTES, check_metadata, check_parsed
from bf16codecs._base.messages import advised, one_line
from bf16codecs.errors import StoreError
from bf16codecs.store.remote.listing import folder_sizes, listed_sizes
from bf16codecs.store.remote.requests import ask
from bf16codecs.zarr.strict import has_bounded_replies

__all__ = ["StoreSource"]


class StoreSource(KeySource):
    """Keys of a store of zarr's, remote or in memory.

    A key that the server refuses counts as one that does not exist: to whoever may not list keys,
    S3 gives the same answer to both. `refusal` tells them apart as far as anybody can.
    """

    concurrency = 8

    def __init__(self, store: Store) -> None:
        self._store = store
        self._refusals: dict[str, str] = {}

    def open(self, key: str) -> StoredChunk:
        """Return the chunk, which is asked for when it is read."""
        return _RemoteChunk(self._store, key)

    def read(self, key: str) -> Bytes | None:
        """Read a document, which may not exist."""
        self._refusals.pop(key, None)
        try:
            (reply,) = ask(_get, self._store, key, AtMost(MAX_METADATA_BYTES))
        except Exception as e:
            if not self._is_absent(key, e):
                raise
            return None
        if reply is None:
            return None
        document = _as_bytes(reply)
        stored = partial(self._stored_size, key, document.size)
        check_metadata(document.size, stored)
        check_parsed(document, stored)
        return document

    def _stored_size(self, key: str, nbytes: int) -> int:
        """Return the size that so many bytes are stored in: less in a ZIP file."""
        store: Any = self._store
        if isinstance(store, ZipStore):
            return store._zf.getinfo(key).compress_size
        archive = self._archive()
        info = {} if archive is None else archive.info(f"{store.path}/{key}")
        return int(info.get("compress_size", nbytes))

    def _archive(self) -> Any:
        """Return fsspec's file system for a ZIP file behind an address, which is wrapped."""
        return getattr(getattr(self._store, "fs", None), "sync_fs", None)

    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""
        self._refusals.pop(key, None)
        try:
            return ask(_size, self._store, key)
        except FileNotFoundError as e:
            failure = failure_of(e)
        except Exception as e:
            failure = e
        if failure is None or self._is_absent(key, failure):
            return 0
        raise failure

    def _is_absent(self, key: str, error: BaseException) -> bool:
        """Tell whether there may be no such key, and note what the server says of it."""
        if is_refused(error):
            self._refusals[key] = one_line(error)
            return True
        return is_gone(error)

    def refusal(self, key: str) -> str:
        """Return what the server answered instead of a key; empty if it gave it or has none."""
        return self._refusals.get(key, "")

    def zip_names(self) -> Sequence[str]:
        """Return the names of all members of a ZIP file."""
        store: Any = self._store
        file = store._zf if isinstance(store, ZipStore) else getattr(self._archive(), "zip", None)
        return () if file is None else file.namelist()

    def folder_size(self, path: str) -> int | None:
        """Return the size of all keys below a path, None where no server lists them."""
        file = getattr(self._archive(), "fo", None)
        if file is not None:
            # Of a ZIP file, as the server told it. Its members' sizes are known without a request.
            return None if path else file.size
        return None if self._folders is None else self._folders.get(path, 0)

    @cached_property
    def _folders(self) -> dict[str, int] | None:
        """What folders take, listed once: object stores tell the sizes of 1,000 keys at a time."""
        sizes = ask(listed_sizes, self._store)
        return None if sizes is None else folder_sizes(sizes)

    def close(self) -> None:
        """Close a ZIP file. A file system behind fsspec may be shared, and closes at exit."""
        if isinstance(self._store, ZipStore):
            self._store.close()


class _RemoteChunk(StoredChunk):
    """A key of a store of zarr's."""

    key: str

    def __init__(self, store: Store, key: str) -> None:
        self._store, self.key = store, key

    def read(self, request: Request) -> Sequence[Bytes]:
        """Ask for all ranges at once."""
        replies = ask(_get, self._store, self.key, request)
        if any(reply is None for reply in replies):
            raise StoreError(advised("it is missing"))
        return list(map(_as_bytes, replies))


async def _get(store: Store, key: str, request: Request) -> list[Any]:
    """Ask for all ranges at once; None where there is no such key."""
    prototype = default_buffer_prototype()
    if isinstance(request, AtMost) and has_bounded_replies(store):
        with largest_body(request.nbytes):
            return [await store.get(key, prototype)]
    # Of others, one byte more than there can be is asked for, and never gets further than here.
    wanted = [(0, request.nbytes + 1)] if isinstance(request, AtMost) else request
    ranges = [RangeByteRequest(*r) for r in wanted]
    replies = await asyncio.gather(*(store.get(key, prototype, r) for r in ranges))
    for reply, asked in zip(replies, ranges, strict=True):
        if reply is not None:
            check_range(len(reply), asked.start, asked.end)
    return replies


async def _size(store: Store, key: str) -> int:
    with largest_body(0):
        return await store.getsize(key)


def _as_bytes(buffer: Any) -> Bytes:
    return np.asarray(buffer.as_numpy_array()).view(np.uint8)
