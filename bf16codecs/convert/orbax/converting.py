"""Orbax checkpoints to model stores."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from bf16codecs._base.limits import Limits
from bf16codecs._base.paths import absolute, given_path, resolved
from bf16codecs._files.reading import disk_size
from bf16codecs.convert.options import Options
from bf16codecs.convert.orbax.choosing import local_checkpoint
from bf16codecs.convert.orbax.source import open_checkpoint
from bf16codecs.convert.store import convert_model, zarr_kind
from bf16codecs.convert.summary import Summary

__all__ = ["orbax_to_zarr"]


def orbax_to_zarr(
    src: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    max_bytes: int | None = None,
    **options: Any,
) -> Summary:
    """Convert an Orbax checkpoint to a model store in Zarr.

    Every array becomes a tensor, whose name is the path in the tree, joined with dots, as Orbax
    has it; where several items have arrays, with the item's name and a slash before it. Everything
    else that the checkpoint has is kept as it is, in the metadata ``bf16codecs.orbax``:
    `zarr_to_orbax` restores it. Memory is needed for one chunk of the checkpoint at a time, and
    some free disk beside the store for up to four decoded tensors.

    Parameters
    ----------
    src
        The checkpoint's folder: of those of a `CheckpointManager`, that of one step.
    store
        The store to make: a folder, or a ZIP file if the name ends in ``.zip``. It appears only
        when it is complete.
    max_bytes
        The most bytes that the checkpoint's arrays may have once decoded. By default 1 GiB, or 256
        times the checkpoint's size if that is more.
    options
        `codec`, `level`, `chunk_size`, `threads`, `verify`, `overwrite` and others, as
        `bf16codecs.convert.safetensors_to_zarr` takes them.

    Returns
    -------
    Summary

    Raises
    ------
    StoreError
        If `src` is no checkpoint, or at an address, or is unfinished, or an array has a data type
        that safetensors lacks.
    CorruptDataError
        If an array cannot be read.
    LimitError
        If the arrays are larger than `max_bytes` allows.
    FileExistsError
        If `store` exists and `overwrite` is false, or it is not a store.
    ValueError
        If the target is the checkpoint, in it, or around it, or an option makes no sense.
    """
    root = local_checkpoint(src)
    parent = Path(absolute(given_path(store, "target"))).parent
    limits = Limits(max_bytes)
    with closing(open_checkpoint(root, parent, limits)) as source:
        whole = f"{root}: its arrays"
        header = source.headers[0]
        nbytes = header.file_size - header.data_start
        limits.check(nbytes, lambda enough: disk_size(root), whole)
        if resolved(root) in (resolved(parent), *resolved(parent).parents):
            raise ValueError(f"{store}: would lie in the checkpoint, {root}: choose another place")
        return convert_model(source, store, zarr_kind(store), Options(**options))
