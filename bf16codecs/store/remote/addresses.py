"""Opens addresses: with fsspec, or with obstore where fsspec has no file system for them.

An open store remains readable in a forked process, or raises an error there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any
from zipfile import BadZipFile

from zarr.abc.store import Store
from zarr.storage import FsspecStore, ObjectStore, WrapperStore

from bf16codecs._arrays.http import failure_of, largest_body, open_session
from bf16codecs._arrays.storage import IGNORES_RANGES
from bf16codecs._arrays.zipped import damaged_zip
from bf16codecs._base.limits import MAX_METADATA_BYTES
from bf16codecs._base.messages import causes, install_extra, named_errors, one_line
from bf16codecs.errors import LimitError, ServerError, StoreError
from bf16codecs.store.kinds import OBJECT_SCHEMES, Kind, kind_of_address, path_of
from bf16codecs.store.remote.option_names import fsspec_options

__all__ = ["ReopeningStore", "remote_file", "remote_store", "surviving"]


def surviving(store: Store) -> Store:
    """Return a store that remains readable in a forked process, or raises an error there."""
    if not isinstance(store, (FsspecStore, ObjectStore)):
        return store
    return ReopeningStore(partial(_copied, store, os.getpid()))


def _copied(store: Store, process: int) -> Store:
    if os.getpid() == process:
        return store
    if isinstance(store, ObjectStore):  # its threads are gone: any request would wait for ever
        raise StoreError(
            "opened with obstore before this process was forked, and obstore does not survive fork:"
            " start processes with multiprocessing.get_context('spawn') or 'forkserver'"
        )
    copy: Store = pickle.loads(pickle.dumps(store))
    return copy


class ReopeningStore(WrapperStore[Store]):
    """A store at an address, which is opened again in a process that was forked.

    File systems of fsspec belong to an event loop in a thread, which a forked process does not
    have: multiprocessing forks on Linux, and PyTorch for its `DataLoader`.
    """

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store, self._process = open_store, os.getpid()
        super().__init__(open_store())

    # The base class reads through this attribute alone.
    @property
    def _store(self) -> Store:
        if self._process != os.getpid():
            # Several threads may do so at once: all get the same, and the last one stays.
            self._current, self._process = self._open_store(), os.getpid()
        return self._current

    @_store.setter
    def _store(self, store: Store) -> None:
        self._current = store

    @property
    def current(self) -> Store:
        """The store that this process reads."""
        return self._store

    @property
    def fs(self) -> Any:
        """Its file system of fsspec, or None."""
        return getattr(self._store, "fs", None)

    @property
    def path(self) -> Any:
        """Its path in that file system."""
        return getattr(self._store, "path", None)

    async def getsize(self, key: str) -> int:
        """Return the size of a key, without reading all of it as the base class does."""
        return await self._store.getsize(key)

    def _with_store(self, store: Store) -> Store:  # type: ignore[override]
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        return ReopeningStore, (self._open_store,)


# Texts of fsspec, which advise its callers, and of this package, about servers without ranges.
_TOO_SHORT = "Seek before start of file"
_NO_RANGES = "range requests", "Cannot seek streaming HTTP file", IGNORES_RANGES


def remote_store(url: str, options: dict[str, Any]) -> Store:
    """Open an address as a store of zarr's.

    Raises StoreError if a package is missing that knows such addresses, the server ignores
    ranges, which ZIP files take, or a ZIP file is damaged; FileNotFoundError if a ZIP file, which
    is opened at once, is not there; OSError if it cannot be opened.
    """
    is_zip = "::" not in url and kind_of_address(url) is Kind.ZIP
    address = f"zip::{url}" if is_zip else url
    scheme = url.partition("://")[0].rpartition("::")[2]
    if path_of(url.rpartition("::")[2]) is not None:
        # There, fsspec would follow symbolic links, and wait for pipes.
        raise StoreError(f"{url}: leads to local files: give the path itself")
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as e:
        return _obstore(url, scheme, options, e)
    options = fsspec_options(scheme, options)
    with named_errors(url, OSError):
        try:
            each = _options_of_each(address, options)
            return ReopeningStore(partial(_fsspec_store, address, each))
        except FileNotFoundError as e:
            failure = failure_of(e)
        except (BadZipFile, LimitError) as e:
            if not isinstance(e.__context__, OSError):
                raise StoreError(damaged_zip(e)) from e
            # zipfile takes an error of the server for the end of the file; fsspec wraps it.
            failure = list(causes(e.__context__))[-1]
        except ValueError as e:
            if is_zip and _TOO_SHORT in str(e):
                raise StoreError(damaged_zip(e)) from e
            if not any(text in str(e) for text in _NO_RANGES):
                raise
            raise ServerError(
                "the server ignores ranges, by which ZIP files are read: download it, or serve the"
                " folder of a Zarr store"
            ) from e
        if failure is not None:
            raise failure
    raise FileNotFoundError(errno.ENOENT, "Nothing is there", url)


def _options_of_each(address: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of each file system of an address, by its scheme if there are several.

    In a chain such as zip::https://, options without a scheme belong to the last one: it has the
    server, and ZIP files have no options.
    """
    schemes = [part.partition("://")[0] for part in address.split("::")]
    if len(schemes) > 1:
        named = {name: value for name, value in options.items() if name in schemes}
        rest = {name: value for name, value in options.items() if name not in schemes}
        options = {**named, schemes[-1]: {**rest, **named.get(schemes[-1], {})}}
    for web in {"http", "https"}.intersection(schemes):
        options = {**options, web: {"get_client": open_session, **options.get(web, {})}}
    return options


