"""Stores in the making in object stores.

The root's document makes a store visible. Where it replaces another store, its chunks have keys of
another encoding, so both are there until the document is replaced.
"""

from __future__ import annotations

import errno
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.messages import one_line
from bf16codecs._base.threads import run_ahead
from bf16codecs.convert.foreign import foreign_key
from bf16codecs.convert.options import Options, StoreOptions
from bf16codecs.errors import BF16CodecsError, LeftoverWarning
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.opening import Opening, with_base
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.remote.claim import ROOT, Claim, without_note
from bf16codecs.store.remote.object_folder import PROBE, Found, ObjectFolder
from bf16codecs.store.remote.object_sink import ObjectSink, open_unpublished
from bf16codecs.store.writer import ModelWriter
from bf16codecs.store.zarr.metadata import DEFAULT_KEYS, OTHER_DIFFERENCES, OTHER_KEYS
from bf16codecs.store.zarr.writer import ZarrWriter

__all__ = ["NewObjects", "new_objects"]

_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+)*")


def _has_encoding(key: str, encoding: str) -> bool:
    """Return whether a key is that of a chunk in a store with this encoding."""
    folder, _, name = key.rpartition("/")
    is_difference = folder.endswith(f"/{OTHER_DIFFERENCES}")
    if encoding == OTHER_KEYS:
        return is_difference or _NUMBERS.fullmatch(name) is not None
    numbers = name.removeprefix("c.")
    is_default = name == "c" or (numbers != name and _NUMBERS.fullmatch(numbers) is not None)
    return is_default and not is_difference


class _Old(NamedTuple):
    """A store below an address, or what a writer left there."""

    root: Found | None
    is_store: bool
    keys: list[str]
    #: The encoding of chunks' keys that it does not have.
    free_encoding: str


class NewObjects:
    """A store in an object store."""

    def __init__(self, folder: ObjectFolder, sink: ObjectSink, encoding: str) -> None:
        self.folder, self.sink, self._encoding = folder, sink, encoding

    def writer(self, options: Options) -> ModelWriter:
        """Return its writer."""
        return ZarrWriter(self.sink, options.choice, options.zarr_format, self._encoding)

    def open(self, base: ModelReader | None) -> ModelReader:
        """Open it to verify it."""
        return with_base(open_unpublished(self.folder, self.sink.root), Opening(base=base))

    def stored_nbytes(self, written: int) -> int:
        """Return its size, which the writer has counted."""
        return written


@contextmanager
def new_objects(url: str, options: StoreOptions, replaces: bool = True) -> Iterator[NewObjects]:
    """Yield a store to write below an address; publish it at the end.

    It may replace another one only if `replaces`. Errors are those of `new_store`, and OSError if
    the server fails.
    """
    folder = ObjectFolder(url, options.target_options or {})
    with _interrupt.shielded():
        with _interrupt.exposed():
            old = _found(folder, options.overwrite)
            if old.is_store and not replaces:
                raise _exists(folder, "is not replaced by a run: remove it first")
            claim = Claim(folder, old.root)
        sink = ObjectSink(folder, claim.token, old.is_store, claim)
        try:
            with _interrupt.exposed():
                _remove_leftovers(folder, claim, old)
                yield NewObjects(folder, sink, old.free_encoding)
                _interrupt.check()
        except BaseException as e:
            _give_up(folder, claim, old)
            if isinstance(e, BF16CodecsError):
                claim.check()  # what failed may be due to another writer's chunks
            raise
        claim.publish(sink.root)
        _finish(folder, claim, sink, old)
        _interrupt.finish(url)


def _found(folder: ObjectFolder, overwrite: bool) -> _Old:
    """Look at what is there; raise FileExistsError if it may not be replaced."""
    root = folder.read(ROOT)
    keys = [key for key in folder.listed() if key != ROOT]
    others = [key for key in keys if not key.startswith(PROBE)]
    if root is None and others:
        raise _exists(folder, f"has {others[0]!r:.200}, and is no store: choose another name")
    document = None if root is None else without_note(root.data)
    if document is None:
        return _Old(root, False, keys, DEFAULT_KEYS)
    try:
        parsed = json.loads(document)
        info = StoreInfo.from_attributes(parsed["attributes"], folder.where)
        arrays = parsed.get("consolidated_metadata", {}).get("metadata", {}).values()
        used = {_encoding_of(array) for array in arrays if array["node_type"] == "array"}
        used |= {_encoding_of_difference(path) for path in info.differences}
    except (BF16CodecsError, ValueError, KeyError, TypeError, AttributeError) as e:
        why = f"is not a store of a model: choose another name ({one_line(e)})"
        raise _exists(folder, why) from e
    if info.run is not None:
        raise _exists(folder, "is a run: to replace it by one model, remove it first")
    if foreign := foreign_key(info, 3, others):
        why = f"contains {foreign!r:.200}, which is not the store's: move it away first"
        raise _exists(folder, why)
    free = OTHER_KEYS if DEFAULT_KEYS in used else DEFAULT_KEYS
    if free in used:
        raise _exists(folder, "has keys of several encodings: remove it, or choose another name")
    if not overwrite:
        option = for_caller("overwrite=True", "--overwrite")
        raise FileExistsError(errno.EEXIST, f"File exists ({option} replaces it)", folder.where)
    return _Old(root, True, keys, free)


def _exists(folder: ObjectFolder, why: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, f"exists and {why}", folder.where)


def _encoding_of(array: Any) -> str:
    return str(array["chunk_key_encoding"]["name"])


def _encoding_of_difference(path: str) -> str:
    return OTHER_KEYS if path.endswith(f"/{OTHER_DIFFERENCES}") else DEFAULT_KEYS


def _remove_leftovers(folder: ObjectFolder, claim: Claim, old: _Old) -> None:
    """Remove what a dead writer left: all keys, or of a store those that are not its own."""

    def is_left(key: str) -> bool:
        is_chunk = _has_encoding(key, old.free_encoding)
        return is_chunk or key.startswith(PROBE) or not old.is_store

    _remove(folder, claim, list(filter(is_left, old.keys)))


def _remove(folder: ObjectFolder, claim: Claim, keys: list[str]) -> None:
    if keys:
        claim.check()
        folder.remove(keys)


def _give_up(folder: ObjectFolder, claim: Claim, old: _Old) -> None:
    """Remove what was written, and then the note; warn if that fails."""
    claim.stop()
    try:
        if claim.is_held():
            keys = [key for key in folder.listed() if key != ROOT]
            _remove_leftovers(folder, claim, old._replace(keys=keys))
        claim.give_up()
    except (OSError, BF16CodecsError) as e:
        _warn_of_leftovers(folder, e)


def _finish(folder: ObjectFolder, claim: Claim, sink: ObjectSink, old: _Old) -> None:
    """Replace the documents of a replaced store, remove the rest of it, and end the claim.

    The new store is there already: errors are warnings.
    """
    try:
        jobs = (partial(folder.write, key, data) for key, data in sink.late.items())
        with closing(run_ahead(jobs, sink.concurrency)) as written:
            for _ in written:
                claim.check()
        if old.is_store:
            new = old.free_encoding
            gone = [k for k in old.keys if k not in sink.late and not _has_encoding(k, new)]
            _remove(folder, claim, gone)
        claim.end()
    except (OSError, BF16CodecsError) as e:
        _warn_of_leftovers(folder, e)


def _warn_of_leftovers(folder: ObjectFolder, error: Exception) -> None:
    text = f"{folder.where}: keys are left that the next writer removes: {one_line(error)}"
    warnings.warn(text, LeftoverWarning, stacklevel=4)
