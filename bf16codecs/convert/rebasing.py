"""Rewrite a store without its base, or on another base."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from bf16codecs._base.arguments import argument
from bf16codecs._base.limits import Limits
from bf16codecs._base.names import FRAME_CODECS
from bf16codecs._base.paths import given_path
from bf16codecs._files.publish import recover
from bf16codecs.convert.checks import check_restored_size
from bf16codecs.convert.foreign import foreign_attribute, foreign_attribute_of
from bf16codecs.convert.new_store import is_object_address
from bf16codecs.convert.options import Options
from bf16codecs.convert.store import convert_model
from bf16codecs.convert.summary import Progress, Summary, summarize
from bf16codecs.convert.target import target_errors
from bf16codecs.errors import StoreError
from bf16codecs.store.attributes import ROUNDED
from bf16codecs.store.bases import identity, location_of
from bf16codecs.store.choice import CODEC_NAMES, DEFAULT_CHUNK_SIZE, DEFAULT_CODEC, PLAIN_ZSTD
from bf16codecs.store.kinds import Kind, detect, path_of
from bf16codecs.store.objects import sizes_of_objects
from bf16codecs.store.opening import Opening, open_store
from bf16codecs.store.reader import ModelReader

__all__ = ["rebase_store"]


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
    """Rewrite a store in place, so that it needs no base, or another one.

    A store that already has no base, or that base, stays unchanged.

    Parameters
    ----------
    store
        A Zarr store, in a folder, a ZIP file or a folder of an object store, or an HDF5 file. It
        keeps its codec and its Zarr format. At every moment, its path holds the complete old or the
        complete new store.
    onto
        The new base, as for `safetensors_to_zarr`; by default there is none.
    base
        Location of the current base, if it is not where the store says.
    storage_options
        Options of the file system of the store, or an old or new base, at an address.
    threads, max_bytes, verify, sync, progress
        As for `safetensors_to_zarr` and `zarr_to_safetensors`.

    Returns
    -------
    Summary
        `is_unchanged` is true if there was nothing to do.

    Raises
    ------
    StoreError
        If it is not a model store, or is damaged or lossy, if a base cannot be opened, or if
        attributes that a user has added would be lost.
    FileExistsError
        If it contains files, arrays or groups that are not the store's.
    bf16codecs.errors.BaseMismatchError
        If its base is another model, or was altered.
    ValueError
        If `onto` is the store itself, or depends on it, or if storage options are given without a
        base at an address.
    """
    text = given_path(store, "store")
    is_remote = is_object_address(text)
    # A link stays, and the store that it leads to is rewritten.
    target = text if is_remote else os.path.realpath(text)
    old, new = (_options_for(location, storage_options) for location in (base, onto))
    if storage_options and not (old or new or is_remote):
        name = argument("storage_options")
        raise ValueError(f"{name} are for a base at an address, and there is none")
    opening = Opening(
        storage_options if is_remote else old, Limits(max_bytes), base, takes_steps=False
    )
    start = time.perf_counter()
    with closing(open_store(text, opening=opening)) as reader:
        objects = len(sizes_of_objects(reader) or {})
        if base is None and _is_based_on(reader, onto):
            if not is_remote:
                recover(
                    Path(target).parent
                )  # as writing does: a killed process may have left files
            return replace(summarize(reader, reader.headers, start, objects), is_unchanged=True)
        if reader.info.loss is not None:
            raise StoreError(f"{text}: lossy stores cannot be rebased")
        kind = Kind.FOLDER if is_remote else detect(text)
        _check_attributes(reader, text, None if is_remote else Path(target), kind)
        check_restored_size(reader, reader.headers)
        codec, level = _choice_of(reader, onto is not None)
        options = Options(
            codec=codec,
            level=level,
            chunk_size=_chunk_size(reader),
            threads=threads,
            base=onto,
            sha256=any(file.digests.sha256 for file in reader.info.files),
            storage_options=new,
            target_options=storage_options if is_remote else None,
            zarr_format=reader.stored.zarr_format or 3,
            verify=verify,
            overwrite=True,
            sync=sync,
            progress=progress,
        )
        assert kind is not None
        levels = _levels(reader, codec, level)
        summary = convert_model(reader, target, kind, options, levels, in_place=True)
    return replace(summary, objects=objects)


def _check_attributes(reader: ModelReader, text: str, path: Path | None, kind: Kind | None) -> None:
    """Raise StoreError if attributes would be lost that a user has added."""
    if path is None:
        attribute = foreign_attribute_of(reader.stored.node_attributes())
    else:
        with target_errors(path):
            attribute = foreign_attribute(path, kind)
    if attribute:
        raise StoreError(
            f"{text}: would lose the attribute {attribute}, which is not the store's: keep it"
            " elsewhere, and delete it here"
        )


def _options_for(
    location: str | os.PathLike[str] | None, options: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the storage options of a base: those given, if it is at an address."""
    return options if location is not None and path_of(os.fspath(location)) is None else None


def _is_based_on(reader: ModelReader, base: str | os.PathLike[str] | None) -> bool:
    """Return whether a store has the base at a path or address, or, for None, no base."""
    reference = reader.info.base
    if reference is None or base is None:
        return reference is None and base is None
    return identity(os.fspath(base)) == identity(location_of(reference, reader.location[0]))


def _choice_of(reader: ModelReader, has_base: bool) -> tuple[str, str | None]:
    """Return the codec and level that a store was made with.

    The default codec replaces another package's, and, with a base, one that stores no differences.
    """
    known = set(FRAME_CODECS if has_base else (*CODEC_NAMES, PLAIN_ZSTD))
    for path in dict.fromkeys(reader.info.paths.values()):
        array = reader.array(path)
        # In HDF5, scalars and empty arrays have no codec.
        if path.endswith(ROUNDED) or array.dtype.kind not in "fV" or not math.prod(array.shape):
            continue
        label = reader.codec_label(path)
        codec = label.codec.rpartition("+")[2]  # behind "difference", or HDF5's shuffle
        if codec in known and (array.shape or codec != "none"):
            return codec, label.level or None
    return DEFAULT_CODEC, None


def _levels(reader: ModelReader, codec: str, level: str | None) -> dict[str, str]:
    """Return the levels of tensors whose level is not that of the store."""
    found = {name: reader.codec_label(path) for name, path in reader.info.paths.items()}
    return {
        name: label.level
        for name, label in found.items()
        if label.codec.rpartition("+")[2] == codec and label.level not in ("", level)
    }


def _chunk_size(reader: ModelReader) -> int:
    """Return a chunk size with which the chunks stay roughly the same."""
    arrays = list(map(reader.array, dict.fromkeys(reader.info.paths.values())))
    largest = max((array.decoded_nbytes for array in arrays), default=1)
    if any(array.chunks != array.shape for array in arrays if math.prod(array.shape)):
        return largest
    return max(DEFAULT_CHUNK_SIZE, largest)
