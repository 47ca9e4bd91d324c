"""Plan the conversion of all models below folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bf16codecs._base.paths import absolute, given_path, require_folder_of
from bf16codecs.convert.fleet.families import with_bases
from bf16codecs.convert.fleet.finding import find_models
from bf16codecs.convert.fleet.plan import Conversion
from bf16codecs.errors import StoreError
from bf16codecs.store.bases import identity
from bf16codecs.store.kinds import path_of

__all__ = ["plan_fleet"]


def plan_fleet(
    sources: Iterable[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    find_bases: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Conversion]:
    """Plan the conversion of all models that are found.

    Parameters
    ----------
    sources
        Models, as for `safetensors_to_zarr`, and folders of models, whose subfolders are searched.
        Folders may be in object stores.
    target
        The folder of the stores, at a path or in an object store; it is made. A model at
        ``llama/8b`` below its folder becomes the store ``llama/8b.zarr``.
    base
        A base for all of them.
    find_bases
        Let models that come from one another, such as fine-tunes, have one of them as base. They
        are found by a sample of 40 KB of each.
    storage_options
        Options of the file system of sources at addresses.

    Returns
    -------
    list of Conversion
        In the order of the sources, and of paths below them.

    Raises
    ------
    OSError
        If nothing is at a path, or the folder that `target` lies in does not exist.
    StoreError
        If there is no model below a folder.
    """
    target = given_path(target, "target").rstrip("/") or "/"
    if (folder := path_of(target)) is not None:
        require_folder_of(Path(absolute(folder)))
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder for stores", folder)
    found: dict[str, Conversion] = {}
    for source in sources:
        models = list(find_models(given_path(source, "source"), storage_options))
        if not models:
            raise StoreError(
                f"{os.fspath(source)}: no model is in this folder, or below it; stores are left out"
            )
        for path, name in models:
            conversion = Conversion(path, f"{target}/{name}.zarr", os.fspath(base or ""))
            found.setdefault(identity(path), conversion)
    conversions = list(found.values())
    return with_bases(conversions, storage_options) if find_bases else conversions
