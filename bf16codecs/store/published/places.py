"""Where a published run is written: a folder on a disk, or in an object store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from bf16codecs._base.interrupt import shielded
from bf16codecs._files.sync import sync, sync_files, sync_names
from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import ZARR_MARKERS
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.published.layout import PublishedInfo
from bf16codecs.store.published.roots import (
    CHOOSE,
    ROOT,
    STEPS,
    Place,
    Where,
    info_of_root,
    root_document,
)
from bf16codecs.store.zarr.folder import RunFolder

__all__ = ["opened_place"]

_NEW_ROOT = "zarr.json.new"
# Names in a folder that is not a published run yet, since a writer was killed.
_OURS = {STEPS, "plan", STEP_PATH, _NEW_ROOT}


def opened_place(where: Where, to_commit: bool = True, advice: str = CHOOSE) -> Place:
    """Open the place of a published run, to replace its root, or only to put packs there.

    Raises StoreError, with advice, if a store of another kind is there; BlockingIOError if another
    process is publishing to the same folder.
    """
    if isinstance(where.target, Path):
        return _FolderPlace(where, to_commit, advice)
    # Imported only for addresses: zarr, obstore.
    from bf16codecs.store.published.buckets import BucketPlace

    return BucketPlace(where, to_commit, advice)


class _FolderPlace:
    """A folder on a disk, which is locked from the opening on."""

    def __init__(self, where: Where, to_commit: bool, advice: str) -> None:
        assert isinstance(where.target, Path)
        self.where, self._root = where, where.target
        self._written: list[Path] = []
        self.info: PublishedInfo | None = None
        if to_commit:
            self._refuse_others()
        self._folder = RunFolder(self._root)
        if not to_commit:
            return
        self._folder.take()
        try:
            self._before = self._read()
            if self._before is not None:
                self.info = info_of_root(where, self._before, advice)
        except BaseException:
            self._folder.close()
            raise

    def _refuse_others(self) -> None:
        """Refuse a folder in which something else is."""
        names = set(os.listdir(self._root)) if self._root.is_dir() else set()
        if not names and os.path.lexists(self._root) and not self._root.is_dir():
            raise StoreError(f"{self._root}: a file, and no published run: {CHOOSE}")
        if ROOT not in names and names - _OURS:
            what = "a store of Zarr's format 2" if names & ZARR_MARKERS else "no published run"
            raise StoreError(f"{self._root}: a folder with {what}: {CHOOSE}")
        self._root.mkdir(parents=True, exist_ok=True)

    def _read(self) -> bytes | None:
        chunk = self._folder.find(ROOT)
        if chunk is None:
            return None
        with chunk:
            return chunk.read([(0, chunk.size)])[0].tobytes()

    def put(self, key: str, content: bytes) -> None:
        """Write a file that does not exist."""
        path = self._folder.write(key, content, os.O_EXCL)
        if self.where.durable:
            sync_files([path])
            sync_names(self._root, [path])

    def commit(self, info: PublishedInfo) -> None:
        """Replace the root, unless the folder was replaced."""
        self._folder.check()
        if self._read() != self._before:
            raise StoreError(f"{self._root}: another process has published to it meanwhile")
        document = root_document(info)
        self._folder.remove(_NEW_ROOT)
        new = self._folder.write(_NEW_ROOT, document, os.O_EXCL)
        with shielded():
            if self.where.durable:
                sync(new)
            os.replace(new, self._root / ROOT)
            if self.where.durable:
                sync(self._root)
        self.info, self._before = info, document

    def folders(self) -> list[str]:
        """Return the folders of all steps."""
        with suppress(FileNotFoundError):
            return [f"{STEPS}/{name}" for name in os.listdir(self._folder.path(STEPS))]
        return []

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files and folders."""
        for key in keys:
            self._folder.remove(key)

    def close(self) -> None:
        """Free the lock."""
        self._folder.close()
        with suppress(OSError):  # the lock was in it; another process may have it by now
            self._folder.path(STEP_PATH).rmdir()
