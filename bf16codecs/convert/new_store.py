"""Stores in the making, on a disk or in an object store: each is seen only once it is complete."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from bf16codecs._base.arguments import argument
from bf16codecs._base.paths import given_path
from bf16codecs.convert.options import Options, StoreOptions
from bf16codecs.convert.target import (
    absolute_target,
    new_target,
    other_than_model,
)
from bf16codecs.store.kinds import (
    OBJECT_SCHEMES,
    Kind,
    address_scheme,
    canonical_address,
    path_of,
    plain_address,
    suffix_of,
)
from bf16codecs.store.opening import Opening, open_store
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.writer import ModelWriter
from bf16codecs.store.zarr.sinks import FolderSink, ZipSink
from bf16codecs.store.zarr.writer import ZarrWriter

__all__ = [
    "NewStore",
    "Target",
    "check_same_server",
    "is_object_address",
    "new_store",
    "object_address",
    "options_of_base",
    "options_of_target",
    "target_of",
]

#: An absolute path, or an address.
Target = Path | str

# What is left of an address in a path of pathlib's.
_HALF_ADDRESS = re.compile(rf"({'|'.join(OBJECT_SCHEMES)}):/(?!/)", re.IGNORECASE)
# Characters that have a meaning in addresses, or that obstore writes in another way.
_ODD = '?#%\\{}^`[]"<>~|'


class NewStore(Protocol):
    """A store that is being made."""

    def writer(self, options: Options) -> ModelWriter:
        """Return its writer."""

    def open(self, base: ModelReader | None) -> ModelReader:
        """Open it, once it is written, to verify it; `base` is the model of its differences."""

    def stored_nbytes(self, written: int) -> int:
        """Return its size, of which the writer has counted `written`."""


def target_of(
    store: Any, kind: Kind, source: ModelReader, options: Options, in_place: bool
) -> Target:
    """Return where a store of this kind is to be made; raise ValueError if that is impossible.

    It must not be or contain its source, unless it is made `in_place`.
    """
    text = given_path(store, "target")
    if is_object_address(text):
        return object_address(text, kind, [] if in_place else [source], options)
    target = absolute_target(text, [] if in_place else source.paths)
    if options.target_options:
        name = argument("target_options")
        raise ValueError(f"{name} are for addresses: {text} is a path")
    return target


def is_object_address(text: str) -> bool:
    """Return whether a target is an address, not a path; raise ValueError for one of the web."""
    if path_of(text) is not None:
        if _HALF_ADDRESS.match(text):
            raise ValueError(
                f"{text}: an address has two slashes behind its scheme, and must be given as text,"
                " not as a Path"
            )
        return False
    if "::" in text or address_scheme(text) not in OBJECT_SCHEMES:
        raise ValueError(
            f"{text}: stores are made on local disks, or in object stores: at s3://, gs:// or az://"
        )
    return True


def object_address(
    text: str, kind: Kind, sources: Iterable[ModelReader], options: StoreOptions
) -> str:
    """Return the address of a folder to make, without a slash at its end; raise as `target_of`."""
    _check_address(text, kind, options)
    address = canonical_address(plain_address(text)).rstrip("/")
    for source in sources:
        if f"{source.where.rstrip('/')}/".startswith(f"{address}/"):
            raise ValueError(f"{text}: would replace the source, {source.where}")
    return address


def _check_address(text: str, kind: Kind, options: StoreOptions) -> None:
    """Raise ValueError if no store of this kind can be made at an address."""
    path = text.partition("://")[2].rstrip("/")
    odd = next((c for c in path if c in _ODD or not c.isprintable()), "")
    if odd or not {"", ".", ".."}.isdisjoint(path.split("/")):
        what = f"{odd!a}" if odd else "an empty part, or a dot alone"
        raise ValueError(
            f"{text}: has {what}, which programs write differently in keys: choose another name"
        )
    if "/" not in path:
        example = f"{text.rstrip('/')}/model.zarr"
        raise ValueError(f"{text}: a whole bucket: name a folder in it, such as {example}")
    if kind is not Kind.FOLDER or suffix_of(text.rstrip("/"))[1] not in (None, Kind.FOLDER):
        raise ValueError(
            f"{text}: in object stores, stores are folders: choose another name, such as"
            " model.zarr, or upload the finished file"
        )
    if options.zarr_format != 3:
        raise ValueError(
            f"{text}: in object stores, stores have Zarr format 3: of format 2, three documents"
            " would have to appear at once"
        )


def options_of_base(
    source: ModelReader, target: Target, options: Options
) -> Mapping[str, Any] | None:
    """Return the options of a base's file system, from those that were given for a conversion.

    If the source is at an address, they are for that, and for a base with the same scheme.
    """
    scheme, of_base = address_scheme(source.where), address_scheme(options.base_place)
    if isinstance(target, str) and not of_base:
        return None  # they are for the target
    return options.storage_options if not scheme or scheme == of_base else None


def check_same_server(
    target: Target,
    base: str,
    of_base: Mapping[str, Any] | None,
    of_target: Mapping[str, Any] | None,
) -> None:
    """Raise ValueError for a base on another server than the target's, which no address tells."""
    if isinstance(target, Path) or address_scheme(base) != address_scheme(target):
        return
    if _endpoint(of_base or {}) != _endpoint(of_target or {}):
        raise ValueError(
            f"{base}: on another server than {target}, which addresses do not tell: copy it there"
        )


