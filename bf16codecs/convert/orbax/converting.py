"""Convert Orbax checkpoints to model stores."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from bf16codecs._base.limits import Limits
from bf16codecs._base.paths import absolute, given_path, require_path, resolved
from bf16codecs._files.reading import disk_size
from bf16codecs.convert.options import Options, zarr_kind
from bf16codecs.convert.orbax.layout import MARKERS, is_orbax, parent_checkpoint
from bf16codecs.convert.orbax.source import open_checkpoint
from bf16codecs.convert.store import convert_model
from bf16codecs.convert.summary import Summary
from bf16codecs.convert.target import absolute_target
from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import (
    Kind,
    detect,
    detect_given,
    maker_of,
    path_of,
    restorer_of,
    suffix_of,
)
from bf16codecs.store.plan import header_path

__all__ = ["ADDRESS_ADVICE", "is_to_convert", "local_checkpoint", "orbax_to_zarr"]


def orbax_to_zarr(
    src: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    max_bytes: int | None = None,
    **options: Any,
) -> Summary:
    """Convert an Orbax checkpoint to a model store in Zarr.

    Every array becomes a tensor. Its name is Orbax's path in the tree, joined with dots, after the
    item's name and a slash if several items have arrays. The metadata ``bf16codecs.orbax`` has the
    rest of the checkpoint unchanged, so that `zarr_to_orbax` restores it. The conversion needs
    memory for one chunk of the checkpoint at a time, and free disk space beside the store for up to
    four decoded tensors.

    Parameters
    ----------
    src
        The folder of the checkpoint: with a `CheckpointManager`, that of one step.
    store
        The store to make: a folder, or a ZIP file if the name ends in ``.zip``. It appears only
        when it is complete.
    max_bytes
        The most bytes that the decoded arrays of the checkpoint may have. By default 1 GiB, or 256
        times the checkpoint's size if that is more.
    options
        Options of `bf16codecs.convert.safetensors_to_zarr`: `codec`, `level`, `chunk_size`,
        `threads`, `verify`, `overwrite` and others.

    Returns
    -------
    Summary

    Raises
    ------
    StoreError
        If `src` is not a checkpoint, is an address, or is unfinished, or an array has a data type
        that safetensors lacks.
    CorruptDataError
        If an array cannot be read.
    LimitError
        If the arrays are larger than `max_bytes` allows.
    FileExistsError
        If `store` exists and `overwrite` is false, or it is not a store.
    ValueError
        If the target is the checkpoint, in it, or contains it, or an option is invalid.
    """
    root = local_checkpoint(src)
    parent = absolute_target(given_path(store, "target"), []).parent
    limits = Limits(max_bytes)
    with closing(open_checkpoint(root, parent, limits)) as source:
        whole = f"{root}: its arrays"
        header = source.headers[0]
        nbytes = header.file_size - header.data_start
        limits.check(nbytes, lambda enough: disk_size(root), whole)
        if resolved(root) in (resolved(parent), *resolved(parent).parents):
            raise ValueError(f"{store}: would lie in the checkpoint, {root}: choose another folder")
        return convert_model(source, store, zarr_kind(store), Options(**options))


#: Advice about a checkpoint at an address.
ADDRESS_ADVICE = "Orbax checkpoints are not read from addresses: copy the checkpoint first"


def is_to_convert(src: str, dst: str) -> bool:
    """Return whether a path is a checkpoint to convert, rather than a store of one.

    Raises StoreError if it is neither, or is at an address and `dst` is named like a store.
    """
    path = path_of(given_path(src, "source"))
    if path is None:
        if suffix_of(dst.rstrip("/"))[1] in (Kind.FOLDER, Kind.ZIP):
            raise StoreError(f"{src}: {ADDRESS_ADVICE}")
        return False
    if is_orbax(path):
        return True
    kind = detect_given(path)
    if kind not in (Kind.FOLDER, Kind.ZIP) or _is_part(Path(path), kind):
        raise StoreError(f"{src}: {_other(Path(path))}")
    return False


def local_checkpoint(src: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a checkpoint; raise StoreError for an address or other paths."""
    path = path_of(given_path(src, "source"))
    if path is None:
        raise StoreError(f"{os.fspath(src)}: {ADDRESS_ADVICE}")
    root = Path(absolute(path))
    require_path(root)
    if root.is_dir() and not is_orbax(root):
        raise StoreError(f"{root}: {_other(root)}")
    return root


def _is_part(path: Path, kind: Kind | None) -> bool:
    """Return whether a path is an array of a checkpoint, or an item without arrays."""
    is_model = kind not in (None, Kind.FOLDER) or (path / header_path(0)).exists()
    return not is_model and parent_checkpoint(path) is not None


def _other(path: Path) -> str:
    """Return why a path is not a checkpoint, and what it is instead."""
    kind = detect(path)
    if _is_part(path, kind):
        checkpoint = parent_checkpoint(path)
        return f"no Orbax checkpoint, but a part of one, without a tree: name {checkpoint}"
    if kind is not None:
        restorer = restorer_of(kind)
        makes = f"{maker_of(Kind.FOLDER)} makes stores of it"
        does = f"{restorer} restores it" if restorer else makes
        return f"no Orbax checkpoint, but {kind.value}: {does}"
    if not path.is_dir():
        return "neither an Orbax checkpoint, which would be a folder, nor a Zarr store of one"
    why = f"it has no {' or '.join(MARKERS)}" if any(path.iterdir()) else "it is empty"
    return f"no Orbax checkpoint, and no Zarr store of one: {why}"
