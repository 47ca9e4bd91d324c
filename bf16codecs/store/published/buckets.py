"""Published runs in object stores."""

from __future__ import annotations

from collections.abc import Iterable

from bf16codecs.errors import StoreError
from bf16codecs.store.published.layout import PublishedInfo
from bf16codecs.store.published.roots import (
    CHOOSE,
    PLANS,
    ROOT,
    STEPS,
    ReplacedError,
    Where,
    is_foreign,
    lists,
    read_root_of,
)
from bf16codecs.store.remote.object_folder import ConflictError, Found, ObjectFolder

__all__ = ["BucketPlace", "BucketSink"]


class BucketSink:
    """A folder in an object store, to which objects are added."""

    def __init__(self, where: Where) -> None:
        self._folder = ObjectFolder(str(where.target), where.options or {})

    def put(self, key: str, content: bytes) -> None:
        """Write an object that does not exist."""
        self._folder.create(key, content)

    def close(self) -> None:
        """Do nothing: no connection and no lock is held."""


class BucketPlace(BucketSink):
    """A folder in an object store, whose root is replaced by conditional requests."""

    def __init__(self, where: Where, advice: str) -> None:
        super().__init__(where)
        self.where, self._advice = where, advice
        self.info: PublishedInfo | None = None
        self.fault: StoreError | None = None
        #: Whether the root may be another one by a request of this process.
        self._is_open = False
        self.read_again()
        if self._root is None and is_foreign(self._folder.names()):
            raise StoreError(f"{where}: a folder with no published run: {CHOOSE}")

    def read_again(self) -> None:
        """Read the root again."""
        self._root: Found | None = self._folder.read(ROOT)
        read_root_of(self, None if self._root is None else self._root.data, self._advice)
        self._is_open = False

    def put(self, key: str, content: bytes) -> None:
        """Write an object that does not exist; see with a plan that conditions are heeded."""
        super().put(key, content)
        if key.startswith(PLANS):
            self._folder.check_creating(key, content)
            self._folder.check_replacing(key, content)

    def commit(self, info: PublishedInfo, document: bytes) -> None:
        """Replace the root, unless another process has."""
        self._is_open = True
        try:
            if self._root is None:
                version = self._folder.create(ROOT, document)
            else:
                version = self._folder.replace(ROOT, document, self._root.version)
        except ConflictError as e:  # perhaps since an earlier reply was lost
            raise ReplacedError.at(self.where) from e
        except PermissionError:
            self._is_open = False
            raise
        self._root, self.info, self._is_open = Found(document, version), info, False

    def may_list(self, key: str) -> bool:
        """Return False if the root that was read last lists no such step, and is still there."""
        return self._is_open or self.fault is not None or lists(self.info, key)

    def keys(self, is_thorough: bool) -> list[str]:
        """Return the keys of all plans, and of the folders of all steps; none unless thorough."""
        if not is_thorough:
            return []
        steps = {key.rpartition("/")[0] for key in self._folder.listed(STEPS)}
        return sorted(steps | set(self._folder.listed(PLANS)))

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects, and those in folders."""
        for key in keys:
            self._folder.remove([*self._folder.listed(key), key])