def _fsspec_store(address: str, options: dict[str, Any]) -> FsspecStore:
    # For a ZIP file, this reads the directory, which may claim any size.
    with largest_body(MAX_METADATA_BYTES):
        store = FsspecStore.from_url(address, storage_options=options, read_only=True)
    return _one_by_one(store) if "zip" in store.fs.protocol else store


def remote_file(url: str, options: dict[str, Any]) -> tuple[Store, str]:
    """Open a file at an address as `remote_store` does: return a store of zarr's, and its key."""
    store = remote_store(url, options)
    if isinstance(store, ReopeningStore) and store.fs is not None:
        return store, ""  # fsspec takes a file for a folder with nothing in it
    folder, _, name = url.rpartition("/")
    return remote_store(folder, options), name


def _one_by_one(store: FsspecStore) -> FsspecStore:
    """Return a store that reads one member of a ZIP file at a time.

    In Python's zipfile, members share the file's position, and seeking in one counts from where
    another left it: one of four runs of the tests read other bytes.
    """
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    fs = AsyncFileSystemWrapper(store.fs.sync_fs, asynchronous=True, semaphore=asyncio.Semaphore(1))
    return FsspecStore(fs=fs, path=store.path, read_only=True)


def _obstore(url: str, scheme: str, options: dict[str, Any], reason: Exception) -> Store:
    """Open an address with obstore; `reason` is why fsspec does not."""
    try:
        from obstore.store import from_url

        from bf16codecs.store.remote.object_store import object_store
    except ImportError:
        raise StoreError(
            f"{url}: another package is needed to read it ({reason}); of HTTP and S3:"
            f" {install_extra('remote')}"
        ) from reason
    try:
        if scheme in OBJECT_SCHEMES:
            opened = object_store(url, options)
        else:
            opened = from_url(url, **options)
        return surviving(ObjectStore(opened, read_only=True))
    except Exception as e:
        why = one_line(e)
        if isinstance(reason, ValueError) and "Unable to recognise URL" in why:
            raise StoreError(
                f"{url}: no installed package opens {scheme}:// addresses: check the"
                " scheme, or install its package for fsspec"
            ) from e
        raise StoreError(f"{url}: {reason}; and {why}") from e
