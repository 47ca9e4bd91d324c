"""Stored chunks in a store of zarr's: remote ones, and those in memory."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, ObjectStore, ZipStore

from bf16codecs._arrays.http import failure_of, is_gone, is_refused, largest_body
from bf16codecs._arrays.storage import AtMost, KeyStorage, Request, StoredChunk, check_range
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cached import cached_property
from bf16codecs._base.limits import MAX_METADATA_BYTES, check_metadata, check_parsed
from bf16codecs._base.messages import advised, one_line
from bf16codecs.errors import StoreError
from bf16codecs.store.remote.addresses import ReopeningStore
from bf16codecs.zarr.strict import has_bounded_replies

__all__ = ["RemoteStorage", "ask"]


class RemoteStorage(KeyStorage):
    """Keys of a store of zarr's, remote or in memory.

    A key that the server refuses counts as one that does not exist: S3 gives the same answer to
    both if a client may not list keys. `refusal` tells them apart as far as possible. `sizes` are
    those of all keys, if they are known before a server is asked.
    """

    concurrency = 8

    def __init__(self, store: Store, sizes: Mapping[str, int] | None = None) -> None:
        self._store, self._sizes = store, sizes
        self._refusals: dict[str, str] = {}

    def open(self, key: str) -> StoredChunk:
        """Return the chunk, which is requested when it is read."""
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
        """Return the stored size of a key of `nbytes`: in a ZIP file, its compressed size."""
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
        """Return whether an error may mean that a key is missing, and note the server's refusal."""
        if is_refused(error):
            self._refusals[key] = one_line(error)
            return True
        return is_gone(error)

    def refusal(self, key: str) -> str:
        """Return the server's refusal of a key; empty if it gave the key, or has none."""
        return self._refusals.get(key, "")

    def state(self, key: str) -> str:
        """Return what the server says of a key, such as its ETag, which differs after a change."""
        return repr(sorted(ask(_state, self._store, key).items()))

    def files(self) -> dict[str, int] | None:
        """Return the sizes of the files in the folder; None if its server does not list them.

        Web servers have pages for people, if any.
        """
        return ask(_files, self._store)

    def zip_names(self) -> Sequence[str]:
        """Return the names of all members of a ZIP file."""
        store: Any = self._store
        file = store._zf if isinstance(store, ZipStore) else getattr(self._archive(), "zip", None)
        return () if file is None else file.namelist()

    def folder_size(self, path: str) -> int | None:
        """Return the size of all keys below a path, None where no server lists them."""
        file = getattr(self._archive(), "fo", None)
        if file is not None:
            # The size of a ZIP file, from the server; its members' sizes take no request.
            return None if path else file.size
        return None if self._folders is None else self._folders.get(path, 0)

    @cached_property
    def _folders(self) -> dict[str, int] | None:
        """Sizes of folders, listed once: object stores list 1,000 keys at a time."""
        sizes = ask(_listed_sizes, self._store) if self._sizes is None else self._sizes
        return None if sizes is None else _folder_sizes(sizes)

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
    """Request all ranges at once; results are None if the key is missing."""
    prototype = default_buffer_prototype()
    if isinstance(request, AtMost) and has_bounded_replies(store):
        with largest_body(request.nbytes):
            return [await store.get(key, prototype)]
    # Ask other stores for one byte more than allowed, so that callers notice larger keys.
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


T = TypeVar("T")

# At exit, requests that are under way may end; the rest of the exit takes less than the second.
_LAST_SECONDS, _HELD_SECONDS = 0.5, 10


