"""Looks at the root of a published run again and again, at little cost while it is the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

from bf16codecs._arrays.storage import FolderStorage, KeyStorage
from bf16codecs._base.messages import named_errors
from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import (
    HUB_SCHEME,
    OBJECT_SCHEMES,
    address_scheme,
    options_of,
    path_of,
    plain_address,
)
from bf16codecs.store.published.roots import ROOT, is_foreign

__all__ = ["Watched", "watched"]

# How names begin that rsync and tools of object stores give to files until these are whole.
_COPIES = (".", f"{ROOT}.")


class Watched(Protocol):
    """A published run, or the place of one, that is looked at."""

    def look(self) -> bytes | None:
        """Return the root's document, the same object while it is the same; None without one."""

    def refuse_others(self) -> None:
        """Raise StoreError if something else than a run is there, as far as servers tell."""

    def was_replaced(self) -> bool:
        """Tell whether what `storage` opened is not what is there now."""

    def storage(self) -> KeyStorage:
        """Open the storage of its packs."""


def watched(path: str, options: Mapping[str, Any] | None) -> Watched:
    """Return what looks at a path or an address.

    Raises StoreError if addresses of this kind cannot be followed.
    """
    given, local = options_of(path, options), path_of(path)
    if local is not None:
        return _WatchedFolder(Path(local))
    url = plain_address(path).rstrip("/")
    scheme = address_scheme(url)
    if scheme == HUB_SCHEME:
        raise StoreError(f"{path}: on a hub, a run is opened at one commit, and cannot be followed")
    if scheme in OBJECT_SCHEMES:
        return _WatchedBucket(url, given)
    return _WatchedAddress(url, given)


class _WatchedFolder:
    """A folder on a disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: FolderStorage | None = None
        self._seen: tuple[tuple[int, ...], bytes] | None = None

    def look(self) -> bytes | None:
        """Read the root again if its file is another one."""
        try:
            status = os.stat(self._path / ROOT)
            state = status.st_ino, status.st_mtime_ns, status.st_size
            if self._seen is None or self._seen[0] != state:
                with closing(FolderStorage(self._path)) as folder:
                    found = folder.read(ROOT)
                self._seen = None if found is None else (state, found.tobytes())
        except FileNotFoundError:
            return None
        except NotADirectoryError as e:
            raise StoreError(f"{self._path}: a file, and no published run") from e
        return None if self._seen is None else self._seen[1]

    def refuse_others(self) -> None:
        """Raise StoreError if other files are there than a run's, or those of a copy under way."""
        with suppress(FileNotFoundError):
            names = [name for name in os.listdir(self._path) if not name.startswith(_COPIES)]
            if is_foreign(names):
                raise StoreError(f"{self._path}: a folder with no published run")

    def was_replaced(self) -> bool:
        """Tell whether another folder has the path of the one that was opened."""
        return self._opened is not None and not self._opened.is_current()

    def storage(self) -> KeyStorage:
        """Open the folder."""
        self._opened = FolderStorage(self._path)
        return self._opened


class _WatchedAddress:
    """An address: at a web server, an unchanged root is not sent again."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        from bf16codecs.store.remote.addresses import remote_store
        from bf16codecs.store.remote.storage import RemoteStorage

        self._url, self._store = url, remote_store(url, options)
        self._storage = RemoteStorage(self._store)
        self._seen: tuple[str, bytes] | None = None

    def look(self) -> bytes | None:
        """Ask for the root, unless it is the one that was seen."""
        from bf16codecs.store.remote.conditional import get_if_changed

        with named_errors(f"{self._url}/{ROOT}", OSError):
            self._seen = get_if_changed(self._store, ROOT, self._seen)
        return None if self._seen is None else self._seen[1]

    def refuse_others(self) -> None:
        """Do nothing: web servers list no files."""

    def was_replaced(self) -> bool:
        """Return False: nothing is held open."""
        return False

    def storage(self) -> KeyStorage:
        """Return the storage at the address."""
        return self._storage


class _WatchedBucket:
    """A folder in an object store."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        from bf16codecs.store.remote.object_folder import ObjectFolder

        self._url, self._options = url, options
        self._folder = ObjectFolder(url, options)
        self._seen: Any = None

    def look(self) -> bytes | None:
        """Ask for the root, unless it is the one that was seen."""
        self._seen = self._folder.read(ROOT, known=self._seen)
        return None if self._seen is None else self._seen.data

    def refuse_others(self) -> None:
        """Raise StoreError if other objects are there."""
        if is_foreign(self._folder.names()):
            raise StoreError(f"{self._url}: a folder with no published run")

    def was_replaced(self) -> bool:
        """Return False: nothing is held open."""
        return False

    def storage(self) -> KeyStorage:
        """Open the storage at the address."""
        from bf16codecs.store.remote.addresses import remote_store
        from bf16codecs.store.remote.storage import RemoteStorage

        return RemoteStorage(remote_store(self._url, self._options))
