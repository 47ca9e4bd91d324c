"""Comparison of metadata documents of a Zarr store with the copies in its root."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from bf16codecs._arrays.storage import KeyStorage
from bf16codecs._base.messages import damaged, one_line
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.arrays import Fault, StoredArrays
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.zarr.documents import parse_copies
from bf16codecs.store.zarr.metadata import COPIES, Root, read_json

if TYPE_CHECKING:
    from zarr.abc.store import Store

__all__ = ["copy_faults", "root_faults"]

_OUR_ATTRIBUTES = {ATTRIBUTES_KEY, "_ARRAY_DIMENSIONS"}
_GROUP_V2 = {".zgroup": {"zarr_format": 2}}


def copy_faults(
    stored: StoredArrays, root: Root, storage: KeyStorage, store: Store, paths: Collection[str]
) -> Iterator[Fault]:
    """Yield faults of documents in groups and beside arrays that differ from the root's copies.

    Each comes with the path of its array or group, which is empty for the root. `paths` are the
    model's arrays. The groups on the way to them are checked as well.

    This package reads the copies, and Zarr libraries that open an array by its path read the
    documents. Attributes of other software do not count: they may be newer. In a run, arrays may
    have a step more, and the root of format 2 other attributes: an append is under way, or was
    killed.
    """
    where, run = stored.where, stored.info.run
    growing = () if run is None else {*run.arrays, STEP_PATH}
    known = {"", *paths, *(path[:at] for path in paths for at in _slashes(path))}
    try:
        copies = _root_copies(where, root)
    except BF16CodecsError as e:
        yield "", e
        return
    for key, copy in copies.items():
        path, _, name = key.rpartition("/")
        if path not in known:
            continue
        what = stored.label(path) if path else where
        try:
            found = read_json(where, storage, key)
        except BF16CodecsError as e:
            yield path, type(e)(f"{what}: {one_line(e).removeprefix(f'{where}: ')}")
            continue
        document, other = _our_part(name, found or {}), _our_part(name, copy)
        if found is None and (name != ".zattrs" or other):
            yield path, StoreError(f"{what}: {damaged(f'{key} is missing')}")
        elif not path and run is not None:
            continue
        elif differing := _differing(document, other, path in growing, store):
            where_else = f"its copy in the root's {COPIES[root.zarr_format]}"
            why = f"{key} has another {', '.join(differing)} than {where_else}"
            yield path, StoreError(f"{what}: {damaged(why)}")


def root_faults(where: str, root: Root, store: Store) -> Iterator[Fault]:
    """Yield why zarr cannot open the root: its copies of groups have unknown keys."""
    import zarr
    from zarr.storage import StorePath

    if root.zarr_format == 2:
        groups = [copy for key, copy in root.copies.get("metadata", {}).items() if _is_group(key)]
    else:
        groups = [_without_arrays(root.copies)]
    try:
        for group in groups:
            zarr.AsyncGroup.from_dict(StorePath(store), group)
    except MemoryError:
        raise
    except Exception as e:
        yield "", StoreError(f"{where}: {damaged(f'zarr cannot open it: {one_line(e)}')}")


def _slashes(path: str) -> Iterator[int]:
    return (at for at, sign in enumerate(path) if sign == "/")


def _is_group(key: str) -> bool:
    return key.rpartition("/")[2] == ".zgroup"


def _without_arrays(root: dict[str, Any]) -> dict[str, Any]:
    """Return a root of format 3 without copies of arrays, which `refused_arrays` looks at."""
    consolidated = root.get("consolidated_metadata")
    if not consolidated:
        return root
    nodes = consolidated["metadata"].items()
    groups = {path: node for path, node in nodes if node["node_type"] == "group"}
    return {**root, "consolidated_metadata": {**consolidated, "metadata": groups}}


def _root_copies(where: str, root: Root) -> dict[str, Any]:
    """Return the documents that the root has copies of, by key; none if it has none."""
    if not root.copies or (root.zarr_format == 3 and not root.copies.get("consolidated_metadata")):
        return {}
    attributes, nodes = parse_copies(where, root.zarr_format, root.copies)
    below = {f"{path}/{name}": node[name] for path, node in nodes.items() for name in node}
    return {**_GROUP_V2, ".zattrs": attributes, **below} if root.zarr_format == 2 else below


def _differing(
    document: dict[str, Any], copy: dict[str, Any], may_be_longer: bool, store: Store
) -> list[str]:
    """Return the keys in which two documents differ, and mean something else."""
    if may_be_longer and _is_longer(document.get("shape"), copy.get("shape")):
        document = {**document, "shape": copy["shape"]}
    if document != copy and "shape" in document:
        document, copy = _explicit(document, store), _explicit(copy, store)
    keys = document.keys() | copy.keys()
    return sorted(key for key in keys if document.get(key) != copy.get(key))


def _is_longer(shape: Any, than: Any) -> bool:
    """Return whether an array has one step more than another, and otherwise the same shape."""
    is_shape = isinstance(than, list) and bool(than) and isinstance(than[0], int)
    return is_shape and bool(shape == [than[0] + 1, *than[1:]])


def _explicit(document: dict[str, Any], store: Store) -> dict[str, Any]:
    """Return an array's metadata as zarr writes them: with all optional keys."""
    import zarr
    from zarr.storage import StorePath

    try:
        return dict(zarr.Array.from_dict(StorePath(store), document).metadata.to_dict())
    except MemoryError:
        raise
    except Exception:
        return document


def _our_part(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without attributes of other software, and copies of documents."""
    if name == ".zattrs":
        return {key: document[key] for key in _OUR_ATTRIBUTES & document.keys()}
    rest = {key: document[key] for key in document.keys() - {"consolidated_metadata"}}
    attributes = rest.get("attributes") or {}
    is_known = isinstance(attributes, dict)
    return {**rest, "attributes": _our_part(".zattrs", attributes) if is_known else attributes}
