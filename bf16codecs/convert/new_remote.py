"""Stores in the making in object stores.

The root's document makes a store visible. Where it replaces another store, its chunks have keys of
another encoding, so both are there until the document is replaced.
"""

from __future__ import annotations

import errno
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.forks import make_lock
from bf16codecs._base.messages import one_line
from bf16codecs._base.paths import and_parents
from bf16codecs.convert.options import Options, StoreOptions
from bf16codecs.errors import BF16CodecsError, LeftoverWarning, StoreError
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.opening import Opening, with_base
from bf16codecs.store.paths import RESERVED_ROOT
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.remote.lease import (
    ROOT,
    Lease,
    arrays_in_note,
    wait_for_death,
    without_note,
)
from bf16codecs.store.remote.object_folder import Found, ObjectFolder
from bf16codecs.store.remote.object_sink import ObjectSink, open_unpublished
from bf16codecs.store.writer import ModelWriter
from bf16codecs.store.zarr.metadata import DEFAULT_KEYS, OTHER_DIFFERENCES, OTHER_KEYS
from bf16codecs.store.zarr.writer import ZarrWriter

__all__ = ["NewRemote", "has_store", "new_remote"]

_CHUNKS = {
    DEFAULT_KEYS: re.compile(r"c(\.[0-9]+)*"),
    OTHER_KEYS: re.compile(r"[0-9]+(\.[0-9]+)*"),
}


class _Paths:
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


class _Old(NamedTuple):
    """A store below an address, or what a writer left there."""

    root: Found | None
    is_store: bool
    paths: _Paths
    #: Arrays that a dead writer may have left keys of.
    left: frozenset[str]
    keys: list[str]
    #: The encoding of chunks' keys that it does not have.
    free_encoding: str


class _DeclaringWriter(ZarrWriter):
    """Declares all arrays of tensors before the first chunk of any array is written."""

    def __init__(self, lease: Lease, sink: ObjectSink, *options: Any) -> None:
        super().__init__(sink, *options)
        self._lease, self._lock = lease, make_lock()
        self._undeclared: list[str] = []

    def create(self, array: ArrayPlan) -> None:
        """Prepare an array."""
        super().create(array)
        if not array.path.startswith(f"{RESERVED_ROOT}/"):
            self._undeclared.append(array.path)

    def _declare(self) -> None:
        with self._lock:
            if self._undeclared:
                self._lease.declare(self._undeclared)
                self._undeclared = []

    def write(self, piece: Piece, chunk: Bytes, base: Bytes | None = None) -> int:
        """Encode and write a whole chunk, or its difference to `base`; return its stored size."""
        self._declare()
        return super().write(piece, chunk, base)


class NewRemote:
    """A store in an object store."""

    def __init__(self, folder: ObjectFolder, lease: Lease, sink: ObjectSink, encoding: str) -> None:
        self.folder, self.lease, self.sink, self._encoding = folder, lease, sink, encoding

    def writer(self, options: Options) -> ModelWriter:
        """Return its writer."""
        choice, zarr_format = options.choice, options.zarr_format
        return _DeclaringWriter(self.lease, self.sink, choice, zarr_format, self._encoding)

    def open(self, base: ModelReader | None) -> ModelReader:
        """Open it to verify it."""
        return with_base(open_unpublished(self.folder, self.sink.root), Opening(base=base))

    def stored_nbytes(self, written: int) -> int:
        """Return its size, which the writer has counted."""
        return written


def has_store(url: str, options: Mapping[str, Any] | None) -> bool:
    """Return whether a complete store, or another Zarr group, is at an address."""
    root = ObjectFolder(url, options or {}).read(ROOT)
    return root is not None and without_note(root.data) is not None


