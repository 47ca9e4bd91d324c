"""Safetensors models as callers of conversions name them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bf16codecs._base.paths import given_path, resolved
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import Source, open_source
from bf16codecs.store.addresses import path_of
from bf16codecs.store.kinds import RESTORERS, detect
from bf16codecs.store.opening import split_step

__all__ = ["left_out", "opened_source"]


def opened_source(
    src: str | os.PathLike[str],
    open_path: Callable[[str], Source] = open_source,
) -> Source:
    """Open a safetensors model with `open_path`, and say of anything else what to do with it.

    Parameters, and other errors, are those of `open_source`.

    Raises
    ------
    SafetensorsError
        If it is a store, or at an address.
    """
    text = given_path(src, "source")
    path = path_of(text)
    if path is None:
        raise SafetensorsError(f"{text}: an address: download it first, SRC is a file or a folder")
    try:
        return open_path(path)
    except (SafetensorsError, FileNotFoundError) as e:
        kind = None
        with suppress(OSError):
            kind = detect(split_step(path)[0])
        if kind in RESTORERS:
            raise SafetensorsError(
                f"{text}: {kind.value}, not a safetensors model: {RESTORERS[kind]} restores that"
            ) from e
        raise


def left_out(sources: Sequence[Source], target: Path) -> tuple[str, ...]:
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
