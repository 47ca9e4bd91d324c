"""What a path or an address is: which kind of model, and what reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, ObjectStore, ZipStore

from bf16codecs._chunks.sources import FolderSource, StoreSource, ZipSource
from bf16codecs._messages import named_errors, one_line
from bf16codecs.errors import StoreError
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.safetensors_reader import SafetensorsReader
from bf16codecs.store.zarr_reader import ZarrReader

__all__ = ["Kind", "detect", "open_any", "open_store"]


class Kind(Enum):
    """What a path can be, and what messages call it."""

    FOLDER = "a Zarr store"
    ZIP = "a Zarr store in a ZIP file"
    HDF5 = "an HDF5 file"
    SAFETENSORS = "a safetensors model"


_ZARR_MARKERS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
_SAFETENSORS_SUFFIXES = (".safetensors", ".safetensors.index.json")
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


def detect(path: str | os.PathLike[str]) -> Kind | None:
    """Return what a file or a folder is, by its name, its first bytes or what it contains.

    Returns
    -------
    Kind or None
        None if it is nothing that holds a model.

    Raises
    ------
    OSError
        If it does not exist, or cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        if any((path / name).is_file() for name in _ZARR_MARKERS):
            return Kind.FOLDER
        return Kind.SAFETENSORS if any(path.glob("*.safetensors")) else None
    if path.name.endswith(_SAFETENSORS_SUFFIXES):
        return Kind.SAFETENSORS
    if path.exists() and not path.is_file():
        return None  # reading from a pipe or a device may never end
    with open(path, "rb") as file:
        if file.read(2) == b"PK":
            return Kind.ZIP
        # Behind a user block, whose size is a power of two.
        size, at = os.fstat(file.fileno()).st_size, 0
        while at + len(_HDF5_MAGIC) <= size:
            file.seek(at)
            if file.read(len(_HDF5_MAGIC)) == _HDF5_MAGIC:
                return Kind.HDF5
            at = max(512, 2 * at)
    return None


def open_any(source: Any, options: Mapping[str, Any] | None = None) -> StoreReader:
    """Open a model, whatever holds it.

    Parameters
    ----------
    source : str, path or zarr.abc.store.Store
        A path, an address, or a store of zarr's.
    options : dict, optional
        What the file system behind an address takes.

    Returns
    -------
    StoreReader

    Raises
    ------
    StoreError
        If it is not a model.
    OSError
        If there is nothing there, or it cannot be read.
    """
    if isinstance(source, Store):
        if options:
            raise ValueError("storage_options apply to addresses only, not to a zarr store")
        return _open_zarr_store(str(source), source)
    text = os.fspath(source)
    if _is_address(text):
        return _open_zarr_store(text, _remote_store(text, dict(options or {})))
    text = text.removeprefix("file://")
    if options:
        raise ValueError(f"{text}: storage_options apply to addresses only, not to paths")
    return _open_path(text, detect(text))


def open_store(store: str | os.PathLike[str], *kinds: Kind) -> StoreReader:
    """Open a model store for those who read all of it.

    Parameters
    ----------
    store
        A path or an address.
    kinds
        What it may be; by default, Zarr in a folder or a ZIP file, or HDF5. Addresses are Zarr's.

    Returns
    -------
    StoreReader

    Raises
    ------
    StoreError
        If it is not a model store, or is one of another kind.
    OSError
        If there is nothing there, or it cannot be read.
    """
    text = os.fspath(store)
    if _is_address(text):
        if kinds and Kind.FOLDER not in kinds:
            raise StoreError(f"{text}: not {kinds[0].value}: only Zarr stores have addresses")
        return open_any(text)
    path = text.removeprefix("file://")
    kind = detect(path)
    if kind is not None and kind not in (kinds or (Kind.FOLDER, Kind.ZIP, Kind.HDF5)):
        expected = kinds[0].value if kinds else "a model store"
        raise StoreError(f"{text}: not {expected}, but {kind.value}")
    return _open_path(path, kind)


def _is_address(text: str) -> bool:
    return "://" in text and not text.startswith("file://")


def _open_path(text: str, kind: Kind | None) -> StoreReader:
    path = Path(text)
    if kind is Kind.FOLDER:
        return ZarrReader(text, FolderSource(path), partial(LocalStore, path, read_only=True))
    if kind is Kind.ZIP:
        return ZarrReader(text, ZipSource(path), lambda: sync(ZipStore.open(path, mode="r")))
    if kind is Kind.SAFETENSORS:
        return SafetensorsReader(path)
    if kind is Kind.HDF5:
        # h5py is imported only for HDF5 files.
        from bf16codecs.store.hdf5_reader import Hdf5Reader

        return Hdf5Reader(path)
    reason = "neither a folder, nor a ZIP or HDF5 file"
    if path.is_dir():
        reason = "no Zarr group and no safetensors files"
    raise StoreError(f"{text}: not a model store: {reason}")


def _open_zarr_store(where: str, store: Store) -> ZarrReader:
    if isinstance(store, LocalStore):
        return ZarrReader(where, FolderSource(store.root), lambda: store)
    return ZarrReader(where, StoreSource(store), lambda: store)


def _remote_store(url: str, options: dict[str, Any]) -> Store:
    """Open an address with fsspec, or with obstore where fsspec has no file system for it."""
    address = f"zip::{url}" if "::" not in url and url.partition("?")[0].endswith(".zip") else url
    scheme = url.partition("://")[0].rpartition("::")[2]
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as e:
        return _obstore(url, options, e)
    with named_errors(url, OSError):
        return FsspecStore.from_url(address, storage_options=options, read_only=True)


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
