"""The folder of a series of checkpoints in an object store."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

from bf16codecs._base.messages import damaged, one_line
from bf16codecs._base.threads import run_ahead
from bf16codecs.convert.foreign import foreign_key
from bf16codecs.convert.new_remote import remove_remote
from bf16codecs.convert.rebasing import rebase_store
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.bases import identity, location_of
from bf16codecs.store.kinds import Kind, suffix_of
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.opening import Opening, open_either
from bf16codecs.store.remote import lease
from bf16codecs.store.remote.object_folder import Found, ObjectFolder, Version
from bf16codecs.torch.checkpoint.series_folders import Attributes, attributes_in, forget_others

__all__ = ["SeriesBucket"]

Result = TypeVar("Result")

# A request takes tens of milliseconds, and a folder may have a thousand checkpoints.
_REQUESTS = 16
# Versions of root documents by address, with the attributes in them.
_known: dict[str, tuple[Version, Attributes]] = {}
# Versions of root documents with a writer's note, and when each was first seen.
_noted: dict[str, tuple[Version, float]] = {}


class SeriesBucket:
    """A folder of an object store; locations are addresses."""

    def __init__(self, target: str, options: Mapping[str, Any] | None) -> None:
        self.target, self.options = target, options
        self._address = os.path.dirname(target)
        self._folder = ObjectFolder(self._address, options or {})

    def each(self, work: Callable[[str], Result], locations: Iterable[str]) -> list[Result]:
        """Call a function for each of some locations, several at a time."""
        jobs = (partial(work, location) for location in locations)
        with closing(run_ahead(jobs, _REQUESTS)) as results:
            return list(results)

    def may_look_at(self, location: str) -> bool:
        """Return whether an address is in the same bucket."""
        return location.split("/")[:3] == self.target.split("/")[:3]

    def locations(self) -> list[str]:
        """Return the addresses of the folders, and of stores in ZIP files, in the folder."""
        names = [n for n in self._folder.names() if n.endswith("/") or _is_zip(n)]
        found = [f"{self._address}/{name.rstrip('/')}" for name in names]
        for known in (_known, _noted):
            forget_others(known, self._address, found)
        return found

    def _key(self, location: str, key: str) -> tuple[ObjectFolder, str]:
        """Return a folder, and the key in it of a key below a location.

        A name in the folder may have characters that mean something else in an address.
        """
        if os.path.dirname(location) == self._address:
            return self._folder, f"{os.path.basename(location)}/{key}"
        return ObjectFolder(location, self.options or {}), key

    def attributes(self, location: str) -> Attributes:
        """Return the attributes of a model store, or of one that is being written."""
        if _is_zip(location):
            return self._attributes_of_file(location)
        known = _known.get(location)
        folder, key = self._key(location, lease.ROOT)
        root = folder.read(key, known=None if known is None else Found(b"", known[0]))
        if root is None:
            return self._attributes_of_format_2(location)
        if known is not None and root.version == known[0]:
            return known[1]
        note = lease.note_of(root.data)
        if note is None:
            _noted.pop(location, None)
        elif _noted.get(location, (None,))[0] != root.version:
            _noted[location] = root.version, time.monotonic()
        document = lease.without_note(root.data)
        if document is None:
            _known.pop(location, None)
            base = (note or {}).get("base")
            if not isinstance(base, str):
                return Attributes(False, False, None)
            # Whoever writes it needs its base.
            return Attributes(True, False, identity(base))
        found = _attributes(document, location)
        _known[location] = root.version, found
        return found

    def _attributes_of_file(self, location: str) -> Attributes:
        try:
            with closing(open_either(location, Opening(self.options, with_base=False))) as reader:
                info = reader.info
                base = None if info.base is None else identity(location_of(info.base, location))
                return Attributes(True, info.checkpoint is not None, base)
        except BF16CodecsError:
            if location.endswith(".zarr.zip"):
                raise
            return attributes_in({}, location)  # of another program

    def _attributes_of_format_2(self, location: str) -> Attributes:
        folder, key = self._key(location, ".zattrs")
        found = folder.read(key)
        return _attributes(
            b'{"attributes":%s}' % (b"{}" if found is None else found.data), location
        )

    def has_lost_store(self, location: str) -> bool:
        """Return False: a folder without a store may be one that is being written."""
        return False

    def foreign_name(self, location: str) -> str:
        """Return the key of a user's object in a store; "" if there is none."""
        if _is_zip(location):
            return ""
        with closing(open_either(location, Opening(self.options, with_base=False))) as reader:
            keys = ObjectFolder(location, self.options or {}).listed()
            return foreign_key(reader.info, reader.stored.zarr_format or 3, keys)

    def rebase(self, location: str, onto: str | None) -> None:
        """Rewrite a store on another base, or on none."""
        rebase_store(location, onto, storage_options=self.options)

    def remove(self, location: str) -> None:
        """Remove a store whose attributes were read; nothing if it was replaced since."""
        if location in _known:
            version, _ = _known[location]
            remove_remote(location, self.options, version, self._is_dead(location, version))

    def _is_dead(self, location: str, version: Version) -> bool:
        """Return whether a root document has the note of a writer that is certainly dead."""
        noted, seen = _noted.get(location, (None, 0.0))
        return noted == version and time.monotonic() - seen > lease.DEAD_SECONDS

    def leftovers(self) -> list[str]:
        """Return where a writer has died that has not made a store."""
        return [
            location
            for location, (version, _) in list(_noted.items())
            if os.path.dirname(location) == self._address
            and location not in _known
            and self._is_dead(location, version)
        ]

    def remove_leftovers(self, location: str) -> None:
        """Remove what a dead writer left."""
        version, _ = _noted[location]
        remove_remote(location, self.options, version, is_dead=True)
        _noted.pop(location, None)


def _is_zip(name: str) -> bool:
    return suffix_of(name)[1] is Kind.ZIP


def _attributes(document: bytes, location: str) -> Attributes:
    """Return the attributes in a root's document, or in one like it."""
    try:
        found = json.loads(document)
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{location}: {damaged(f'its root is not JSON: {one_line(e)}')}") from e
    for name in ("attributes", ATTRIBUTES_KEY):
        found = found.get(name) if isinstance(found, dict) else None
    return attributes_in(found if isinstance(found, dict) else {}, location)
