"""Bases of stores: their locations and identities.

docs/store.md, "Differences to a base", is the normative description.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bf16codecs._arrays.array import UnitArray
from bf16codecs._arrays.bases import ranges_work
from bf16codecs._arrays.parts import base_advice
from bf16codecs._base.paths import absolute
from bf16codecs.errors import BaseMismatchError, StoreError
from bf16codecs.store.attributes import ROUNDED, BaseFile, BaseReference, Difference
from bf16codecs.store.kinds import HUB_SCHEME, canonical_address, path_of
from bf16codecs.store.plan import difference_spec
from bf16codecs.store.reader import ModelReader

__all__ = [
    "MOST_BASES",
    "chain_of",
    "check_base",
    "files_of",
    "identity",
    "is_beside",
    "is_nameable",
    "local_chain",
    "location_of",
    "path_to",
    "work_with_bases",
]

_NAMEABLE = "http, https, s3, gs and az, and zip:: before one of these"
_ADDRESS = re.compile(
    r"(zip::)?(https?|s3|gs|az)://(?!.*::)[^\s:/?#\\][^\s\\]*", re.ASCII | re.IGNORECASE
)

# A repository at a commit, as the location of a model on a hub names it.
_REPOSITORY = re.compile(r"(models|datasets|spaces)/[^/@]+/[^/@]+@[^/]+")

#: The longest chain of bases: a model's base, the base of that, and so on. Reading recurses through
#: it, and with 100 it reached Python's limit of 1000 calls.
MOST_BASES = 32


def path_to(base: str, store: str | os.PathLike[str]) -> str:
    """Return how a store that will be at a path names its base, given by its path or address.

    It is an address, or a relative path with ``/``, seen from the folder of the store. Raises
    StoreError if the store is at an address, and the base is not.
    """
    text = os.fspath(store)
    if "://" in base:
        beside = "://" in text and is_beside(base, text)
        return _relative(base, text) if beside else base
    if "://" in text:
        raise StoreError(
            f"{base}: a local path, which a store at an address cannot name as its base: upload it,"
            " and name its address"
        )
    whole, folder = os.path.realpath(base), os.path.realpath(os.path.dirname(absolute(store)))
    try:
        path = os.path.relpath(whole, folder)
    except ValueError:  # on another drive
        path = whole
    return path.replace(os.sep, "/")


def _relative(base: str, store: str) -> str:
    """Return the path of a base from the folder of a store on the same host, or in its bucket."""
    (_, _, below), (_, _, own) = _parts(base), _parts(store)
    return posixpath.relpath(f"/{below}", posixpath.dirname(f"/{own}"))


def location_of(reference: BaseReference, where: str) -> str:
    """Return the path or address of a base, with the step if it is one of a run.

    `where` is the path or address of the store; empty if it has none. StoreError is raised if a
    store that is not local names a local file, if a store without a path or address names its base
    by a relative path, or if the base has an address that is not `is_nameable`.
    """
    path = reference.location
    if _is_address(path):
        if not is_nameable(path):
            raise StoreError(
                f"its base, {path!r:.200}: a store may name only {_NAMEABLE},"
                f" with a host, without spaces or backslashes: {base_advice()}"
            )
        return path
    if where and path_of(where) is not None:
        # Follow links in the path of the store, also one to the store itself.
        folder = os.path.dirname(os.path.realpath(where))
        return os.path.normpath(os.path.join(folder, path_of(path) or path))
    if not where:
        raise StoreError(
            f"its base, {path!r:.200}, is beside it, and it has no path itself: {base_advice()}"
        )
    if posixpath.isabs(path) or ":" in path or "\\" in path:
        raise StoreError(f"its base, {path!r:.200}, is a local path: {base_advice()}")
    scheme, host, below = _parts(where)
    # The path never leads above the host, bucket or repository.
    joined = posixpath.normpath(posixpath.join("/", posixpath.dirname(below), path))
    return f"{scheme}://{host}{joined}" if host else f"{scheme}:/{joined}"


def is_nameable(address: str) -> bool:
    """Return whether a store may name an address as its base's.

    Opening a stranger's store also opens its base. fsspec and obstore accept more than plain
    addresses: chains, files that list other files, leading blanks. Some of these lead from a server
    to local files.
    """
    return _ADDRESS.fullmatch(address) is not None


def _is_address(path: str) -> bool:
    return ("://" in path or "::" in path) and path_of(path) is None


def _parts(address: str) -> tuple[str, str, str]:
    """Return the scheme of an address, its host, bucket or repository, and the path below that."""
    if "http" in address.partition("://")[0]:
        address = re.split(r"[?#]", address, maxsplit=1)[0]
    scheme, _, rest = address.rpartition("://")
    if scheme.endswith("memory"):
        return scheme, "", rest.strip("/")
    if scheme == HUB_SCHEME and (repository := _REPOSITORY.match(rest)):
        return scheme, repository[0], rest[repository.end() :].strip("/")
    host, _, below = rest.rstrip("/").partition("/")
    return scheme, host, below


def is_beside(address: str, other: str) -> bool:
    """Return whether two addresses have the same host, bucket or repository."""
    return _parts(address)[:2] == _parts(other)[:2]


def identity(model: str) -> str:
    """Return a model's identity in a chain of bases."""
    path = path_of(model)
    return canonical_address(model).rstrip("/") if path is None else os.path.realpath(path)


