"""Rewriting a store as a whole, or on another base."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.array import ArrayReader
from bf16codecs._base.arguments import argument
from bf16codecs._base.limits import Limits
from bf16codecs._base.names import FRAME_CODECS
from bf16codecs._base.paths import given_path
from bf16codecs._files.digests import Digests
from bf16codecs._files.publish import recover
from bf16codecs.convert.checks import check_restored_size, stored_index
from bf16codecs.convert.defaults import DEFAULT_CHUNK_SIZE
from bf16codecs.convert.foreign import foreign_attribute
from bf16codecs.convert.store import safetensors_to_hdf5, safetensors_to_zarr
from bf16codecs.convert.summary import Progress, Summary, summarize
from bf16codecs.convert.target import target_errors
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import Source, SourceFile
from bf16codecs.store.addresses import path_of
from bf16codecs.store.attributes import ROUNDED, StoredFile
from bf16codecs.store.bases import identity, place_of
from bf16codecs.store.choice import CODEC_NAMES, DEFAULT_CODEC, PLAIN_ZSTD
from bf16codecs.store.kinds import Kind, detect
from bf16codecs.store.objects import read_parts, sizes_of_objects
from bf16codecs.store.opening import Opening, open_store
from bf16codecs.store.reader import StoreReader
from bf16codecs.store.whole import stored_arrays

__all__ = ["files_in", "rebase_store"]


def rebase_store(
    store: str | os.PathLike[str],
    onto: str | os.PathLike[str] | None = None,
    *,
    base: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    max_bytes: int | None = None,
    verify: bool = True,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Rewrite a store, in place, so that it needs no base, or another one.

    One that is already whole, or has that base, is left as it is.

    Parameters
    ----------
    store
        A Zarr store, in a folder or a ZIP file, or an HDF5 file. It keeps its codec and, if it is
        Zarr, the format. At every moment, what has its name is the old or the new one, complete.
    onto
        The new base, as for `safetensors_to_zarr`; by default there is none.
    base
        The base that the store has, if it is not where the store says.
    storage_options
        Of the file system that a base at an address is in, the old or the new one.
    threads, max_bytes, verify, sync, progress
        As for `safetensors_to_zarr` and `zarr_to_safetensors`.

    Returns
    -------
    Summary
        It says whether there was nothing to do.

    Raises
    ------
    StoreError
        If it is not a local model store, or damaged, or lossy, or a base cannot be opened, or if it
        has attributes that somebody added, which would be lost.
    FileExistsError
        If files, arrays or groups in it are not the store's.
    bf16codecs.errors.BaseMismatchError
        If its base is another model, or was altered.
    ValueError
        If `onto` is the store itself, or has it as its base, or if there are storage options and no
        base at an address.
    """
    text = given_path(store, "store")
    if "://" in text:
        raise StoreError(f"{text}: only local stores can be rewritten")
    target = os.path.realpath(text)  # a link leads to what is rewritten, and stays
    old, new = (_options_for(place, storage_options) for place in (base, onto))
    if storage_options and not (old or new):
        name = argument("storage_options")
        raise ValueError(f"{name} are for a base at an address, and there is none")
    opening = Opening(old, Limits(max_bytes), base, takes_steps=False)
    start = time.perf_counter()
    with closing(open_store(text, opening=opening)) as reader:
        objects = len(sizes_of_objects(reader) or {})
        if base is None and _is_based_on(reader, onto):
            recover(Path(target).parent)  # as writing does: whoever wrote it may have been killed
            return replace(summarize(reader, reader.headers, start, objects), is_unchanged=True)
        if reader.info.loss is not None:
            raise StoreError(f"{text}: is lossy: it has no base, and would no longer say so")
        kind = detect(text)
        with target_errors(Path(target)):
            attribute = foreign_attribute(Path(target), kind)
        if attribute:
            raise StoreError(
                f"{text}: would lose the attribute {attribute}, which is not the store's: keep it"
                " elsewhere, and delete it here"
            )
        check_restored_size(reader)
        codec, level = _choice_of(reader, onto is not None)
        options: dict[str, Any] = {
            "codec": codec,
            "level": level,
            "chunk_size": _chunk_size(reader),
            "threads": threads,
            "base": onto,
            # What is known of the files stays known.
            "sha256": any(file.digests.sha256 for file in reader.info.files),
            "storage_options": new,
            "verify": verify,
            "overwrite": True,
            "sync": sync,
            "progress": progress,
        }
        source = replace(_source_of(reader), levels=_levels(reader, codec, level))
        if kind is Kind.HDF5:
            summary = safetensors_to_hdf5(source, target, **options)
        else:
            options["zarr_format"] = reader.zarr_format
            summary = safetensors_to_zarr(source, target, **options)
    return replace(summary, objects=objects)


