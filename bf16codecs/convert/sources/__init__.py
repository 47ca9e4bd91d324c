"""Models as callers of conversions name them.

Each kind of source, safetensors apart, is a module of this folder, which is found because it is
here. It has two functions: ``is_source(path: str) -> bool`` tells by a file's name or first bytes
whether a path is of its kind, and ``open_source(path: str) -> ModelReader`` opens it. For most
kinds, that is a `FilesReader` whose contents are `ReadBytes`.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

from bf16codecs._base.paths import given_path, resolved
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import check_names_to_store
from bf16codecs.store.files import open_safetensors
from bf16codecs.store.kinds import RESTORERS, Kind, detect, path_of, suffix_of
from bf16codecs.store.opening import split_step
from bf16codecs.store.reader import ModelReader

__all__ = ["left_out", "opened_source"]


def opened_source(src: str | os.PathLike[str], to_store: bool = False) -> ModelReader:
    """Open a model, and say of what is none what to do with it.

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
        source = _opener(path)(path)
    except (SafetensorsError, FileNotFoundError) as e:
        kind = None
        with suppress(OSError):
            kind = detect(split_step(path)[0])
        is_named_so = (
            kind is not Kind.ZIP or suffix_of(path)[1] is Kind.ZIP
        )  # torch.save writes ZIP
        if kind in RESTORERS and is_named_so:
            raise SafetensorsError(
                f"{text}: {kind.value}, not a safetensors model: {RESTORERS[kind]} restores that"
            ) from e
        raise
    if to_store:
        check_names_to_store(source.paths)
    return source


def _opener(path: str) -> Callable[[str], ModelReader]:
    """Return what opens a path: safetensors takes what is of no other kind."""
    for found in pkgutil.iter_modules(__path__):
        kind = import_module(f"{__name__}.{found.name}")
        if kind.is_source(path):
            opener: Callable[[str], ModelReader] = kind.open_source
            return opener
    return partial(open_safetensors, is_held=False)


def left_out(sources: Sequence[ModelReader], target: Path) -> tuple[str, ...]:
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
