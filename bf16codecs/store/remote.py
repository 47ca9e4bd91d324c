"""Opens addresses: with fsspec, or with obstore where fsspec has no file system for them."""

from __future__ import annotations

import asyncio
from typing import Any

from zarr.abc.store import Store
from zarr.storage import FsspecStore, ObjectStore

from bf16codecs._chunks.http import open_session
from bf16codecs._messages import named_errors, one_line
from bf16codecs.errors import StoreError
from bf16codecs.store.addresses import path_of

__all__ = ["remote_store"]


def remote_store(url: str, options: dict[str, Any]) -> Store:
    """Open an address as a store of zarr's.

    Raises
    ------
    StoreError
        If a package is missing that knows such addresses.
    OSError
        If it cannot be opened.
    """
    address = f"zip::{url}" if "::" not in url and url.partition("?")[0].endswith(".zip") else url
    scheme = url.partition("://")[0].rpartition("::")[2]
    if path_of(url.rpartition("::")[2]) is not None:
        # There, fsspec would follow symbolic links, and wait for pipes.
        raise StoreError(f"{url}: leads to local files: give the path itself")
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as e:
        return _obstore(url, options, e)
    # In what is chained, as in zip::https://, each file system has the options of its scheme.
    for web in {part.partition("://")[0] for part in address.split("::")} & {"http", "https"}:
        session = {"get_client": open_session}
        if "::" in address and "client_kwargs" in options:
            options = {**options}
            session["client_kwargs"] = options.pop("client_kwargs")
        options = {**options, web: {**session, **options.get(web, {})}}
    with named_errors(url, OSError):
        store = FsspecStore.from_url(address, storage_options=options, read_only=True)
        return _one_by_one(store) if "zip" in store.fs.protocol else store


def _one_by_one(store: FsspecStore) -> FsspecStore:
    """Let one member of a ZIP file be read at a time.

    In Python's zipfile, members share the file's position, and seeking in one counts from where
    another left it: one of four runs of the tests read other bytes.
    """
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    fs = AsyncFileSystemWrapper(store.fs.sync_fs, asynchronous=True, semaphore=asyncio.Semaphore(1))
    return FsspecStore(fs=fs, path=store.path, read_only=True)


def _obstore(url: str, options: dict[str, Any], reason: Exception) -> Store:
    """Open an address with obstore; `reason` is why fsspec does not."""
    try:
        from obstore.store import from_url
    except ImportError:
        raise StoreError(
            f"{url}: another package is needed to read it ({reason});"
            " pip install 'bf16codecs[remote]' installs those for HTTP and S3"
        ) from reason
    try:
        return ObjectStore(from_url(url, **options), read_only=True)
    except Exception as e:
        # Behind the message, obstore has everything that it knows of the request.
        text = one_line(e).partition(" Debug source")[0]
        raise StoreError(f"{url}: {reason}; and {text}") from e
