"""Find the step number of a checkpoint in its metadata or its name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bf16codecs._base.arguments import for_caller
from bf16codecs.convert.sources import opened_source
from bf16codecs.errors import SafetensorsError
from bf16codecs.store.reader import ModelReader

__all__ = ["StepNumber", "find_number", "ordered_steps", "series_of", "step_of"]

_KEYS = ("step", "global_step", "iteration")
# The number is not part of a word, as in step_10k and step-4bit, and does not join with a following
# one: 1,000 and 10,5, 100+50, 0.9999, a date, fairseq's checkpoint_1_500 (an epoch and an update),
# a range. Nor is it a percentage or a count of thousands, as in "10 k". In these cases the match
# has no number, which makes the step ambiguous. The number of a shard does not match.
_NUMBER = (
    r"(?:([0-9]{1,19})"
    r"(?![^\W_]|[\W_]+(?:(?:of|to|and)[\W_]+)?\d|\s*%|[\W_]+[km](?![^\W_]))"
    r"|(?=\d)(?!\d+[-_ ]of[-_ ]\d))"
)
# Words before a step's number; the first pattern that the name, or that of its folder, contains
# counts. Names of models have other numbers, as llama-3-8b; checkpoint1 is an epoch of fairseq, and
# steps1 a folder of steps.
_PATTERNS = [
    re.compile(pattern + _NUMBER, re.IGNORECASE)
    for pattern in (
        r"(?<![A-Za-z])(?:(?:global)?step|iter(?:ation)?|(?:checkpoint|ckpt)(?=[-_=. ]))"
        r"(?:s?[-_=. ])?",
        r"(?<![A-Za-z])epoch(?:s?[-_=. ])?",
        r"^(?=\d+(?:\.(?:zarr|zip|h5|hdf5|safetensors|index\.json))*$)",
    )
]
# Words with a digit, for messages.
_WITH_DIGITS = re.compile(r"[A-Za-z0-9]*\d[A-Za-z0-9]*")


class StepNumber(NamedTuple):
    """The number of a checkpoint's step, and its origin; empty if the caller gave it."""

    value: int
    origin: str = ""


def step_of(source: ModelReader, path: str | os.PathLike[str]) -> StepNumber:
    """Return a checkpoint's step number; raise SafetensorsError if it is missing or ambiguous.

    Its safetensors metadata have it as ``step``, ``global_step`` or ``iteration``. If these are
    missing or empty, its name or that of its folder has the number behind a word, as in
    ``model-step00600.safetensors`` and ``checkpoint-600``, or is the number itself.
    """
    metadata = [header.metadata for header in source.headers]
    found = _numbers_in(metadata, path)
    number = _unanimous(found)
    if number is not None:
        return StepNumber(number, found[0][1])
    if found and all(number is not None for number, _ in found):
        why = " or ".join(f"{number} by its {origin}" for number, origin in dict.fromkeys(found))
        why = f"which step is it? {why}"
    else:
        pairs = _entries(metadata)
        shown = [f"{text!r:.80} in its metadata {k!r}" for k, text in pairs if _read(text) is None]
        for name in _names_in(os.fspath(path)):
            if words := _WITH_DIGITS.findall(name):
                shown.append(f"{', '.join(words)} in {name!r:.80}")
        why = "its step is not certain from its name or its metadata"
        why += f" ({'; '.join(shown)})" if shown else ""
    raise SafetensorsError(
        f"{os.fspath(path)}: {why}: name it like model-step00600.safetensors, or"
        f" {for_caller('give it with step= or steps=', 'append it with --append --step N')}"
    )


def find_number(metadata: Iterable[Mapping[str, str]], path: str | os.PathLike[str]) -> int | None:
    """Find a step as `step_of` does, in files' ``__metadata__`` or a path; None if not certain."""
    return _unanimous(_numbers_in(metadata, path))


def _unanimous(found: Iterable[tuple[int | None, str]]) -> int | None:
    """Return the number that all findings agree on; None if there is none."""
    numbers = {number for number, _ in found}
    return numbers.pop() if len(numbers) == 1 else None


def _numbers_in(
    metadata: Iterable[Mapping[str, str]], path: str | os.PathLike[str]
) -> list[tuple[int | None, str]]:
    """Return step numbers in metadata, or else in names, and their origins; None if ambiguous."""
    found = [(_read(text), f"metadata {key!r}") for key, text in _entries(metadata)]
    names = _names_in(os.fspath(path))
    for pattern in _PATTERNS:
        found = found or [
            (_read(match[1]), f"name {name!r:.80}")
            for name in names
            for match in pattern.finditer(name)
        ]
    return found


def _entries(metadata: Iterable[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return the keys for a step in metadata, with their values unless empty."""
    pairs = [(key, of_file.get(key, "")) for of_file in metadata for key in _KEYS]
    return [(key, text) for key, text in pairs if text.strip()]


def _read(text: str | None) -> int | None:
    if text is None or not (text.isdecimal() and text.isascii() and len(text) <= 19):
        return None
    return int(text) if int(text) < 2**63 else None


def series_of(name: str) -> tuple[str, int] | None:
    """Return the pattern of a series' names, and the step number; None unless that is certain.

    Examples
    --------
    >>> series_of("run2-step-600.zarr")
    ('run2-step-#.zarr', 600)
    """
    found = next(filter(None, (list(pattern.finditer(name)) for pattern in _PATTERNS)), [])
    number = _unanimous((_read(match[1]), name) for match in found)
    if number is None:
        return None
    start, stop = found[-1].span(1)
    return f"{name[:start]}#{name[stop:]}", number


def _names_in(path: str) -> list[str]:
    """Return the names of a file and its folder; the host of an address is not one."""
    _, is_address, rest = path.partition("://")
    parts = rest.rstrip("/").split("/")[1:] if is_address else Path(os.path.abspath(path)).parts
    return [part.removesuffix(".safetensors") for part in reversed(parts[-2:])]


def ordered_steps(
    paths: Iterable[str | os.PathLike[str]],
    given: Sequence[int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[tuple[int, ModelReader]]:
    """Open checkpoints, and return them with their step numbers, ascending.

    `step_of` finds steps if none are `given`. `storage_options` are for addresses. Raises
    SafetensorsError if two are equal or unclear.
    """
    found: dict[int, tuple[ModelReader, str]] = {}
    for i, path in enumerate(paths):
        source = opened_source(path, to_store=True, options=storage_options)
        number = step_of(source, path).value if given is None else given[i]
        if number in found:
            other = found[number][1]
            why = f"is step {number}, and so is {other}"
            if os.path.realpath(path) == os.path.realpath(other):
                why = f"is named twice, as step {number}: leave one of them out"
            raise SafetensorsError(f"{os.fspath(path)}: {why}")
        found[number] = source, os.fspath(path)
    return [(number, found[number][0]) for number in sorted(found)]