@contextmanager
def new_remote(url: str, options: StoreOptions, is_run: bool = False) -> Iterator[NewRemote]:
    """Yield a store to write below an address; publish it at the end.

    One of a run replaces no other. Errors are those of `new_store`, and OSError if the server
    fails.
    """
    folder = ObjectFolder(url, options.target_options or {})
    old = _found(folder, options.overwrite, is_run)
    wait_for_death(folder, old.root)
    with _interrupt.shielded():
        lease = Lease(folder, old.root)
        try:
            sink = ObjectSink(folder, lease.token, old.is_store, lease)
            new = NewRemote(folder, lease, sink, old.free_encoding)
            with _removing(new, old), _interrupt.exposed():
                _remove_leftovers(new, old, old.keys)
                yield new
                _interrupt.check()
            with _removing(new, old):
                if old.is_store:
                    lease.declare(old.paths.arrays)  # whose keys may be left for a while
                lease.publish(sink.root)
            _finish(new, old)
            _interrupt.finish(url)
        finally:
            lease.close()


@contextmanager
def _removing(new: NewRemote, old: _Old) -> Iterator[None]:
    """Remove what was written if the block fails, unless another process has taken over."""
    try:
        yield
    except BaseException as e:
        try:
            keys = [key for key in new.folder.listed() if key != ROOT]
            _remove_leftovers(new, old, keys)
        except (OSError, BF16CodecsError) as failure:
            if not new.lease.is_lost:
                _warn_of_leftovers(new, failure)
        if new.lease.is_lost and isinstance(e, BF16CodecsError):
            new.lease.check()  # what failed may be due to another writer's chunks
        raise


def _found(folder: ObjectFolder, overwrite: bool, is_run: bool) -> _Old:
    """Look at what is there; raise FileExistsError if it may not be replaced."""
    root = folder.read(ROOT)
    keys = [key for key in folder.listed() if key != ROOT]
    if root is None and keys:
        raise _exists(folder, f"has {keys[0]!r:.200}, and is no store: choose another name")
    left = frozenset() if root is None else frozenset(arrays_in_note(root.data))
    document = None if root is None else without_note(root.data)
    if document is None:
        _check_keys(folder, keys, left)
        return _Old(root, False, _Paths(()), left, keys, DEFAULT_KEYS)
    info, used = _parsed(folder, document)
    if info.run is not None or is_run:
        what = "a run" if info.run is not None else "a store of a model"
        raise _exists(folder, f"is {what}: remove it first, or choose another name")
    paths = _Paths({*info.arrays, *info.differences})
    _check_keys(folder, keys, paths.arrays | left)
    if not overwrite:
        option = for_caller("overwrite=True", "--overwrite")
        raise FileExistsError(errno.EEXIST, f"File exists ({option} replaces it)", folder.where)
    return _Old(root, True, paths, left, keys, OTHER_KEYS if DEFAULT_KEYS in used else DEFAULT_KEYS)


def _check_keys(folder: ObjectFolder, keys: Iterable[str], arrays: frozenset[str]) -> None:
    """Raise FileExistsError for a key that is not one of a store with these arrays."""
    paths = _Paths(arrays)
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


def _remove_leftovers(new: NewRemote, old: _Old, keys: Iterable[str]) -> None:
    """Remove keys that this or a dead writer wrote, and no others: not those of the old store."""
    paths = _Paths(old.paths.arrays | old.left | set(new.lease.arrays))

    def is_left(key: str) -> bool:
        kind = paths.kind(key)
        is_old = old.is_store and kind != old.free_encoding and old.paths.kind(key) != ""
        return kind != "" and not is_old

    new.lease.remove(filter(is_left, keys))


def _finish(new: NewRemote, old: _Old) -> None:
    """Replace the documents of a replaced store, and remove the rest of it.

    The new store is there already: errors are warnings.
    """
    if not old.is_store:
        return
    try:
        for key, data in new.sink.late.items():
            new.lease.check()
            new.folder.write(key, data)
        paths = _Paths(old.paths.arrays | old.left | set(new.lease.arrays))
        new.lease.remove(
            key
            for key in old.keys
            if key not in new.sink.late and paths.kind(key) != old.free_encoding
        )
    except (OSError, StoreError) as e:
        _warn_of_leftovers(new, e)


def _warn_of_leftovers(new: NewRemote, error: Exception) -> None:
    new.lease.leaves_keys = True
    where = new.folder.where
    text = f"{where}: objects are left that the next writer removes: {one_line(error)}"
    warnings.warn(text, LeftoverWarning, stacklevel=4)
