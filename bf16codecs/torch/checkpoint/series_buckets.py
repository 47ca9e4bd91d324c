"""The folder of a series of checkpoints in an object store."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from bf16codecs.convert.foreign import foreign_key
from bf16codecs.convert.new_remote import remove_remote
from bf16codecs.convert.rebasing import rebase_store
from bf16codecs.store.bases import location_of
from bf16codecs.store.kinds import Kind, suffix_of
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.opening import Opening, open_either
from bf16codecs.store.remote import lease
from bf16codecs.store.remote.object_folder import Found, ObjectFolder, Version
from bf16codecs.store.remote.object_sink import UnpublishedStorage
from bf16codecs.store.remote.storage import RemoteStorage
from bf16codecs.store.zarr.metadata import NoGroupError, read_root
from bf16codecs.torch.checkpoint.series_folders import Attributes, attributes_in, forget_others

__all__ = ["SeriesBucket"]

# Root documents by address, with the attributes in them.
_known: dict[str, tuple[Found, Attributes]] = {}
# Notes without a store, whose writers may be dead: their versions, and when each was first seen.
_noted: dict[str, tuple[Version, float]] = {}


class SeriesBucket:
    """A folder of an object store; locations are addresses."""

    def __init__(self, target: str, options: Mapping[str, Any] | None) -> None:
        self.target, self.options = target, options
        self._address = os.path.dirname(target)
        self._folder(self._address)  # a package or credentials may be missing

    def _folder(self, location: str) -> ObjectFolder:
        return ObjectFolder(location, self.options or {})

    def may_look_at(self, location: str) -> bool:
        """Return whether an address is in the same bucket."""
        return location.split("/")[:3] == self.target.split("/")[:3]

    def locations(self) -> list[str]:
        """Return the addresses of all that is in the folder."""
        found = [f"{self._address}/{name}" for name in self._folder(self._address).names()]
        for known in (_known, _noted):
            forget_others(known, self._address, found)
        return found

    def attributes(self, location: str) -> Attributes:
        """Return the attributes of a model store."""
        if suffix_of(location)[1] in (Kind.HDF5, Kind.ZIP):
            with closing(open_either(location, Opening(self.options, with_base=False))) as reader:
                info = reader.info
                base = None if info.base is None else location_of(info.base, location)
                return Attributes(True, info.checkpoint is not None, base)
        folder, before = self._folder(location), _known.get(location)
        root = folder.read(lease.ROOT, known=None if before is None else before[0])
        if root is None:
            return self._attributes_of_format_2(folder, location)
        if before is not None and root is before[0]:
            return before[1]
        document = lease.without_note(root.data)
        if document is None:
            version, _ = _noted.get(location, (None, 0.0))
            if version != root.version:
                _noted[location] = root.version, time.monotonic()
            return attributes_in({}, location)
        _noted.pop(location, None)
        storage = UnpublishedStorage(folder, document)
        found = attributes_in(_ours(read_root(location, storage).attributes), location)
        _known[location] = root, found
        return found

    def _attributes_of_format_2(self, folder: ObjectFolder, location: str) -> Attributes:
        if folder.read(".zgroup") is None:
            return attributes_in({}, location)
        try:
            root = read_root(location, RemoteStorage(folder.as_zarr()))
        except NoGroupError:  # it was removed meanwhile
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location) from None
        return attributes_in(_ours(root.attributes), location)

    def is_folder(self, location: str) -> bool:
        """Return False: a folder without a store may be one that is being written."""
        return False

    def foreign_name(self, location: str) -> str:
        """Return the key of a user's object in a store; "" if there is none."""
        if suffix_of(location)[1] in (Kind.HDF5, Kind.ZIP):
            return ""
        with closing(open_either(location, Opening(self.options, with_base=False))) as reader:
            keys = self._folder(location).listed()
            return foreign_key(reader.info, reader.stored.zarr_format or 3, keys)

    def rebase(self, location: str, onto: str | None) -> None:
        """Rewrite a store on another base, or on none."""
        rebase_store(location, onto, storage_options=self.options)

    def remove(self, location: str) -> None:
        """Remove a store; no part of it is ever seen at its address."""
        remove_remote(location, self.options)

    def remove_leftovers(self) -> None:
        """Remove what writers left in the folder whose notes have not changed for long."""
        for location, (version, seen) in list(_noted.items()):
            is_old = time.monotonic() - seen > lease.DEAD_SECONDS
            if is_old and os.path.dirname(location) == self._address:
                remove_remote(location, self.options, dead=version)
                _noted.pop(location, None)


def _ours(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    found = attributes.get(ATTRIBUTES_KEY)
    return found if isinstance(found, Mapping) else {}