def _options_for(
    place: str | os.PathLike[str] | None, options: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the options for a model that may be at an address: one of two is."""
    return options if place is not None and path_of(os.fspath(place)) is None else None


def _is_based_on(reader: StoreReader, place: str | os.PathLike[str] | None) -> bool:
    """Tell whether a store has a base, known by its path or address; or none, for None."""
    reference = reader.info.base
    if reference is None or place is None:
        return reference is None and place is None
    return identity(os.fspath(place)) == identity(place_of(reference, reader.location[0]))


def _choice_of(reader: StoreReader, has_base: bool) -> tuple[str, str | None]:
    """Return codec and level that a store was made with, if they are those of this package.

    The default one where differences are to be stored and the codec stores none.
    """
    known = set(FRAME_CODECS if has_base else (*CODEC_NAMES, PLAIN_ZSTD))
    for path in dict.fromkeys(reader.info.paths.values()):
        array = reader.array(path)
        # In HDF5, scalars and empty arrays have no codec.
        if path.endswith(ROUNDED) or array.dtype.kind not in "fV" or not math.prod(array.shape):
            continue
        storage = reader.storage(path)
        codec = storage.codec.rpartition("+")[2]  # behind "difference", or HDF5's shuffle
        if codec in known and (array.shape or codec != "none"):
            return codec, storage.level or None
    return DEFAULT_CODEC, None


def _levels(reader: StoreReader, codec: str, level: str | None) -> dict[str, str]:
    """Return the levels of tensors that were coded at another than most."""
    found = {name: reader.storage(path) for name, path in reader.info.paths.items()}
    return {
        name: storage.level
        for name, storage in found.items()
        if storage.codec.rpartition("+")[2] == codec and storage.level not in ("", level)
    }


def _chunk_size(reader: StoreReader) -> int:
    """Return a size of chunks that leaves them as they are, roughly."""
    arrays = list(map(reader.array, dict.fromkeys(reader.info.paths.values())))
    largest = max((array.decoded_nbytes for array in arrays), default=1)
    if any(array.chunks != array.shape for array in arrays if math.prod(array.shape)):
        return largest
    return max(DEFAULT_CHUNK_SIZE, largest)


@dataclass(frozen=True)
class _Part:
    """A tensor's bytes in a file."""

    start: int
    stop: int
    read: Callable[[int, int, NDArray[np.uint8]], None]


@dataclass(frozen=True)
class _StoredFile(SourceFile):
    """A file that a store holds, read as if it were there."""

    file: StoredFile
    parts: tuple[_Part, ...]

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return self.file.name

    @property
    def digests(self) -> Digests:
        """The digests that it had before it was stored."""
        return self.file.digests

    def read_into(self, offset: int, out: NDArray[np.uint8]) -> None:
        """Read tensors' bytes of the file from `offset` on, which counts the header."""
        for part in self.parts:
            start, stop = max(offset, part.start), min(offset + out.size, part.stop)
            if start < stop:
                part.read(
                    start - part.start, stop - part.start, out[start - offset : stop - offset]
                )

    def state(self) -> Any:
        """Return nothing: chunks are checked as they are read."""


@dataclass(frozen=True)
class _StoredSource(Source):
    """A model that is read from a store."""

    @property
    def paths(self) -> list[Path]:
        """No files: the store may be replaced by what is made of it."""
        return []


def _source_of(reader: StoreReader) -> Source:
    index = reader.info.index
    named = None if index is None else Path(index.name)
    return _StoredSource(files_in(reader), named, stored_index(reader), read_parts(reader))


def files_in(reader: StoreReader) -> tuple[SourceFile, ...]:
    """Return the files that a store holds, read as if they were there."""
    headers = reader.headers
    parts: list[list[_Part]] = [[] for _ in headers]
    for plan in stored_arrays(reader, headers):
        array: ArrayReader = reader.array(plan.path)
        stop = plan.offset + plan.nbytes
        parts[plan.file].append(_Part(plan.offset, stop, array.read_run))
    return tuple(
        _StoredFile(Path(reader.where), header, file, tuple(own))
        for header, file, own in zip(headers, reader.info.files, parts, strict=True)
    )
