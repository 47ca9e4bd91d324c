"""Which step of its run a checkpoint is, from its metadata or its name, and which is of none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bf16codecs._arguments import for_caller
from bf16codecs.convert.sources import opened_source
from bf16codecs.errors import SafetensorsError, StoreError
from bf16codecs.safetensors import Source, open_to_store

__all__ = ["check_common", "ordered_steps", "series_of", "step_of", "step_told"]

_KEYS = ("step", "global_step", "iteration")
_NAMED = re.compile(
    r"(?:step|iter(?:ation)?|checkpoint|ckpt|epoch)s?[-_=.]?(\d{1,18})", re.IGNORECASE
)
# Not those of fp32, or of model-00001-of-00002.
_ALONE = re.compile(r"(?<![A-Za-z0-9])(\d{1,18})(?![A-Za-z0-9])")
_SHARD = re.compile(r"\d+-of-\d+")


def step_of(source: Source, path: str | os.PathLike[str]) -> int:
    """Return the number of a checkpoint's step.

    Its safetensors metadata have it as ``step``, ``global_step`` or ``iteration``; else its name
    does, or that of its folder: ``model-step00600.safetensors``, ``checkpoint-600``.

    Raises
    ------
    SafetensorsError
        If nothing tells.
    """
    found = step_told((file.header.metadata for file in source.files), path)
    if found is not None:
        return found
    raise SafetensorsError(
        f"{os.fspath(path)}: neither its name nor its metadata tell which step it is:"
        " name it like model-step00600.safetensors, or"
        f" {for_caller('say it with step= or steps=', 'append it with st2zarr --append --step N')}"
    )


def step_told(metadata: Iterable[Mapping[str, str]], path: str | os.PathLike[str]) -> int | None:
    """Return the number of a checkpoint's step: see `step_of`; None if nothing tells.

    Parameters
    ----------
    metadata
        The ``__metadata__`` of its files.
    path
        Where it is: a path or an address.
    """
    for own in metadata:
        for key in _KEYS:
            text = own.get(key, "")
            if text.isdecimal() and text.isascii() and len(text) <= 18:
                return int(text)
    found = map(_step_in, _names_in(os.fspath(path)))
    return next((number for number in found if number is not None), None)


def _step_in(name: str) -> int | None:
    """Return the number of the step that a name tells, if it tells one."""
    series = series_of(name)
    return None if series is None else series[1]


def series_of(name: str) -> tuple[str, int] | None:
    """Return what the names of a series of checkpoints have in common, and the step of this one.

    None if the name tells no step.

    Examples
    --------
    >>> series_of("run2-step-600.zarr")
    ('run2-step-#.zarr', 600)
    """
    name = _SHARD.sub("", name)
    found = list(_NAMED.finditer(name)) or list(_ALONE.finditer(name))
    if not found:
        return None
    start, stop = found[-1].span(1)
    return f"{name[:start]}#{name[stop:]}", int(found[-1][1])


def _names_in(path: str) -> list[str]:
    """Return the name of a file, and that of its folder; of an address, not its host."""
    _, is_address, place = path.partition("://")
    parts = place.rstrip("/").split("/")[1:] if is_address else Path(os.path.abspath(path)).parts
    return [part.removesuffix(".safetensors") for part in reversed(parts[-2:])]


def ordered_steps(
    paths: Iterable[str | os.PathLike[str]], given: Sequence[int] | None = None
) -> list[tuple[int, Source]]:
    """Open checkpoints, and return them with their steps, ascending.

    Parameters
    ----------
    paths
        Files, folders of shards, or their indexes.
    given
        Their steps, if they are not to be looked for.

    Raises
    ------
    SafetensorsError
        If two have the same step, or one has none.
    """
    found: dict[int, tuple[Source, str]] = {}
    for i, path in enumerate(paths):
        source = opened_source(path, open_to_store)
        number = step_of(source, path) if given is None else given[i]
        if number in found:
            raise SafetensorsError(
                f"{os.fspath(path)}: is step {number}, and so is {found[number][1]}"
            )
        found[number] = source, os.fspath(path)
    return [(number, found[number][0]) for number in sorted(found)]


def check_common(checkpoints: Sequence[tuple[int, Source]]) -> None:
    """Refuse a series with a stranger in it: name two, since either may be the one.

    Raises
    ------
    StoreError
        If one has no tensor in common with those before it.
    """
    known: set[tuple[str, tuple[int, ...]]] = set()
    before: Path | None = None
    for _, source in checkpoints:
        tensors = {(t.name, t.shape) for file in source.files for t in file.header.tensors}
        path = source.paths[-1]
        if before is not None and tensors and known.isdisjoint(tensors):
            raise StoreError(
                f"{path}: has no tensor in common with {before}, which is of an earlier step, none"
                " of the same name and shape: leave out the one that is not of the run"
            )
        known, before = known | tensors, path
