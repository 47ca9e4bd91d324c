"""Sources of conversions: models of any kind.

Safetensors is built in. Any other kind of source is a module in this folder, which needs no
registration. It has the suffixes of its files, ``SUFFIXES``, and two functions. ``is_source(place:
Place) -> bool`` recognizes a place of its kind, by the names or the first bytes of files.
``open_source(place: Place) -> ModelReader`` opens it by `Place.reader` where tensors lie in the
files as they are, or else as a `FilesReader` whose contents are `ReadBytes`.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bf16codecs._base.arguments import argument
from bf16codecs._base.messages import named_errors
from bf16codecs._base.paths import absolute, given_path, missing_path, resolved
from bf16codecs.convert.places import LocalPlace, Place, RemotePlace
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import START_BYTES, check_names_to_store, is_safetensors
from bf16codecs.store.files import open_safetensors
from bf16codecs.store.kinds import (
    Kind,
    address_scheme,
    detect,
    kind_of_address,
    path_of,
    restorer_of,
    suffix_of,
)
from bf16codecs.store.opening import split_step
from bf16codecs.store.reader import ModelReader

if TYPE_CHECKING:
    from bf16codecs.store.remote.safetensors import RemoteFolder

__all__ = ["check_used", "is_foreign", "left_out", "opened_source"]


def opened_source(
    src: str | os.PathLike[str],
    to_store: bool = False,
    options: Mapping[str, Any] | None = None,
) -> ModelReader:
    """Open the source of a conversion; `to_store` refuses file names that stores cannot keep.

    `options` are those of the file system of an address.

    Raises SafetensorsError if it is a store (the message says what to do), or damaged; OSError if a
    file cannot be read, or a server fails; ValueError if the path is empty; StoreError if a package
    is missing that knows such addresses.
    """
    text = given_path(src, "source")
    path = path_of(text)
    source = _open_address(text, options) if path is None else _open_path(text, path)
    # On a hub, other processes open the same commit.
    where = source.location[0] if path is None else absolute(path)
    source.reopen = partial(opened_source, where, options=options)
    if to_store:
        names = [file.name for file in source.info.files]
        check_names_to_store(source.paths or map(Path, names))
    return source


def _open_address(text: str, options: Mapping[str, Any] | None) -> ModelReader:
    kind = kind_of_address(text)
    if kind in (Kind.ZIP, Kind.HDF5) or suffix_of(text.rstrip("/"))[1] is Kind.FOLDER:
        raise _is_store(text, kind)
    # zarr is imported only for addresses.
    from bf16codecs.store.remote.opening import open_remote_source

    source = open_remote_source(text, dict(options or {}), _open_other)
    if source.stored.zarr_format:
        source.close()
        raise _is_store(text, Kind.FOLDER)
    return source


def _open_other(folder: RemoteFolder) -> ModelReader | None:
    """Open another kind of source at an address; return None for safetensors, and for stores."""
    place = RemotePlace(folder)
    if suffix_of(place.name)[1] is not None:
        return None
    found = _module_for(place) or _module_by_name(place)
    return None if found is None else _opened(found, place)


def _is_store(text: str, kind: Kind) -> SafetensorsError:
    restorer = restorer_of(kind)
    return SafetensorsError(
        f"{text}: {kind.value}, not a safetensors model: {restorer} restores that"
    )


def _open_path(text: str, path: str) -> ModelReader:
    try:
        place = LocalPlace(path)
        if (found := _module_for(place) or _module_by_name(place)) is not None:
            return _opened(found, place)
        return open_safetensors(path, is_held=False)
    except (SafetensorsError, FileNotFoundError) as e:
        kind = None
        with suppress(OSError):
            kind = detect(split_step(path)[0])
        # torch.save writes ZIP files with other names.
        is_store_name = kind is not Kind.ZIP or suffix_of(path)[1] is Kind.ZIP
        if kind is not None and restorer_of(kind) and is_store_name:
            raise _is_store(text, kind) from e
        if isinstance(e, FileNotFoundError) and not os.path.lexists(path):
            raise missing_path(path) from e
        raise


def _modules() -> Iterator[Any]:
    for found in pkgutil.iter_modules(__path__):
        yield import_module(f"{__name__}.{found.name}")


def _module_for(place: Place) -> Any | None:
    """Return the module for a kind of source; None for safetensors."""
    return next((kind for kind in _modules() if kind.is_source(place)), None)


def _module_by_name(place: Place) -> Any | None:
    """Return the module that files of this name belong to, which says what is wrong with it."""
    name = place.name.lower()
    found = next((kind for kind in _modules() if name.endswith(kind.SUFFIXES)), None)
    is_other = found is not None and is_safetensors(place.begins(place.name, START_BYTES))
    return None if is_other else found


def _opened(kind: Any, place: Place) -> ModelReader:
    with named_errors(place.where, SafetensorsError, OSError):
        reader: ModelReader = kind.open_source(place)
        return reader


def check_used(
    options: Mapping[str, Any] | None, sources: Iterable[str | os.PathLike[str]]
) -> None:
    """Raise ValueError for options of file systems if none of the sources is at an address."""
    if options and not any(address_scheme(os.fspath(source)) for source in sources):
        name = argument("storage_options")
        raise ValueError(f"{name} are for addresses: no source is at one")


def is_foreign(path: str | os.PathLike[str]) -> bool:
    """Return whether a source of another kind than safetensors is at a path."""
    return _module_for(LocalPlace(os.fspath(path))) is not None


def left_out(sources: Sequence[ModelReader], target: Path | str) -> tuple[str, ...]:
    """List files beside sources that `target` lacks, with their folder if sources are several."""
    store = resolved(target) if isinstance(target, Path) else None
    are_several = len(sources) > 1

    def names() -> Iterator[str]:
        for source in sources:
            for name in source.left_out:
                if not source.paths:  # at an address
                    yield name
                    continue
                path = source.paths[0].parent / name
                if resolved(path) != store:
                    yield f"{path.parent.name}/{name}" if are_several else name

    return tuple(names())
