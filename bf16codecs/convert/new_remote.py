"""Stores in the making in object stores.

The root's document makes a store visible. Where it replaces another store, its chunks have keys of
another encoding, so both are there until the document is replaced.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.forks import make_lock
from bf16codecs._base.messages import one_line
from bf16codecs.convert.options import Options, StoreOptions
from bf16codecs.convert.remote_contents import Content, Paths, found_at
from bf16codecs.errors import BF16CodecsError, LeftoverWarning, StoreError
from bf16codecs.store.opening import Opening, with_base
from bf16codecs.store.paths import RESERVED_ROOT
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.remote.lease import ROOT, Lease, is_held, wait_for_death, without_note
from bf16codecs.store.remote.object_folder import ObjectFolder, Version
from bf16codecs.store.remote.object_sink import ObjectSink, open_unpublished
from bf16codecs.store.zarr.writer import ZarrWriter

__all__ = ["NewRemote", "has_store", "new_remote", "remove_remote"]

# Up to so many folders are listed one by one, rather than the whole store.
_FEW_PATHS = 4


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

    #: No path on the disk.
    path: Path | None = None

    def __init__(
        self, folder: ObjectFolder, lease: Lease, sink: ObjectSink, encoding: str, replaces: bool
    ) -> None:
        self.folder, self.lease, self.sink, self._encoding = folder, lease, sink, encoding
        #: Whether it replaces a store.
        self.replaces = replaces

    def writer(self, options: Options) -> ZarrWriter:
        """Return its writer."""
        choice, zarr_format = options.choice, options.zarr_format
        return _DeclaringWriter(self.lease, self.sink, choice, zarr_format, self._encoding)

    def declare(self, arrays: Iterable[str], base: str | None) -> None:
        """Announce the paths of all arrays, before other processes write chunks of them."""
        self.lease.declare(arrays, base)

    def leave_note(self) -> None:
        """Let the note stay after a failure: other processes may write keys for a while."""
        self.lease.leaves_keys = True

    def read(self, key: str, start: int, nbytes: int) -> bytes:
        """Return bytes of a key from an offset on, fewer at its end."""
        return self.folder.read_part(key, start, nbytes)

    def keys(self) -> Iterable[str]:
        """Return all keys that were written, except the root's document."""
        return self.folder.listed()

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
    old = found_at(folder, options.overwrite, is_run)
    if wait_for_death(folder, old.root):
        # Other processes of a job whose coordinator died may have gone on meanwhile.
        old = found_at(folder, options.overwrite, is_run)
    with _interrupt.shielded():
        lease = Lease(folder, old.root)
        try:
            sink = ObjectSink(folder, lease.token, old.is_store, lease)
            new = NewRemote(folder, lease, sink, old.free_encoding, old.is_store)
            with _removing(new, old), _interrupt.exposed():
                _remove_leftovers(new, old, old.keys)
                yield new
                _interrupt.check()
            with _removing(new, old):
                _remove_leftovers(new, old, _keys_below(folder, sink.removed))
                _remove_late(new, old)
                if old.is_store:
                    lease.declare(old.paths.arrays)  # whose keys may be left for a while
                lease.publish(sink.root)
            _finish(new, old)
            _interrupt.finish(url)
        finally:
            lease.close()


@contextmanager
def _removing(new: NewRemote, old: Content) -> Iterator[None]:
    """Remove what was written if the block fails, unless another process has taken over."""
    try:
        yield
    except BaseException as e:
        try:
            if not new.lease.is_lost:
                keys = [key for key in new.folder.listed() if key != ROOT]
                _remove_leftovers(new, old, keys)
        except (OSError, BF16CodecsError) as failure:
            if not new.lease.is_lost:
                _warn_of_leftovers(new, failure)
        if new.lease.is_lost and isinstance(e, BF16CodecsError):
            new.lease.check()  # what failed may be due to another writer's chunks
        raise


def remove_remote(
    url: str, options: Mapping[str, Any] | None, version: Version, is_dead: bool = False
) -> None:
    """Remove a store, or what a writer left: readers see it whole or not at all.

    Nothing happens if the root's document has another version by now. `is_dead` says that the
    writer is dead whose note it has. Raises FileExistsError if there is anything else;
    BlockingIOError if a process is writing it.
    """
    folder = ObjectFolder(url, options or {})
    content = found_at(folder, overwrite=True, is_run=False)
    if content.root is None or content.root.version != version:
        return
    if is_held(content.root) and not is_dead:
        raise BlockingIOError(f"{url}: another process is writing it")
    lease = Lease(folder, content.root)
    try:
        lease.declare(content.paths.arrays | content.left)
        lease.withdraw()
        lease.remove(content.keys)
    except BaseException:
        lease.leaves_keys = True
        raise
    finally:
        lease.close()


def _remove_leftovers(new: NewRemote, old: Content, keys: Iterable[str]) -> None:
    """Remove keys that this or a dead writer wrote, and no others: not those of the old store."""
    paths = Paths(old.paths.arrays | old.left | set(new.lease.arrays))

    def is_left(key: str) -> bool:
        kind = paths.kind(key)
        is_old = old.is_store and kind != old.free_encoding and old.paths.kind(key) != ""
        return kind != "" and not is_old

    new.lease.remove(filter(is_left, keys))


def _remove_late(new: NewRemote, old: Content) -> None:
    """Remove chunks that a writer which was given up has written since, of arrays of its own."""
    gone = Paths(old.left - old.paths.arrays - set(new.lease.arrays))
    if gone.arrays:
        keys = new.folder.listed()
        own = (key for key in keys if not key.startswith(f"{RESERVED_ROOT}/"))
        new.lease.remove(key for key in own if gone.kind(key) not in ("", ROOT))


def _keys_below(folder: ObjectFolder, paths: Collection[str]) -> list[str]:
    """Return the keys below some paths."""
    if len(paths) <= _FEW_PATHS:
        return [key for path in paths for key in folder.listed(path)]
    below = tuple(f"{path}/" for path in paths)
    return [key for key in folder.listed() if key.startswith(below)]


def _finish(new: NewRemote, old: Content) -> None:
    """Replace the documents of a replaced store, and remove the rest of it.

    The new store is there already: errors are warnings.
    """
    if not old.is_store:
        return
    try:
        for key, data in new.sink.late.items():
            new.lease.check()
            new.folder.write(key, data)
        paths = Paths(old.paths.arrays | old.left | set(new.lease.arrays))
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
