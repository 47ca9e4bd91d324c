"""Bases of stores: where they are, and how they are known again.

docs/store.md, "Differences to a base", is the normative description.
"""

from __future__ import annotations

import hashlib
import os
import posixpath

from bf16codecs._paths import absolute
from bf16codecs.errors import BaseMismatchError, StoreError
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.entries import BaseFile, BaseReference

__all__ = ["ADVICE", "check_base", "files_of", "identity", "path_to", "place_of"]

#: What to do about a base that is not there, or is another one.
ADVICE = "name its base with --base, or bf16codecs.open_model(..., base=...)"


def path_to(base: str, store: str | os.PathLike[str]) -> str:
    """Return how a store names its base.

    Parameters
    ----------
    base
        The base's path or address.
    store
        The store's path, where it will be.

    Returns
    -------
    str
        A relative path with ``/``, seen from the folder of the store, or an address.
    """
    if "://" in base:
        return base
    whole, folder = os.path.realpath(base), os.path.realpath(os.path.dirname(absolute(store)))
    try:
        path = os.path.relpath(whole, folder)
    except ValueError:  # on another drive
        path = whole
    return path.replace(os.sep, "/")


def place_of(reference: BaseReference, where: str) -> str:
    """Return the path or address of a base, with the step if it is one of a run.

    Parameters
    ----------
    reference
        How the store names it: see `path_to`.
    where
        The store's own path or address.

    Raises
    ------
    StoreError
        If a store at an address has its base among local files.
    """
    path = reference.path if reference.step is None else f"{reference.path}@{reference.step}"
    if "://" in path:
        return path
    if "://" not in where:
        folder = os.path.realpath(os.path.dirname(absolute(where)))
        return os.path.normpath(os.path.join(folder, path))
    scheme, _, rest = where.rpartition("://")
    if posixpath.isabs(path) or ":" in path or "\\" in path:
        raise StoreError(f"{where}: its base, {path}, is a local path: {ADVICE}")
    # Never above the host, or bucket.
    host, _, below = rest.rstrip("/").partition("/")
    joined = posixpath.normpath(posixpath.join("/", posixpath.dirname(below), path))
    return f"{scheme}://{host}{joined}"


def identity(place: str) -> str:
    """Return what tells a model from others in a chain of bases."""
    return place.rstrip("/") if "://" in place else os.path.realpath(place)


def files_of(base: StoreReader) -> tuple[BaseFile, ...]:
    """Return what tells the files of a base from others; of safetensors files, all is read."""
    digests = base.digests()
    return tuple(
        BaseFile(file.name, file.size, digest, hashlib.sha256(header.raw).hexdigest())
        for file, digest, header in zip(base.info.files, digests, base.headers, strict=True)
    )


def check_base(reference: BaseReference, base: StoreReader, where: str) -> None:
    """Refuse a base that is not the one that a store was made with.

    Of safetensors files, only sizes and headers are compared: frames tell when blocks of them are
    read that are others.

    Raises
    ------
    BaseMismatchError
        If it is another.
    """
    found, expected = base.info.files, reference.files
    if len(found) != len(expected):
        names = ", ".join(file.name for file in found)
        raise BaseMismatchError(f"{where}: {base.where} is not its base: it has {names}; {ADVICE}")
    for i, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
        if theirs.sha256:
            what, digests = "SHA-256", (ours.sha256, theirs.sha256)
        else:
            header = hashlib.sha256(base.headers[i].raw).hexdigest()
            what, digests = "a header of SHA-256", (ours.header_sha256, header)
        if ours.size != theirs.size:
            what, digests = "bytes:", (str(ours.size), str(theirs.size))
        if digests[0] != digests[1]:
            raise BaseMismatchError(
                f"{where}: {base.where} is not its base: {theirs.name:.80} has {what}"
                f" {digests[1]:.16}, that of the base has {digests[0]:.16}; {ADVICE}"
            )
