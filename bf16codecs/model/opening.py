"""What a path or an address is: which kind of model, and what holds its bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import zarr
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, ObjectStore, ZipStore

from bf16codecs._chunks.array import ArrayReader, named_errors
from bf16codecs._chunks.sources import Blobs, FolderBlobs, StoreBlobs, ZipBlobs
from bf16codecs.errors import StoreError
from bf16codecs.store.safetensors_reader import SafetensorsModel
from bf16codecs.store.zarr_model import ZarrModel

__all__ = ["Opened", "open_any"]


class Opened(Protocol):
    """A model that was opened, whatever holds it."""

    where: str
    #: The tensors, in the order of their data.
    names: list[str]

    def array(self, name: str) -> ArrayReader:
        """Return the array of a tensor."""

    def tensor_dtype(self, name: str) -> str | None:
        """Return the dtype that safetensors knows the tensor by, if it is known."""

    def headers(self) -> list[tuple[bytes, int]]:
        """Return each file's header, and the size of the data after it."""

    def zarr_array(self, name: str) -> zarr.Array:
        """Open a tensor's array with zarr."""

    def close(self) -> None:
        """Release what is open."""


def open_any(source: Any, options: Mapping[str, Any] | None) -> Opened:
    """Open a path, an address, or a store of zarr's."""
    if isinstance(source, Store):
        if options:
            raise ValueError("storage_options are for addresses, this is a store")
        return _open_store(str(source), source)
    text = os.fspath(source)
    if _is_address(text):
        return _open_store(text, _remote_store(text, dict(options or {})))
    text = text.removeprefix("file://")
    if options:
        raise ValueError(f"{text}: storage_options are for addresses, this is a path")
    return _open_path(text)


def _is_address(text: str) -> bool:
    return "://" in text and not text.startswith("file://")


def _open_path(text: str) -> Opened:
    path = Path(text)
    if path.is_dir():
        if not any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zmetadata")):
            if any(path.glob("*.safetensors")):
                return SafetensorsModel(path)
            raise StoreError(f"{text}: not a model store: no Zarr group and no safetensors files")
        return ZarrModel(text, FolderBlobs(path), partial(LocalStore, path, read_only=True))
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        return SafetensorsModel(path)
    with open(path, "rb") as file:
        magic = file.read(8)
    if magic[:2] == b"PK":
        return ZarrModel(text, ZipBlobs(path), partial(ZipStore, path, mode="r"))
    if magic == b"\x89HDF\r\n\x1a\n":
        # h5py is imported by those who have HDF5 files.
        from bf16codecs.store.hdf5_model import H5Model

        return H5Model(path)
    raise StoreError(f"{text}: not a model store: neither a folder, nor a ZIP or HDF5 file")


def _open_store(where: str, store: Store) -> ZarrModel:
    blobs: Blobs = StoreBlobs(store)
    if isinstance(store, LocalStore):
        blobs = FolderBlobs(store.root)
    return ZarrModel(where, blobs, lambda: store)


def _remote_store(url: str, options: dict[str, Any]) -> Store:
    """Open an address with fsspec, or with obstore where fsspec has no file system for it."""
    address = f"zip::{url}" if "::" not in url and url.partition("?")[0].endswith(".zip") else url
    scheme = url.partition("://")[0].rpartition("::")[2]
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as e:
        return _obstore(url, options, e)
    with named_errors(url):
        return FsspecStore.from_url(address, storage_options=options, read_only=True)


def _obstore(url: str, options: dict[str, Any], reason: Exception) -> Store:
    """Open an address with obstore; `reason` is why fsspec does not."""
    try:
        from obstore.store import from_url
    except ImportError:
        raise StoreError(
            f"{url}: reading it takes another package ({reason});"
            " pip install 'bf16codecs[remote]' has those of the common ones"
        ) from reason
    try:
        return ObjectStore(from_url(url, **options), read_only=True)
    except Exception as e:
        raise StoreError(f"{url}: {' '.join(str(e).split())}; and {reason}") from e
