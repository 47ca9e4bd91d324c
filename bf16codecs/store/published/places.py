"""Where a published run is written: a folder on a disk, or in an object store."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from bf16codecs._base.interrupt import shielded
from bf16codecs._files.folders import Folder
from bf16codecs._files.locks import LifeLock, take_lock
from bf16codecs._files.sync import make_folders, sync, sync_files, sync_names
from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import ZARR_MARKERS
from bf16codecs.store.published.layout import PublishedInfo, is_published
from bf16codecs.store.published.roots import (
    CHOOSE,
    LOCK,
    NEW_ROOT,
    PLANS,
    ROOT,
    STEPS,
    Place,
    ReplacedError,
    Sink,
    Where,
    is_foreign,
    lists,
    read_root_of,
)
from bf16codecs.store.zarr.folder import RunFolder

__all__ = ["opened_place", "opened_sink"]

# The lock is held as long as it takes to replace the root, and to flush it to the disk.
_PATIENCE_SECONDS, _WAIT_SECONDS = 60.0, 0.02


def opened_sink(where: Where) -> Sink:
    """Open the folder of a published run, to write packs in any process of a job."""
    if isinstance(where.target, Path):
        return _FolderSink(where.target, where.durable)
    # Imported only for addresses: zarr, obstore.
    from bf16codecs.store.published.buckets import BucketSink

    return BucketSink(where)


def opened_place(where: Where, advice: str = CHOOSE) -> Place:
    """Open the place of a published run, to replace its root.

    Raises StoreError, with advice, if a store of another kind is there.
    """
    if isinstance(where.target, Path):
        return _FolderPlace(where, where.target, advice)
    from bf16codecs.store.published.buckets import BucketPlace

    return BucketPlace(where, advice)


class _FolderSink:
    """A folder on a disk, to which files are added."""

    def __init__(self, root: Path, durable: bool) -> None:
        self._root, self._durable = root, durable
        self._folder = RunFolder(root)

    def put(self, key: str, content: bytes) -> None:
        """Write a file that does not exist.

        Raises ReplacedError if another process removes the folder of the key, which it does after
        it has published a later step.
        """
        try:
            path = self._folder.write(key, content, os.O_EXCL)
            if self._durable:
                sync_files([path])
                sync_names(self._root, [path])
        except FileNotFoundError as e:
            if not self._root.is_dir():
                raise
            raise ReplacedError.at(self._root) from e

    def close(self) -> None:
        """Close the folder."""
        self._folder.close()


class _FolderPlace(_FolderSink):
    """A folder on a disk, which is locked while the root is replaced."""

    def __init__(self, where: Where, root: Path, advice: str) -> None:
        self.where, self._advice = where, advice
        self.info: PublishedInfo | None = None
        self.fault: StoreError | None = None
        _refuse_others(root)
        self._is_new = not root.is_dir()
        if self._is_new:
            make_folders(root, where.durable)
        super().__init__(root, where.durable)
        self.read_again()

    def read_again(self) -> None:
        """Read the root again."""
        self._before = self._document()
        read_root_of(self, self._before, self._advice)

    def _document(self) -> bytes | None:
        found = self._folder.read(ROOT)
        return None if found is None else found.tobytes()

    def commit(self, info: PublishedInfo, document: bytes) -> None:
        """Replace the root, unless it or the folder was replaced."""
        with _locked(self._root):
            self._folder.check()
            if self._document() != self._before:
                raise ReplacedError.at(self._root)
            try:
                self._folder.remove(NEW_ROOT)
                new = self._folder.write(NEW_ROOT, document, os.O_EXCL)
                with shielded():
                    if self._durable:
                        sync(new)
                    os.replace(new, self._root / ROOT)
                    if self._durable:
                        sync(self._root)
            except BaseException:
                self._folder.remove(NEW_ROOT)
                raise
        self.info, self._before = info, document

    def may_list(self, key: str) -> bool:
        """Return False if the root lists no such step: nothing replaces it later."""
        try:
            self.read_again()
        except (StoreError, OSError):
            return True
        return self.fault is not None or lists(self.info, key)

    def keys(self, is_thorough: bool) -> list[str]:
        """Return the keys of all plans, and of the folders of all steps."""
        folders = [name for name in (STEPS, PLANS) if (self._root / name).is_dir()]
        return [
            f"{folder}/{name}"
            for folder in folders
            for name in os.listdir(self._folder.path(folder))
        ]

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files and folders; those for a new run as well, if none has begun in them."""
        with closing(RunFolder(self._root)) as folder:  # this place may be closed
            for key in keys:
                folder.remove(key)
        if not (self._root / ROOT).exists():
            own = [self._root] if self._is_new else []
            for path in (self._root / STEPS, self._root / PLANS, *own):
                with suppress(OSError):  # something else is in it
                    path.rmdir()


def _refuse_others(root: Path) -> None:
    """Refuse a folder in which something else is, or which is in a published run."""
    if os.path.lexists(root) and not root.is_dir():
        raise StoreError(f"{root}: a file, and no published run: {CHOOSE}")
    names = set(os.listdir(root)) if root.is_dir() else set()
    if ROOT in names:
        return
    if is_foreign(names):
        what = "a store of Zarr's format 2" if names & ZARR_MARKERS else "no published run"
        raise StoreError(f"{root}: a folder with {what}: {CHOOSE}")
    for above in root.parents:
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if is_published(json.loads((above / ROOT).read_bytes())["attributes"]):
                break
    else:
        return
    raise StoreError(f"{root}: in a published run, {above}: {CHOOSE}")


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Lock a folder; raise BlockingIOError if another process has it for too long."""
    end = time.monotonic() + _PATIENCE_SECONDS
    lock: LifeLock | None = None
    while lock is None:
        try:
            lock = take_lock(Folder(root, follow=True), LOCK, str(root))
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(_WAIT_SECONDS)
    try:
        yield
    finally:
        lock.remove()
