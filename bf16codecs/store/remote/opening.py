"""Opens addresses, and stores of zarr's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

# First, and all of it: with two threads, one that imports a part of zarr first may meet one that
# imports zarr, each waiting for the other.
import zarr  # noqa: F401
from zarr.abc.store import Store
from zarr.storage import LocalStore, StorePath, ZipStore

from bf16codecs._arrays.storage import FolderStorage, LocalStorage
from bf16codecs._arrays.zipped import damaged_zip
from bf16codecs._base.arguments import argument, for_caller
from bf16codecs._base.limits import DEFAULT_LIMITS, Limits
from bf16codecs._base.messages import causes, named_errors
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.kinds import (
    HUB_SCHEME,
    Kind,
    address_scheme,
    kind_of_address,
    plain_address,
    refuse_hdf5,
)
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.remote.addresses import remote_store, surviving
from bf16codecs.store.remote.hub import HubPlace, find_on_hub
from bf16codecs.store.remote.safetensors import (
    RemoteFolder,
    open_remote_safetensors,
    remote_folder,
)
from bf16codecs.store.remote.storage import RemoteStorage, ask
from bf16codecs.store.zarr.reader import ZarrArrays
from bf16codecs.zarr.strict import StrictStore

__all__ = ["open_address", "open_given", "open_remote_source", "strict_store"]


def open_address(url: str, options: dict[str, Any], limits: Limits) -> ModelReader:
    """Open a model, or a run, at an address; `options` are for its file system.

    Raises StoreError if it is not a model, or of a kind that is read only from local disks; OSError
    if the server fails, or has nothing at the address; ValueError if the file system rejects an
    option.
    """
    url = plain_address(url)
    if address_scheme(url) == HUB_SCHEME:
        return _open_on_hub(find_on_hub(url, options), options, limits)
    kind = kind_of_address(url)
    if kind is Kind.HDF5:
        refuse_hdf5(url)
    with _advised_options(url, options):
        if kind is Kind.SAFETENSORS:
            return open_remote_safetensors(url, options, limits)
        reader = _open(url, remote_store(url, options), limits)
    reader.storage_options = options
    return reader


def open_remote_source(
    url: str, options: dict[str, Any], open_other: Callable[[RemoteFolder], ModelReader | None]
) -> ModelReader:
    """Open the source of a conversion at an address: a file, an index or a folder.

    `open_other` opens what is not safetensors, or returns None. On a hub, where names do not tell
    what is there, it may be a store as well. `options` and errors are those of `open_address`.
    """
    url = plain_address(url)
    if address_scheme(url) == HUB_SCHEME:
        place = find_on_hub(url, options)
        reader = open_other(place.files_in(DEFAULT_LIMITS))
        if reader is None:
            return _open_on_hub(place, options, DEFAULT_LIMITS)
        reader.location = (place.fixed, None)
    else:
        with _advised_options(url, options):
            folder = remote_folder(url, options, DEFAULT_LIMITS).usual()
            reader = open_other(folder) or folder.open(notes_state=True)
    reader.storage_options = options
    return reader


def _open_on_hub(place: HubPlace, options: dict[str, Any], limits: Limits) -> ModelReader:
    kind = place.kind
    if kind is Kind.HDF5:
        refuse_hdf5(place.where)
    reader: ModelReader
    if kind is Kind.SAFETENSORS:
        reader = place.files_in(limits).open()
    elif kind is Kind.ZIP:
        with named_errors(place.where, OSError):
            store = remote_store(f"{place.url}/{place.name}", place.options)
        reader = _open(place.where, store, limits)
    else:
        store = remote_store(place.url, place.options)
        reader = _open(place.where, store, limits, place.sizes)
    # Bases, and other processes, are read from the same commit.
    reader.location, reader.storage_options = (place.fixed, None), options
    return reader


@contextmanager
def _advised_options(url: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Let errors about credentials, and about options that a file system refuses, say so."""
    try:
        yield
    except (BF16CodecsError, OSError) as e:
        allowed = argument("storage_options")
        if _lacks_credentials(e):
            options_of_public = for_caller('={"anon": True}', """ '{"anon": true}'""")
            raise type(e)(f"{e}: a public bucket is read with {allowed}{options_of_public}") from e
        name = _refused_option(e, options)
        if name is None:
            raise
        raise ValueError(f"{url}: {allowed}: its file system takes no {name!r}") from e


def _refused_option(error: BaseException, options: Mapping[str, Any]) -> str | None:
    """Return the name of an option that a function refused; None if the caller did not give it."""
    for cause in causes(error):
        match = re.search(r"unexpected keyword argument '(\w+)'", str(cause))
        if isinstance(cause, TypeError) and match and match[1] in _names_in(options):
            return match[1]
    return None


def _names_in(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of options, and of those in them, as of a file system of a chain."""
    for name, value in options.items():
        yield name
        if isinstance(value, Mapping):
            yield from _names_in(value)


def _lacks_credentials(error: BaseException) -> bool:
    """Return whether botocore, which is not imported for this, has found no credentials."""
    return any(type(cause).__name__ == "NoCredentialsError" for cause in causes(error))


def open_given(store: Any, limits: Limits) -> ModelReader:
    """Open a model store, or a run, in a store object of zarr; raise TypeError for others."""
    if not isinstance(store, Store):
        kind = type(store).__name__
        raise TypeError(
            f"a model is a path, an address or a store of zarr's, not {store!r:.80} ({kind})"
        )
    reader = _open(str(store), surviving(store), limits)
    reader.location = _path_of(store), None
    return reader


def strict_store(path: Path, storage: LocalStorage) -> StrictStore:
    """Open a folder or a ZIP file that `storage` reads."""
    if isinstance(storage, FolderStorage):
        return StrictStore(LocalStore(path, read_only=True), storage)
    return StrictStore(ask(partial(ZipStore.open, path, mode="r")), storage)


def _open(
    where: str, store: Store, limits: Limits, sizes: Mapping[str, int] | None = None
) -> ModelReader:
    """Open a store of zarr's; `sizes` are those of its keys, if they are known."""
    if isinstance(store, LocalStore):
        folder = FolderStorage(store.root)
        return ModelReader(ZarrArrays(where, folder, partial(StrictStore, store, folder), limits))
    with named_errors(where, OSError):
        try:
            ask(StorePath.open, store, "")  # a ZipStore may not be open yet
        except BadZipFile as e:
            raise StoreError(damaged_zip(e)) from e
    storage = RemoteStorage(store, sizes)
    return ModelReader(ZarrArrays(where, storage, partial(StrictStore, store), limits))


def _path_of(store: Store) -> str:
    """Return the path of a store of zarr's, empty if it has none."""
    if isinstance(store, LocalStore):
        return str(store.root)
    return str(store.path) if isinstance(store, ZipStore) else ""
