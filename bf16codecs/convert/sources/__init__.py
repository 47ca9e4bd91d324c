"""Sources of conversions: models of any kind.

Safetensors is built in. Any other kind of source is a module in this folder, which needs no
registration. It has two functions: ``is_source(path: str) -> bool`` recognizes a path of its kind
by the name or the first bytes of the file, and ``open_source(path: str) -> ModelReader`` opens it,
usually as a `FilesReader` whose contents are `ReadBytes`.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

from bf16codecs._base.messages import named_errors
from bf16codecs._base.paths import given_path, missing_path, resolved
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import check_names_to_store
from bf16codecs.store.files import open_safetensors
from bf16codecs.store.kinds import Kind, detect, path_of, restorer_of, suffix_of
from bf16codecs.store.opening import split_step
from bf16codecs.store.reader import ModelReader

__all__ = ["left_out", "opened_source"]


def opened_source(src: str | os.PathLike[str], to_store: bool = False) -> ModelReader:
    """Open the source of a conversion; `to_store` refuses file names that stores cannot keep.

    Raises SafetensorsError if it is a store (the message says what to do), at an address, or
    damaged; OSError if a file cannot be read; ValueError if the path is empty.
    """
    text = given_path(src, "source")
    path = path_of(text)
    if path is None:
        raise SafetensorsError(
            f"{text}: an address: download it first, since SRC must be a file or a folder"
        )
    try:
        source = _opener(path)(path)
    except (SafetensorsError, FileNotFoundError) as e:
        kind = None
        with suppress(OSError):
            kind = detect(split_step(path)[0])
        # torch.save writes ZIP files with other names.
        is_store_name = kind is not Kind.ZIP or suffix_of(path)[1] is Kind.ZIP
        restorer = restorer_of(kind)
        if kind is not None and restorer and is_store_name:
            raise SafetensorsError(
                f"{text}: {kind.value}, not a safetensors model: {restorer} restores that"
            ) from e
        if isinstance(e, FileNotFoundError) and not os.path.lexists(path):
            raise missing_path(path) from e
        raise
    if to_store:
        check_names_to_store(source.paths)
    return source


def _opener(path: str) -> Callable[[str], ModelReader]:
    """Return the function that opens a path; by default, the one for safetensors."""
    for found in pkgutil.iter_modules(__path__):
        kind = import_module(f"{__name__}.{found.name}")
        if kind.is_source(path):
            return partial(_open_named, kind.open_source)
    return partial(open_safetensors, is_held=False)


def _open_named(open_source: Callable[[str], ModelReader], path: str) -> ModelReader:
    with named_errors(path, SafetensorsError):
        return open_source(path)


def left_out(sources: Sequence[ModelReader], target: Path) -> tuple[str, ...]:
    """List files beside sources that `target` lacks, with their folder if sources are several."""
    store, are_several = resolved(target), len(sources) > 1

    def names() -> Iterator[str]:
        for source in sources:
            for name in source.left_out:
                path = source.paths[0].parent / name
                if resolved(path) != store:
                    yield f"{path.parent.name}/{name}" if are_several else name

    return tuple(names())
