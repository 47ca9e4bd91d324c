"""Where a published run is written: a folder on a disk, or in an object store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bf16codecs._base.interrupt import shielded
from bf16codecs._files.folders import Folder
from bf16codecs._files.locks import LifeLock, take_lock
from bf16codecs._files.sync import make_folders, sync, sync_files, sync_names
from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import ZARR_MARKERS
from bf16codecs.store.published.layout import PublishedInfo
from bf16codecs.store.published.roots import (
    CHOOSE,
    PLANS,
    ROOT,
    STEPS,
    Place,
    ReplacedError,
    Where,
    read_root_of,
)
from bf16codecs.store.zarr.folder import RunFolder

__all__ = ["PackSink", "opened_place"]

#: A file in the folder that the process locks which replaces the root.
_LOCK = ".publishing"
_NEW_ROOT = "zarr.json.new"
# Names in a folder that is not a published run yet, since a writer was killed.
_OURS = {STEPS, PLANS, _LOCK, _NEW_ROOT}
# Whoever drops steps has the lock as long as it takes to replace the root.
_PATIENCE_SECONDS, _WAIT_SECONDS = 5.0, 0.02


def opened_place(where: Where, advice: str = CHOOSE) -> Place:
    """Open the place of a published run, to replace its root.

    Raises StoreError, with advice, if a store of another kind is there; BlockingIOError if another
    process is publishing to the same folder.
    """
    if isinstance(where.target, Path):
        return _FolderPlace(where, where.target, advice)
    # Imported only for addresses: zarr, obstore.
    from bf16codecs.store.published.buckets import BucketPlace

    return BucketPlace(where, advice)


class PackSink:
    """Takes packs, by keys that do not exist, in any process of a job."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._folder: Any = None
        if isinstance(where.target, Path):
            self._folder = RunFolder(where.target)
        else:
            from bf16codecs.store.remote.object_folder import ObjectFolder

            self._folder = ObjectFolder(where.target, where.options or {})

    def put(self, key: str, content: bytes) -> None:
        """Write a pack."""
        if isinstance(self._where.target, Path):
            _write_new(self._folder, key, content, self._where.durable)
        else:
            self._folder.create(key, content)

    def close(self) -> None:
        """Close files."""
        if isinstance(self._where.target, Path):
            self._folder.close()


def _write_new(folder: RunFolder, key: str, content: bytes, durable: bool) -> None:
    path = folder.write(key, content, os.O_EXCL)
    if durable:
        sync_files([path])
        sync_names(folder.root, [path])


class _FolderPlace:
    """A folder on a disk, which is locked from the opening on."""

    def __init__(self, where: Where, root: Path, advice: str) -> None:
        self.where, self._root, self._advice = where, root, advice
        self.info: PublishedInfo | None = None
        self.fault: StoreError | None = None
        self._refuse_others()
        if not root.is_dir():
            make_folders(root, where.durable)
        self._folder = RunFolder(root)
        self.read_again()  # so that no lock is made in a store of another kind
        self._lock = _taken_lock(root)
        with self._closed_on_error():
            self.read_again()

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _refuse_others(self) -> None:
        """Refuse a folder in which something else is."""
        if os.path.lexists(self._root) and not self._root.is_dir():
            raise StoreError(f"{self._root}: a file, and no published run: {CHOOSE}")
        names = set(os.listdir(self._root)) if self._root.is_dir() else set()
        if ROOT not in names and names - _OURS:
            what = "a store of Zarr's format 2" if names & ZARR_MARKERS else "no published run"
            raise StoreError(f"{self._root}: a folder with {what}: {CHOOSE}")

    def read_again(self) -> None:
        """Read the root again."""
        found = self._folder.read(ROOT)
        self._before = None if found is None else found.tobytes()
        read_root_of(self, self._before, self._advice)

    def put(self, key: str, content: bytes) -> None:
        """Write a file that does not exist."""
        _write_new(self._folder, key, content, self.where.durable)

    def commit(self, info: PublishedInfo, document: bytes) -> None:
        """Replace the root, unless the folder was replaced."""
        self._folder.check()
        found = self._folder.read(ROOT)
        if (None if found is None else found.tobytes()) != self._before:
            raise ReplacedError(f"{self._root}: another process has published to it meanwhile")
        self._folder.remove(_NEW_ROOT)
        new = self._folder.write(_NEW_ROOT, document, os.O_EXCL)
        with shielded():
            if self.where.durable:
                sync(new)
            os.replace(new, self._root / ROOT)
            if self.where.durable:
                sync(self._root)
        self.info, self._before = info, document

    def keys(self, is_thorough: bool) -> list[str]:
        """Return the keys of all plans, and of the folders of all steps."""
        folders = [name for name in (STEPS, PLANS) if (self._root / name).is_dir()]
        return [
            f"{folder}/{name}"
            for folder in folders
            for name in os.listdir(self._folder.path(folder))
        ]

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files and folders."""
        folder = RunFolder(self._root)  # this place may be closed
        for key in keys:
            folder.remove(key)

    def close(self) -> None:
        """Free the lock."""
        self._lock.remove()
        self._folder.close()


def _taken_lock(root: Path) -> LifeLock:
    """Lock a folder; wait for a while if another process has it."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return take_lock(Folder(root, follow=True), _LOCK, str(root))
        except BlockingIOError:
            if time.monotonic() > end:
                raise
        time.sleep(_WAIT_SECONDS)