def chain_of(model: ModelReader | None) -> Iterator[ModelReader]:
    """Yield a model, its base, and so on."""
    while model is not None:
        yield model
        model = model.base


def local_chain(model: ModelReader | None) -> Iterator[Path]:
    """Yield the local paths of a model and of its chain of bases; addresses are left out."""
    for each in chain_of(model):
        path = path_of(each.location[0])
        if path is not None:
            yield Path(path)


def files_of(base: ModelReader, kinds: Sequence[str]) -> tuple[BaseFile, ...]:
    """Return the identities of a base's files; safetensors files are read wholly for it."""
    digests = base.digests(kinds)
    return tuple(
        BaseFile(file.name, file.size, digest, hashlib.sha256(header.raw).hexdigest())
        for file, digest, header in zip(base.info.files, digests, base.headers, strict=True)
    )


def check_base(reference: BaseReference, base: ModelReader, where: str) -> None:
    """Raise BaseMismatchError for a base that is not the one that a store was made with.

    Only sizes and headers are compared for safetensors files, and where no digests of one kind are
    known: frames detect other blocks of the base when they are read.
    """
    found, expected = base.info.files, reference.files
    if len(found) != len(expected):
        names = ", ".join(file.name for file in found)
        raise BaseMismatchError(
            f"{where}: {base.where} is not its base: it has {names:.200}; {base_advice()}"
        )
    for i, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
        other = None
        if ours.size != theirs.size:
            other = "size", str(ours.size), str(theirs.size)
        elif ours.digests.are_comparable(theirs.restored):
            other = ours.digests.difference(theirs.restored)
        else:
            header = hashlib.sha256(base.headers[i].raw).hexdigest()
            if header != ours.header_sha256:
                other = "header's SHA-256", ours.header_sha256, header
        if other is not None:
            what, stated, found_value = other
            raise BaseMismatchError(
                f"{where}: {base.where} is not its base: the {what} of {theirs.name:.80} is"
                f" {found_value:.16}, not {stated:.16}; {base_advice()}"
            )


def work_with_bases(model: ModelReader, name: str, work: int) -> int:
    """Estimate how many bytes are decoded to read a tensor, `work` of them in its store.

    Bases count: a base of a few kilobytes whose chunks are columns could take hundreds of
    times as much decoding as its size allows.
    """
    total, difference = work, _difference(model, name)
    while difference is not None and model.base is not None:
        model = model.base
        if difference.tensor not in model.info.paths:
            break  # reading reports it
        array = model.tensor(difference.tensor).array
        assert isinstance(array, UnitArray)  # no run is a base
        dtype, _ = difference_spec(difference)
        nbytes = work * array.dtype.itemsize // np.dtype(dtype).itemsize
        work = ranges_work(array, nbytes, difference.chunks)
        total, difference = total + work, _difference(model, difference.tensor)
    return total


def _difference(model: ModelReader, name: str) -> Difference | None:
    if not model.info.differences:
        return None
    return model.info.differences.get(model.info.paths[name].removesuffix(ROUNDED))
