"""Safetensors models as callers of conversions name them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bf16codecs._base.paths import given_path, resolved
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import check_names_to_store
from bf16codecs.store.addresses import path_of
from bf16codecs.store.files import FilesReader, open_safetensors
from bf16codecs.store.kinds import RESTORERS, detect
from bf16codecs.store.opening import split_step
from bf16codecs.store.reader import StoreReader

__all__ = ["left_out", "opened_source", "unheld_source"]


def opened_source(src: str | os.PathLike[str], to_store: bool = False) -> FilesReader:
    """Open a safetensors model, and say of anything else what to do with it.

    Parameters
    ----------
    src
        Its path.
    to_store
        Refuse files with names that stores do not keep.

    Raises
    ------
    SafetensorsError
        If it is a store, or at an address, or damaged.
    OSError
        If a file cannot be read.
    ValueError
        If the path is empty.
    """
    text = given_path(src, "source")
    path = path_of(text)
    if path is None:
        raise SafetensorsError(f"{text}: an address: download it first, SRC is a file or a folder")
    try:
        source = open_safetensors(path)
    except (SafetensorsError, FileNotFoundError) as e:
        kind = None
        with suppress(OSError):
            kind = detect(split_step(path)[0])
        if kind in RESTORERS:
            raise SafetensorsError(
                f"{text}: {kind.value}, not a safetensors model: {RESTORERS[kind]} restores that"
            ) from e
        raise
    if to_store:
        check_names_to_store(source.paths)
    return source


def unheld_source(src: str | os.PathLike[str], to_store: bool = False) -> FilesReader:
    """Open one of several models: until it is read, it takes no descriptor of a file.

    Parameters and errors are those of `opened_source`.
    """
    source = opened_source(src, to_store)
    source.close()
    return source


def left_out(sources: Sequence[StoreReader], target: Path) -> tuple[str, ...]:
    """Return what else is in the folders of models, but for the store that was made of them.

    Of several, names have their folder's in front.
    """
    own, are_several = resolved(target), len(sources) > 1

    def names() -> Iterator[str]:
        for source in sources:
            for name in source.left_out:
                path = source.paths[0].parent / name
                if resolved(path) != own:
                    yield f"{path.parent.name}/{name}" if are_several else name

    return tuple(names())
