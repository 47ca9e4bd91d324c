"""Published runs in object stores."""

from __future__ import annotations

from collections.abc import Iterable

from bf16codecs.errors import StoreError
from bf16codecs.store.published.layout import PublishedInfo
from bf16codecs.store.published.roots import (
    ROOT,
    STEPS,
    Where,
    info_of_root,
    root_document,
)
from bf16codecs.store.remote.object_folder import ConflictError, Found, ObjectFolder

__all__ = ["BucketPlace"]


class BucketPlace:
    """A folder in an object store, whose root is replaced by conditional requests."""

    def __init__(self, where: Where, to_commit: bool, advice: str) -> None:
        assert isinstance(where.target, str)
        self.where = where
        self._folder = ObjectFolder(where.target, where.options or {})
        self._root: Found | None = None
        self.info: PublishedInfo | None = None
        if to_commit:
            self._root = self._folder.read(ROOT)
        if self._root is not None:
            self.info = info_of_root(where, self._root.data, advice)

    def put(self, key: str, content: bytes) -> None:
        """Write an object that does not exist."""
        self._folder.create(key, content)

    def commit(self, info: PublishedInfo) -> None:
        """Replace the root, unless another process has."""
        document = root_document(info)
        try:
            if self._root is None:
                self._folder.create(ROOT, document)
                self._folder.check_creating(ROOT, document)
                self._folder.check_replacing(ROOT, document)
                self._root = self._folder.read(ROOT)
            else:
                version = self._folder.replace(ROOT, document, self._root.version)
                self._root = Found(document, version)
        except ConflictError as e:
            raise StoreError(
                f"{self.where}: another process has published to it meanwhile: {e}"
            ) from e
        self.info = info

    def folders(self) -> list[str]:
        """Return the folders of all steps."""
        keys = self._folder.listed(STEPS)
        return sorted({key.rpartition("/")[0] for key in keys})

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects, and those in folders."""
        for key in keys:
            self._folder.remove([*self._folder.listed(key), key])

    def close(self) -> None:
        """Do nothing: there is no lock."""
