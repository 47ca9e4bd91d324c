"""Metadata documents of a Zarr store that its root has copies of: whether they are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bf16codecs._chunks.stored import KeySource
from bf16codecs._messages import damaged, one_line
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.zarr_documents import read_documents
from bf16codecs.store.zarr_metadata import read_json

if TYPE_CHECKING:
    from zarr.abc.store import Store

__all__ = ["copy_faults", "group_faults", "refused_arrays"]

_OWN_ATTRIBUTES = {ATTRIBUTES_KEY, "_ARRAY_DIMENSIONS"}
_GROUP_V2 = {".zgroup": {"zarr_format": 2}}


#: The path of an array or a group, empty for the root, and what is wrong with its metadata.
Fault = tuple[str, BF16CodecsError]


def refused_arrays(paths: Iterable[str], make: Callable[[str], object]) -> Iterator[Fault]:
    """Yield arrays that zarr does not make of their metadata, as `make` asks it to."""
    for path in paths:
        try:
            make(path)
        except BF16CodecsError as e:
            yield path, e


def copy_faults(reader: StoreReader, source: KeySource) -> Iterator[Fault]:
    """Yield what documents beside arrays and in groups have otherwise than the root's copies.

    This package reads the copies, and Zarr libraries that open an array by its own path read the
    documents. Attributes of others do not count, which may well be newer.

    Parameters
    ----------
    reader
        Of the store. Of a run, arrays may have a step more: an append is under way, or was killed.
    source
        Its keys.
    """
    where, zarr_format, is_run = reader.where, reader.zarr_format, reader.info.run is not None
    try:
        copies = _root_copies(where, source, zarr_format)
    except BF16CodecsError as e:
        yield "", e
        return
    for key, copy in copies.items():
        path, _, name = key.rpartition("/")
        what = reader.label(path) if path else where
        try:
            found = read_json(where, source, key)
        except BF16CodecsError as e:
            yield path, type(e)(f"{what}: {one_line(e).removeprefix(f'{where}: ')}")
            continue
        if found is None:
            yield path, StoreError(f"{what}: {damaged(f'{key} is missing')}")
        elif _own_part(name, found) not in _own_parts(name, copy, is_run):
            root = ".zmetadata" if zarr_format == 2 else "zarr.json"
            why = f"{key} is not what {root} says of it"
            yield path, StoreError(f"{what}: {damaged(why)}")


def group_faults(where: str, source: KeySource, store: Store) -> Iterator[Fault]:
    """Yield why zarr cannot open the root: its copies of groups have fields of their own."""
    import zarr
    from zarr.storage import StorePath

    groups = [read_json(where, source, "zarr.json")]
    if groups == [None]:
        entries = (read_json(where, source, ".zmetadata") or {}).get("metadata", {})
        groups = [copy for key, copy in entries.items() if key.endswith(".zgroup")]
    try:
        for group in groups:
            zarr.AsyncGroup.from_dict(StorePath(store), group or {})
    except MemoryError:
        raise
    except Exception as e:
        yield "", StoreError(f"{where}: {damaged(f'zarr cannot open it: {one_line(e)}')}")


def _root_copies(where: str, source: KeySource, zarr_format: int) -> dict[str, Any]:
    """Return what the root has copies of, by key; nothing if it has none."""
    root = read_json(where, source, ".zmetadata" if zarr_format == 2 else "zarr.json")
    if root is None or (zarr_format == 3 and not root.get("consolidated_metadata")):
        return {}
    attributes, nodes = read_documents(where, source, zarr_format)
    below = {f"{path}/{name}": own[name] for path, own in nodes.items() for name in own}
    return {**_GROUP_V2, ".zattrs": attributes, **below} if zarr_format == 2 else below


def _own_parts(name: str, document: dict[str, Any], is_run: bool) -> list[dict[str, Any]]:
    """Return what a document may be, without the attributes of others."""
    own, shape = _own_part(name, document), document.get("shape")
    if not (is_run and isinstance(shape, list) and shape and isinstance(shape[0], int)):
        return [own]
    return [own, {**own, "shape": [shape[0] + 1, *shape[1:]]}]


def _own_part(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without the attributes of others, and without copies of documents."""
    if name == ".zattrs":
        return {key: document[key] for key in _OWN_ATTRIBUTES & document.keys()}
    own = {key: document[key] for key in document.keys() - {"consolidated_metadata"}}
    attributes = own.get("attributes") or {}
    is_known = isinstance(attributes, dict)
    return {**own, "attributes": _own_part(".zattrs", attributes) if is_known else attributes}
