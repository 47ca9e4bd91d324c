"""Which step of its run a checkpoint is, from its metadata or its name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bf16codecs._base.arguments import for_caller
from bf16codecs.convert.sources import opened_source
from bf16codecs.errors import SafetensorsError
from bf16codecs.store.reader import ModelReader

__all__ = ["StepTold", "ordered_steps", "series_of", "step_of", "step_told"]

_KEYS = ("step", "global_step", "iteration")
# The number is no part of a word, as in step_10k and step-4bit, and nothing between it and the next
# number makes one of both: 1,000 and 10,5, 100+50, 0.9999, a date, fairseq's checkpoint_1_500 (an
# epoch and an update), a range. Nor is it a percentage, or counts thousands, as in "10 k". There,
# the match has no number, and nothing else may tell the step. That of a shard is no match.
_NUMBER = (
    r"(?:([0-9]{1,19})"
    r"(?![^\W_]|[\W_]+(?:(?:of|to|and)[\W_]+)?\d|\s*%|[\W_]+[km](?![^\W_]))"
    r"|(?=\d)(?!\d+[-_ ]of[-_ ]\d))"
)
# What tells a step: the first of these that a name has, or that of its folder. Names of models have
# other numbers, as llama-3-8b; checkpoint1 is an epoch, of fairseq, and steps1 a folder of steps.
_PATTERNS = [
    re.compile(pattern + _NUMBER, re.IGNORECASE)
    for pattern in (
        r"(?<![A-Za-z])(?:(?:global)?step|iter(?:ation)?|(?:checkpoint|ckpt)(?=[-_=. ]))"
        r"(?:s?[-_=. ])?",
        r"(?<![A-Za-z])epoch(?:s?[-_=. ])?",
        r"^(?=\d+(?:\.(?:zarr|zip|h5|hdf5|safetensors|index\.json))*$)",
    )
]
# What has a digit, in a message.
_WITH_DIGITS = re.compile(r"[A-Za-z0-9]*\d[A-Za-z0-9]*")


class StepTold(NamedTuple):
    """The number of a checkpoint's step, and where it was read; empty if the caller gave it."""

    number: int
    by: str = ""


def step_of(source: ModelReader, path: str | os.PathLike[str]) -> StepTold:
    """Return which step a checkpoint is.

    Its safetensors metadata have it as ``step``, ``global_step`` or ``iteration``. Where they have
    none of these, or an empty one, its name does, or that of its folder, behind a word that says
    so: ``model-step00600.safetensors``, ``checkpoint-600``. A name may be nothing but the number.

    Raises
    ------
    SafetensorsError
        If nothing tells, or it is not certain. Who guesses here gives a step a wrong number.
    """
    metadata = [header.metadata for header in source.headers]
    found = _all_told(metadata, path)
    number = _certain(found)
    if number is not None:
        return StepTold(number, found[0][1])
    if found and all(number is not None for number, _ in found):
        why = " or ".join(f"{number} by its {by}" for number, by in dict.fromkeys(found))
        why = f"which step is it? {why}"
    else:
        pairs = _noted(metadata)
        shown = [f"{text!r:.80} in its metadata {k!r}" for k, text in pairs if _read(text) is None]
        words = {name: _WITH_DIGITS.findall(name) for name in _names_in(os.fspath(path))}
        shown += [f"{', '.join(own)} in {name!r:.80}" for name, own in words.items() if own]
        why = "neither its name nor its metadata tell for certain which step it is"
        why += f" ({'; '.join(shown)})" if shown else ""
    raise SafetensorsError(
        f"{os.fspath(path)}: {why}: name it like model-step00600.safetensors, or"
        f" {for_caller('say it with step= or steps=', 'append it with --append --step N')}"
    )


def step_told(metadata: Iterable[Mapping[str, str]], path: str | os.PathLike[str]) -> int | None:
    """Return the number of a checkpoint's step: see `step_of`; None if it is not certain.

    Parameters
    ----------
    metadata
        The ``__metadata__`` of its files.
    path
        Where it is: a path or an address.
    """
    return _certain(_all_told(metadata, path))


def _certain(found: Iterable[tuple[int | None, str]]) -> int | None:
    """Return the number that all of what tells a step agrees on; None if there is no such."""
    numbers = {number for number, _ in found}
    return numbers.pop() if len(numbers) == 1 else None


def _all_told(
    metadata: Iterable[Mapping[str, str]], path: str | os.PathLike[str]
) -> list[tuple[int | None, str]]:
    """Return what tells the step, of the kind that goes first, and where.

    None stands for what is there to tell one, and cannot be read for certain.
    """
    found = [(_read(text), f"metadata {key!r}") for key, text in _noted(metadata)]
    names = _names_in(os.fspath(path))
    for pattern in _PATTERNS:
        found = found or [
            (_read(match[1]), f"name {name!r:.80}")
            for name in names
            for match in pattern.finditer(name)
        ]
    return found


def _noted(metadata: Iterable[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return the keys for a step in metadata, and their values; an empty one says nothing."""
    pairs = [(key, own.get(key, "")) for own in metadata for key in _KEYS]
    return [(key, text) for key, text in pairs if text.strip()]


def _read(text: str | None) -> int | None:
    if text is None or not (text.isdecimal() and text.isascii() and len(text) <= 19):
        return None
    return int(text) if int(text) < 2**63 else None


def series_of(name: str) -> tuple[str, int] | None:
    """Return what the names of a series of checkpoints have in common, and the step of this one.

    None if the name tells no step for certain.

    Examples
    --------
    >>> series_of("run2-step-600.zarr")
    ('run2-step-#.zarr', 600)
    """
    found = next(filter(None, (list(pattern.finditer(name)) for pattern in _PATTERNS)), [])
    number = _certain((_read(match[1]), name) for match in found)
    if number is None:
        return None
    start, stop = found[-1].span(1)
    return f"{name[:start]}#{name[stop:]}", number


def _names_in(path: str) -> list[str]:
    """Return the name of a file, and that of its folder; of an address, not its host."""
    _, is_address, place = path.partition("://")
    parts = place.rstrip("/").split("/")[1:] if is_address else Path(os.path.abspath(path)).parts
    return [part.removesuffix(".safetensors") for part in reversed(parts[-2:])]


def ordered_steps(
    paths: Iterable[str | os.PathLike[str]], given: Sequence[int] | None = None
) -> list[tuple[int, ModelReader]]:
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
        If two have the same step, or one's is not certain.
    """
    found: dict[int, tuple[ModelReader, str]] = {}
    for i, path in enumerate(paths):
        source = opened_source(path, to_store=True)
        number = step_of(source, path).number if given is None else given[i]
        if number in found:
            raise SafetensorsError(
                f"{os.fspath(path)}: is step {number}, and so is {found[number][1]}"
            )
        found[number] = source, os.fspath(path)
    return [(number, found[number][0]) for number in sorted(found)]
