"""The content of a folder in an object store: a store and its keys, or what a writer left there.

Only this module decides which keys may be removed.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from bf16codecs._base.arguments import for_caller
from bf16codecs._base.messages import one_line
from bf16codecs._base.paths import and_parents
from bf16codecs.errors import BF16CodecsError
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import RESERVED_ROOT
from bf16codecs.store.published.layout import PUBLISHED, is_published
from bf16codecs.store.remote.lease import ROOT, arrays_in_note, without_note
from bf16codecs.store.remote.object_folder import Found, ObjectFolder
from bf16codecs.store.zarr.metadata import DEFAULT_KEYS, OTHER_DIFFERENCES, OTHER_KEYS

__all__ = ["Content", "Paths", "found_at"]

_CHUNKS = {
    DEFAULT_KEYS: re.compile(r"c(\.[0-9]+)*"),
    OTHER_KEYS: re.compile(r"[0-9]+(\.[0-9]+)*"),
}


class Paths:
    """The arrays of a store, by which its keys are known; any store may have headers."""

    def __init__(self, arrays: Iterable[str]) -> None:
        self.arrays = frozenset(arrays)
        self._nodes = {node for path in self.arrays for node in and_parents(path)[:-1]}

    def kind(self, key: str) -> str:
        """Return `ROOT` for a document, the encoding for a chunk, "" for a key of another kind."""
        path, _, name = key.rpartition("/")
        is_reserved = f"{path}/".startswith(f"{RESERVED_ROOT}/")
        if name == ROOT:
            return ROOT if is_reserved or path in self._nodes else ""
        array = path.removesuffix(f"/{OTHER_DIFFERENCES}")
        if not (is_reserved or {path, array} & self.arrays):
            return ""
        if path != array:
            return OTHER_KEYS if _CHUNKS[DEFAULT_KEYS].fullmatch(name) else ""
        return next((each for each, keys in _CHUNKS.items() if keys.fullmatch(name)), "")


class Content(NamedTuple):
    """A store below an address, or what a writer left there."""

    root: Found | None
    is_store: bool
    paths: Paths
    #: Arrays that a dead writer may have left keys of.
    left: frozenset[str]
    keys: list[str]
    #: The encoding of chunks' keys that it does not have.
    free_encoding: str


def found_at(folder: ObjectFolder, overwrite: bool, is_run: bool) -> Content:
    """Look at what is there; raise FileExistsError if it may not be replaced."""
    root = folder.read(ROOT)
    keys = [key for key in folder.listed() if key != ROOT]
    if root is None and keys:
        raise _exists(folder, f"has {keys[0]!r:.200}, and is no store: choose another name")
    left = frozenset() if root is None else frozenset(arrays_in_note(root.data))
    document = None if root is None else without_note(root.data)
    if document is None:
        _check_keys(folder, keys, left)
        return Content(root, False, Paths(()), left, keys, DEFAULT_KEYS)
    info, used = _parsed(folder, document)
    if info.run is not None or is_run:
        what = "a run" if info.run is not None else "a store of a model"
        raise _exists(folder, f"is {what}: remove it first, or choose another name")
    paths = Paths({*info.arrays, *info.differences})
    _check_keys(folder, keys, paths.arrays | left)
    if not overwrite:
        option = for_caller("overwrite=True", "--overwrite")
        raise FileExistsError(errno.EEXIST, f"File exists ({option} replaces it)", folder.where)
    free_encoding = OTHER_KEYS if DEFAULT_KEYS in used else DEFAULT_KEYS
    return Content(root, True, paths, left, keys, free_encoding)


def _check_keys(folder: ObjectFolder, keys: Iterable[str], arrays: frozenset[str]) -> None:
    """Raise FileExistsError for a key that is not one of a store with these arrays."""
    paths = Paths(arrays)
    foreign = next((key for key in keys if not paths.kind(key)), "")
    if foreign:
        why = f"contains {foreign!r:.200}, which is not the store's: move it away first"
        raise _exists(folder, why)


def _parsed(folder: ObjectFolder, document: bytes) -> tuple[StoreInfo, set[str]]:
    """Return the contents of a store, and the encodings of its chunks' keys.

    Raises FileExistsError unless the store is one that this package writes, whose keys are known.
    """
    try:
        parsed = json.loads(document)
        if is_published(parsed["attributes"]):
            raise _exists(folder, PUBLISHED)
        info = StoreInfo.from_attributes(parsed["attributes"], folder.where)
        documents = parsed["consolidated_metadata"]["metadata"]
        stored = info.arrays - info.differences.keys()
        used = {_encoding_of(documents[path]) for path in stored}
    except (BF16CodecsError, ValueError, KeyError, TypeError, AttributeError) as e:
        why = f"is not a store of a model that can be replaced: {one_line(e)}"
        raise _exists(folder, f"{why}; choose another name") from e
    used |= {
        OTHER_KEYS if path.endswith(f"/{OTHER_DIFFERENCES}") else DEFAULT_KEYS
        for path in info.differences
    }
    if len(used) > 1:
        raise _exists(folder, "has keys of several encodings: choose another name")
    return info, used


def _encoding_of(document: Any) -> str:
    encoding = document["chunk_key_encoding"]
    name = encoding["name"]
    default = "/" if name == DEFAULT_KEYS else "."
    if name not in _CHUNKS or encoding.get("configuration", {}).get("separator", default) != ".":
        raise ValueError("another program has written its chunks")
    return str(name)


def _exists(folder: ObjectFolder, why: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, f"exists and {why}", folder.where)