def _endpoint(options: Mapping[str, Any]) -> str:
    options = {**options.get("client_kwargs", {}), **options}
    found = (options.get(name) for name in ("endpoint_url", "endpoint", "base_url"))
    return str(next(filter(None, found), "")).rstrip("/")


def options_of_target(
    target: Target,
    given: Mapping[str, Any] | None,
    others: Mapping[str, Any] | None,
    places: Iterable[str],
) -> Mapping[str, Any] | None:
    """Return the options of the object store that the target is in.

    By default they are the `others`, which are for sources and bases, unless one of these `places`
    has another scheme.
    """
    if given is not None or isinstance(target, Path):
        return given
    schemes = set(map(address_scheme, places)) - {""}
    return others if schemes <= {address_scheme(target)} else None


@contextmanager
def new_store(target: Target, kind: Kind, options: Options) -> Iterator[NewStore]:
    """Yield a store to write; it gets its name at the end, and is removed if the caller fails.

    Raises FileExistsError if something is there that may not be replaced; BlockingIOError if
    another process is writing it.
    """
    if isinstance(target, str):
        # Imported only for addresses: zarr, obstore.
        from bf16codecs.convert.new_remote import new_remote

        with new_remote(target, options) as store:
            yield store
        return
    obstacle, as_folder = partial(other_than_model, kind=kind), kind is Kind.FOLDER
    with new_target(target, options.overwrite, obstacle, options.sync, as_folder) as temporary:
        yield _LocalStore(temporary, kind)


class _LocalStore:
    """A store on a disk, at a temporary path."""

    def __init__(self, path: Path, kind: Kind) -> None:
        self._path, self._kind = path, kind

    def writer(self, options: Options) -> ModelWriter:
        """Return its writer."""
        path, choice = self._path, options.choice
        if self._kind is Kind.HDF5:
            # Imported here: h5py is slow to import.
            from bf16codecs.store.hdf5.writer import Hdf5Writer

            return Hdf5Writer(path, choice)
        if self._kind is Kind.ZIP:
            return ZarrWriter(ZipSink(path), choice, options.zarr_format)
        path.mkdir()
        return ZarrWriter(FolderSink(path, options.sync), choice, options.zarr_format)

    def open(self, base: ModelReader | None) -> ModelReader:
        """Open it to verify it."""
        return open_store(self._path, self._kind, opening=Opening(base=base))

    def stored_nbytes(self, written: int) -> int:
        """Return its size; the writer does not count headers, and the directory of a ZIP file."""
        return self._path.stat().st_size if self._path.is_file() else written
