"""Find files, objects and attributes that users added to a store, which replacing it would lose."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bf16codecs._arrays.storage import FolderStorage
from bf16codecs._arrays.zipped import ZipStorage
from bf16codecs._base.paths import and_parents
from bf16codecs._files.folders import walk
from bf16codecs.errors import BF16CodecsError
from bf16codecs.store.kinds import ZARR_MARKERS, Kind
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo
from bf16codecs.store.opening import model_attributes
from bf16codecs.store.paths import array_paths
from bf16codecs.store.zarr.folder import APPENDING
from bf16codecs.store.zarr.metadata import ARRAY_DOCUMENTS, GROUP_DOCUMENTS, read_json, read_root

__all__ = ["foreign_attribute", "foreign_attribute_of", "foreign_key", "foreign_name"]

_DOCUMENTS = ZARR_MARKERS | {".zattrs"}
# The Finder of macOS leaves it in every folder.
_LITTER = ".DS_Store"
# A chunk's key below its array.
_CHUNK = re.compile(r"c|(c[./])?[0-9]+([./][0-9]+)*")


def foreign_name(path: Path, kind: Kind) -> str:
    """Return the first file, ZIP member or HDF5 object that does not belong to a store, or "".

    The arrays of a damaged store, or after a killed append, may be unknown: then everything that
    Zarr or HDF5 may have written counts as the store's.
    """
    if kind is Kind.HDF5:
        info = _info_of(path)
        return "" if info is None else _foreign_object(path, info)
    content = _Content.of(path)
    belongs = _is_zarrs if content is None else content.has
    names = _files_in(path) if kind is Kind.FOLDER else _members_of(path)
    return next((name for name in names if not belongs(name)), "")


def foreign_key(info: StoreInfo, zarr_format: int, keys: Iterable[str]) -> str:
    """Return the first of the keys that does not belong to a store at an address, or ""."""
    content = _Content.of_store(info, zarr_format)
    return next((key for key in keys if not content.has(key)), "")


def foreign_attribute(path: Path, kind: Kind | None) -> str:
    """Return the first foreign attribute of a store, with its array or group, or ""."""
    info = _info_of(path)
    arrays = set() if info is None else info.arrays
    nodes = sorted(arrays | _groups_of(arrays))
    found = _hdf5_attributes(path, nodes) if kind is Kind.HDF5 else _zarr_attributes(path, nodes)
    return foreign_attribute_of(found)


def foreign_attribute_of(found: Iterable[tuple[str, Collection[str]]]) -> str:
    """Return the first foreign attribute of arrays and groups, given their names, or ""."""
    for node, names in found:
        for name in sorted({*names} - {ATTRIBUTES_KEY, "_ARRAY_DIMENSIONS"}):
            return f"{name!r:.200} of {node or '/'!r:.200}"
    return ""


def _info_of(path: Path) -> StoreInfo | None:
    if os.path.lexists(path / APPENDING):
        return None
    try:
        return StoreInfo.from_attributes({ATTRIBUTES_KEY: model_attributes(path)}, str(path))
    except BF16CodecsError:
        return None


def _storage_of(path: Path) -> FolderStorage | ZipStorage:
    return FolderStorage(path) if path.is_dir() else ZipStorage(path)


def _groups_of(arrays: set[str]) -> set[str]:
    return {group for path in arrays for group in and_parents(path)[1:]}


def _files_in(store: Path) -> Iterator[str]:
    for folder, folders, files in walk(store):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted(files + links):
            yield Path(folder, name).relative_to(store).as_posix()


def _members_of(store: Path) -> list[str]:
    with zipfile.ZipFile(store) as archive:
        return sorted(name for name in archive.namelist() if not name.endswith("/"))


def _is_zarrs(name: str) -> bool:
    file = name.rpartition("/")[2]
    if name.startswith(f"{APPENDING}/"):  # temporary files of an append
        return True
    return file in _DOCUMENTS or file == _LITTER or _CHUNK.fullmatch(file) is not None


@dataclass(frozen=True)
class _Content:
    """The files of a model in a Zarr store: documents of one format, and chunks below its arrays.

    Any key of a chunk counts, since the document of a damaged array may not have its shape.
    """

    arrays: set[str]
    #: Names of documents, by the folder that they may be in.
    documents: Mapping[str, Collection[str]]

    @classmethod
    def of(cls, path: Path) -> _Content | None:
        """Return the content of a store; None if it is damaged, or an append is in progress."""
        if os.path.lexists(path / APPENDING):
            return None
        try:
            with closing(_storage_of(path)) as storage:
                root = read_root(str(path), storage)
            info = StoreInfo.from_attributes(root.attributes, str(path))
        except BF16CodecsError:
            return None
        return cls.of_store(info, root.zarr_format)

    @classmethod
    def of_store(cls, info: StoreInfo, zarr_format: int) -> _Content:
        """Return the content of a store with these attributes."""
        folders = dict.fromkeys(_groups_of(info.arrays), GROUP_DOCUMENTS[zarr_format])
        stored = info.arrays - info.differences.keys()
        folders |= dict.fromkeys(stored, ARRAY_DOCUMENTS[zarr_format])
        return cls(info.arrays, folders)

    def has(self, name: str) -> bool:
        """Return whether a file of this name belongs to the store."""
        folder, _, file = name.rpartition("/")
        if file == _LITTER:
            return True
        if file in _DOCUMENTS:
            return file in self.documents.get(folder, ())
        owner = next((path for path in and_parents(name)[1:] if path in self.arrays), None)
        return owner is not None and _CHUNK.fullmatch(name[len(owner) + 1 :]) is not None


def _zarr_attributes(path: Path, nodes: list[str]) -> Iterator[tuple[str, set[str]]]:
    with closing(_storage_of(path)) as storage:
        for node in nodes:
            prefix = f"{node}/" if node else ""
            attributes = read_json(str(path), storage, f"{prefix}.zattrs")
            if attributes is None:
                document = read_json(str(path), storage, f"{prefix}zarr.json") or {}
                attributes = document.get("attributes")
            yield node, set(attributes) if isinstance(attributes, dict) else set()


def _hdf5_attributes(path: Path, nodes: list[str]) -> Iterator[tuple[str, set[str]]]:
    from bf16codecs.store.hdf5.reader import attribute_names  # h5py is imported only for HDF5 files

    return zip(nodes, attribute_names(path, nodes), strict=True)


def _foreign_object(path: Path, info: StoreInfo) -> str:
    from bf16codecs.store.hdf5.reader import other_object  # h5py is imported only for HDF5 files

    # A repeated tensor has its own path, a hard link to the first one's array.
    arrays = info.arrays.union(array_paths(info.paths).values())
    try:
        return other_object(path, arrays | _groups_of(arrays))
    except BF16CodecsError:  # damaged files may be replaced
        return ""
