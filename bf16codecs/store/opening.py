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
from zarr.storage import LocalStore, StorePath, ZipStore

from bf16codecs._chunks.sources import FolderSource, StoreSource
from bf16codecs._chunks.zipped import ZipSource
from bf16codecs._limits import DEFAULT_LIMITS, Limits
from bf16codecs._messages import named_errors
from bf16codecs._paths import given_path
from bf16codecs._replace import recover_missing
from bf16codecs.errors import StoreError
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.remote import LOCAL_SCHEMES, remote_store
from bf16codecs.store.safetensors_reader import SafetensorsReader
from bf16codecs.store.zarr_reader import ZarrReader
from bf16codecs.zarr.strict import StrictStore

__all__ = ["Kind", "detect", "open_any", "open_store"]


class Kind(Enum):
    """What a path can be, and what messages call it."""

    FOLDER = "a Zarr store"
    ZIP = "a Zarr store in a ZIP file"
    HDF5 = "an HDF5 file"
    SAFETENSORS = "a safetensors model"


_ZARR_MARKERS = {"zarr.json", ".zgroup", ".zarray", ".zmetadata"}
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
    ValueError
        If the path is empty.
    """
    path = Path(given_path(path, "store"))
    recover_missing(path)
    if path.is_dir():
        return _detect_folder(path)
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


def _detect_folder(path: Path) -> Kind | None:
    while True:
        before = os.stat(path)
        # lexists() and glob() would take a folder that must not be read for an empty one.
        names = os.listdir(path)
        if not _ZARR_MARKERS.isdisjoint(names):
            return Kind.FOLDER
        if any(name.endswith(".safetensors") for name in names):
            return Kind.SAFETENSORS
        if os.path.samestat(before, os.stat(path)):
            return None
        # It was being removed: another has its name.


def open_any(
    source: Any, options: Mapping[str, Any] | None = None, limits: Limits = DEFAULT_LIMITS
) -> StoreReader:
    """Open a model, whatever holds it.

    Parameters
    ----------
    source : str, path or zarr.abc.store.Store
        A path, an address, or a store of zarr's.
    options : dict, optional
        What the file system behind an address takes.
    limits : Limits
        What reading it may take.

    Returns
    -------
    StoreReader

    Raises
    ------
    StoreError
        If it is not a model.
    OSError
        If there is nothing there, or it cannot be read.
    ValueError
        If the path is empty.
    """
    if isinstance(source, Store):
        if options:
            raise ValueError("storage_options apply to addresses only, not to a zarr store")
        return _open_zarr_store(str(source), source, limits)
    text = os.fspath(source)
    path = _path_of(text)
    if path is None:
        return _open_zarr_store(text, remote_store(text, dict(options or {})), limits)
    if options:
        raise ValueError(f"{text}: storage_options apply to addresses only, not to paths")
    return _open_path(path, detect(path), limits)


def open_store(
    store: str | os.PathLike[str], *kinds: Kind, limits: Limits = DEFAULT_LIMITS
) -> StoreReader:
    """Open a model store for those who read all of it.

    Parameters
    ----------
    store
        A path or an address.
    kinds
        What it may be; by default, Zarr in a folder or a ZIP file, or HDF5. Addresses are Zarr's.
    limits
        What reading it may take.

    Returns
    -------
    StoreReader

    Raises
    ------
    StoreError
        If it is not a model store, or is one of another kind.
    OSError
        If there is nothing there, or it cannot be read.
    ValueError
        If the path is empty.
    """
    text = os.fspath(store)
    path = _path_of(text)
    if path is None:
        if kinds and Kind.FOLDER not in kinds:
            raise StoreError(f"{text}: not {kinds[0].value}: only Zarr stores have addresses")
        return open_any(text, limits=limits)
    kind = detect(path)
    if kind is not None and kind not in (kinds or (Kind.FOLDER, Kind.ZIP, Kind.HDF5)):
        expected = kinds[0].value if kinds else "a model store"
        raise StoreError(f"{text}: not {expected}, but {kind.value}")
    return _open_path(path, kind, limits)


def _path_of(text: str) -> str | None:
    """Return a local path, with or without a scheme before it; None for an address."""
    scheme, has_scheme, path = text.partition("://")
    if not has_scheme:
        return text
    return path if scheme.lower() in LOCAL_SCHEMES else None


def _open_path(text: str, kind: Kind | None, limits: Limits) -> StoreReader:
    path = Path(text)
    if kind is Kind.FOLDER:
        folder = FolderSource(path)
        return ZarrReader(text, folder, partial(_local_store, path, folder), limits)
    if kind is Kind.ZIP:
        archive = ZipSource(path)
        return ZarrReader(text, archive, partial(_zip_store, path, archive), limits)
    if kind is Kind.SAFETENSORS:
        return SafetensorsReader(path)
    if kind is Kind.HDF5:
        # h5py is imported only for HDF5 files.
        from bf16codecs.store.hdf5_reader import Hdf5Reader

        return Hdf5Reader(path, limits)
    reason = "neither a folder, nor a ZIP or HDF5 file"
    if path.is_dir():
        reason = "no Zarr group and no safetensors files"
    raise StoreError(f"{text}: not a model store: {reason}")


def _open_zarr_store(where: str, store: Store, limits: Limits) -> ZarrReader:
    if isinstance(store, LocalStore):
        source = FolderSource(store.root)
        return ZarrReader(where, source, partial(StrictStore, store, source), limits)
    with named_errors(where, OSError):
        sync(StorePath.open(store, ""))  # a ZipStore may not be open yet
    return ZarrReader(where, StoreSource(store), partial(StrictStore, store), limits)


def _local_store(path: Path, source: FolderSource) -> StrictStore:
    return StrictStore(LocalStore(path, read_only=True), source)


def _zip_store(path: Path, source: ZipSource) -> StrictStore:
    return StrictStore(sync(ZipStore.open(path, mode="r")), source)
