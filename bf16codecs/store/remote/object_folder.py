"""Folders of object stores, whose keys are written under conditions.

There, nothing is renamed. But an object appears whole or not at all, and a request can ask that the
object does not exist yet, or is still the one that was read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    NotFoundError,
    NotModifiedError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from zarr.storage import ObjectStore

from bf16codecs._base.limits import MAX_METADATA_BYTES, check_metadata
from bf16codecs._base.messages import named_errors, one_line
from bf16codecs.errors import StoreError
from bf16codecs.store.remote.object_store import object_store
from bf16codecs.store.remote.storage import ask

__all__ = ["LONGEST_SECONDS", "ConflictError", "Found", "ObjectFolder", "Version"]

#: Requests that remove, or write without a condition, end after this time, repeated or not.
LONGEST_SECONDS = 60

_DOCUMENT = "zarr.json"
# The size of a part of a large file: S3 takes 10,000 parts.
_PART_BYTES = 1 << 24
# What services answer.
_NO_BUCKET = "NoSuchBucket", "ContainerNotFound"
_DENIED = "403 Forbidden", "401 Unauthorized", "AccessDenied"

#: What identifies an object's content: its ETag, or its generation.
Version = Mapping[str, Any]


class ConflictError(StoreError):
    """An object exists, or is not the one that was read."""


class Found(NamedTuple):
    """An object."""

    data: bytes
    version: Version


class ObjectFolder:
    """The keys below an address.

    Parameters
    ----------
    url
        The address, without a slash at its end.
    options
        Of the object store: see `object_store`.

    Raises
    ------
    OSError
        If the server fails, or refuses. Requests are repeated before.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.where, self._options = url, options
        self._store = object_store(url, options)
        self._brief = object_store(url, options, LONGEST_SECONDS)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectFolder, (self.where, self._options)

    def as_zarr(self) -> ObjectStore[Any]:
        """Return a store of zarr's that reads the keys."""
        return ObjectStore(self._store, read_only=True)

    def read(self, key: str, limited: bool = True, known: Found | None = None) -> Found | None:
        """Return an object; None if it does not exist. If `limited`, it is a document.

        What is `known` already is only read again if it has changed.
        """
        # A server that does not answer at all is noticed by the first document.
        store = self._brief if limited else self._store
        e_tag = None if known is None else known.version.get("e_tag")
        get = partial(obstore.get_async, options={"if_none_match": e_tag} if e_tag else None)
        with self._errors(key):
            try:
                reply = ask(_awaited, get, store, key)
                if limited:
                    check_metadata(reply.meta["size"])
                data = bytes(ask(_awaited, reply.bytes_async))
            except (FileNotFoundError, NotFoundError):
                return None
            except NotModifiedError:
                return known
            return Found(data, _version(reply.meta))

    def read_part(self, key: str, start: int, nbytes: int) -> bytes:
        """Return bytes of an object from an offset on, fewer at its end."""
        get = partial(obstore.get_range_async, start=start, length=nbytes)
        with self._errors(key):
            return bytes(ask(_awaited, get, self._store, key))

    def create(self, key: str, data: Any) -> Version:
        """Write an object that does not exist; raise ConflictError if it does.

        One that has these bytes already counts as written: the reply to an earlier request may have
        been lost.
        """
        return self._put(key, data, "create")

    def replace(self, key: str, data: Any, version: Version) -> Version:
        """Replace an object; raise ConflictError if it is not the version that was read."""
        return self._put(key, data, dict(version))

    def write(self, key: str, data: Any) -> Version:
        """Write a document, whatever is there."""
        return self._put(key, data, "overwrite")

    def _put(self, key: str, data: Any, mode: Any) -> Version:
        with self._errors(key):
            try:
                return self._put_once(key, data, mode)
            except (AlreadyExistsError, PreconditionError) as e:
                found = self.read(key) if len(data) <= MAX_METADATA_BYTES else None
                if found is None or found.data != bytes(data):
                    raise ConflictError(f"{self.where}/{key}: another process wrote it") from e
                return found.version
            except (FileNotFoundError, NotFoundError) as e:
                if isinstance(mode, dict):
                    raise ConflictError(f"{self.where}/{key}: another process removed it") from e
                raise self._no_bucket() from e

    def _no_bucket(self) -> FileNotFoundError:
        text = "there is no such bucket, or container"
        return FileNotFoundError(errno.ENOENT, text, self.where)

    def _put_once(self, key: str, data: Any, mode: Any) -> Version:
        put = partial(obstore.put_async, mode=mode, use_multipart=False)
        is_document = key.endswith(_DOCUMENT) or mode == "overwrite"
        store = self._brief if is_document else self._store
        return _version(ask(_awaited, put, store, key, data))

    def check_creating(self, key: str, data: bytes) -> None:
        """Raise StoreError if the service creates an object that exists, which has these bytes."""
        self._check_refused(key, data, "create")

    def check_replacing(self, key: str, data: bytes) -> None:
        """Raise StoreError if the service replaces another version than the one that is named."""
        self._check_refused(key, data, {"e_tag": '"none"', "version": "1"})

    def _check_refused(self, key: str, data: bytes, mode: Any) -> None:
        try:
            with self._errors(key):
                self._put_once(key, data, mode)
        except (AlreadyExistsError, PreconditionError):
            return
        except NotSupportedError:
            pass
        raise StoreError(
            f"{self.where}: this object store has no conditional requests (If-None-Match and"
            " If-Match), so two writers could damage each other's stores: write to a local folder,"
            " and upload it"
        )

    def listed(self, below: str = "") -> list[str]:
        """Return all keys below a path; services list 1,000 at a time."""
        return list(self.sizes(below))

    def names(self) -> list[str]:
        """Return what is in this folder, sorted; names of folders end in a slash."""
        with self._errors(""):
            found = ask(_awaited, obstore.list_with_delimiter_async, self._brief)
        folders = [f"{os.path.basename(path)}/" for path in found["common_prefixes"]]
        files = [os.path.basename(meta["path"]) for meta in found["objects"]]
        return sorted(filter(None, [*folders, *files]))

    def sizes(self, below: str = "") -> dict[str, int]:
        """Return all keys below a path, with the sizes of their objects.

        An object that consoles make to show an empty folder is none of them: it has the folder's
        own name, with a slash.
        """
        with self._errors(below):
            stream = obstore.list(self._brief, prefix=below or None)
            found = ask(_awaited, stream.collect_async)
        return {str(meta["path"]): int(meta["size"]) for meta in found if meta["path"]}

    def upload(self, key: str, file: BinaryIO) -> None:
        """Write a file of any size, whatever is there; of a failed upload, nothing is left.

        Memory for four parts is taken.
        """
        put = partial(obstore.put_async, chunk_size=_PART_BYTES, max_concurrency=4)
        with self._errors(key):
            try:
                ask(_awaited, put, self._store, key, file)
            except (FileNotFoundError, NotFoundError) as e:
                raise self._no_bucket() from e

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects, some of which may not exist."""
        keys = list(keys)
        if not keys:
            return
        with self._errors(keys[0]):
            try:
                ask(_awaited, obstore.delete_async, self._brief, keys)
            except (FileNotFoundError, NotFoundError):  # on some services, which stop there
                for key in keys:
                    with suppress(FileNotFoundError, NotFoundError):
                        ask(_awaited, obstore.delete_async, self._brief, key)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Let errors of obstore be OSErrors with the address, except those about conditions."""
        where = f"{self.where}/{key}" if key else self.where
        try:
            yield
        except (ConflictError, AlreadyExistsError, PreconditionError, NotSupportedError):
            raise
        except (PermissionDeniedError, UnauthenticatedError) as e:
            raise PermissionError(errno.EACCES, one_line(e), where) from e
        except Exception as e:
            if isinstance(e, OSError) and e.filename is not None:  # of this module
                raise
            if any(code in str(e) for code in _NO_BUCKET):
                raise self._no_bucket() from e
            if any(code in str(e) for code in _DENIED):  # listing does not tell by its class
                raise PermissionError(errno.EACCES, one_line(e), where) from e
            with named_errors(where, OSError):
                raise e


async def _awaited(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of obstore, which has to be called in a loop."""
    return await function(*args)


def _version(meta: Mapping[str, Any]) -> Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}