class _Requests:
    """Counts requests, and lets daemon threads begin none when the interpreter exits.

    zarr closes its loop then. Python warns on the terminal of requests that were handed to the loop
    and had not begun, in one of ten exits beside a thread that reads all the time; later requests
    fail in a thread that is not waited for.
    """

    def __init__(self) -> None:
        self._changed, self._under_way, self._is_over = threading.Condition(), 0, False

    def __enter__(self) -> None:
        with self._changed:
            if self._is_over:
                self._hold()
            self._under_way += 1

    def __exit__(self, kind: object, error: object, *_: object) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()
            # Python's executors, which ZIP files need, are shut down before `end` is called.
            is_shut = isinstance(error, RuntimeError) and "shutdown" in str(error)
            if self._is_over or is_shut:
                self._hold()

    def _hold(self) -> None:
        """Hold a daemon thread, which is not waited for, until the process ends."""
        if threading.current_thread().daemon:
            self._changed.wait_for(lambda: False, _HELD_SECONDS)

    def end(self) -> None:
        """Let those under way end, and daemon threads begin no more."""
        with self._changed:
            self._is_over = True
            self._changed.wait_for(lambda: not self._under_way, _LAST_SECONDS)


_requests = _Requests()


def ask(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Call a coroutine function in zarr's event loop, and wait for its result."""
    with _requests:
        return sync(function(*args))


def _end() -> None:
    _requests.end()


def _forget_requests() -> None:
    global _requests
    _requests = _Requests()  # those of other threads, which a forked process does not have


# After zarr's, which is imported above: the last that is registered is called first.
atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_requests)


# What identifies a version of a file, by the names that file systems of fsspec and obstore use.
_OF_VERSION = {
    *("size", "ETag", "e_tag", "etag", "blob_id", "mtime"),
    *("LastModified", "Last-Modified", "last_modified"),
}


async def _state(store: Store, key: str) -> dict[str, str]:
    store = store.current if isinstance(store, ReopeningStore) else store
    if isinstance(store, ObjectStore):
        import obstore

        found: Mapping[str, Any] = await obstore.head_async(store.store, key)
    else:
        assert isinstance(store, FsspecStore)
        store.fs.invalidate_cache()
        found = await store.fs._info(f"{store.path}/{key}" if key else store.path)
    return {name: str(found[name]) for name in _OF_VERSION if name in found}


async def _files(store: Store) -> dict[str, int] | None:
    store = store.current if isinstance(store, ReopeningStore) else store
    if isinstance(store, ObjectStore):
        import obstore

        listed = await obstore.list_with_delimiter_async(store.store)
        return {meta["path"].rpartition("/")[2]: meta["size"] for meta in listed["objects"]}
    if not isinstance(store, FsspecStore) or "http" in store.fs.protocol:
        return None
    store.fs.invalidate_cache()
    files = [e for e in await store.fs._ls(store.path, detail=True) if e["type"] == "file"]
    return {file["name"].rpartition("/")[2]: int(file["size"]) for file in files}


async def _listed_sizes(store: Store) -> dict[str, int] | None:
    """Ask for the sizes of all keys of a store; None if its server does not list them."""
    store = store.current if isinstance(store, ReopeningStore) else store
    try:
        if isinstance(store, ObjectStore):
            return await _listed_by_obstore(store) or None
        # Web servers have pages for people, if any, without sizes.
        if isinstance(store, FsspecStore) and "http" not in store.fs.protocol:
            return await _listed_by_fsspec(store.fs, store.path) or None
    except Exception:  # of any package: a server that has no lists, or no right to see them
        return None
    return None


async def _listed_by_fsspec(fs: Any, root: str) -> dict[str, int]:
    root = fs._strip_protocol(root).rstrip("/")
    try:
        found = await fs._find(root, detail=True)
    finally:
        fs.invalidate_cache()  # or the old sizes stay after the store was replaced
    return {key.removeprefix(f"{root}/"): int(info["size"]) for key, info in found.items()}


async def _listed_by_obstore(store: ObjectStore[Any]) -> dict[str, int]:
    import obstore

    sizes: dict[str, int] = {}
    async for batch in obstore.list(store.store):
        sizes |= {meta["path"]: meta["size"] for meta in batch}
    return sizes


def _folder_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of all keys below each folder, the root being ""."""
    folders = Counter({"": 0})
    for key, size in sizes.items():
        while key:
            key = key.rpartition("/")[0]
            folders[key] += size
    return folders
