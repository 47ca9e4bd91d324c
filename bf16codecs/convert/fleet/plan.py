"""The plan of a fleet's conversion: which model becomes which store. People may change it."""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bf16codecs._base.messages import few
from bf16codecs._base.paths import absolute, given_path, require_folder_of
from bf16codecs.convert.base_search import AUTO
from bf16codecs.convert.fleet.finding import find_models
from bf16codecs.errors import StoreError
from bf16codecs.store.bases import identity
from bf16codecs.store.kinds import path_of

__all__ = [
    "Conversion",
    "in_rounds",
    "parse_plan",
    "plan_fleet",
    "plan_text",
    "with_absolute_paths",
]

_COLUMNS = ("source", "store", "base")
_SHOWN = 3


@dataclass(frozen=True)
class Conversion:
    """One model of a fleet: paths or addresses of the model, its store, and its base, if any."""

    source: str
    store: str
    base: str = ""


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
    FileNotFoundError
        If nothing is at a path, or the folder that `target` lies in does not exist.
    StoreError
        If there is no model below a folder.
    ValueError
        If two models would become the same store.
    """
    target = given_path(target, "target").rstrip("/") or "/"
    if (path := path_of(target)) is not None:
        require_folder_of(Path(absolute(path)))
    found = []
    for source in sources:
        models = list(find_models(given_path(source, "source"), storage_options))
        if not models:
            raise StoreError(f"{os.fspath(source)}: no model is in this folder, or below it")
        for path, name in models:
            found.append(Conversion(path, f"{target}/{name}.zarr", os.fspath(base or "")))
    _check(found)
    if find_bases:
        from bf16codecs.convert.fleet.families import with_bases

        return with_bases(found, storage_options)
    return found


def _check(conversions: Iterable[Conversion]) -> None:
    """Raise ValueError if two models would become the same store."""
    by_store: defaultdict[str, list[str]] = defaultdict(list)
    for conversion in conversions:
        by_store[identity(conversion.store)].append(conversion.source)
    for store, sources in by_store.items():
        if len(sources) > 1:
            raise ValueError(
                f"{store}: {few(sources, _SHOWN)} would all become this store: write a plan, and"
                " give them other names in it"
            )


def plan_text(conversions: Iterable[Conversion]) -> str:
    """Return a plan as CSV, with a line for each model."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    table.writerows((each.source, each.store, each.base) for each in conversions)
    return text.getvalue()


def parse_plan(text: str, where: str) -> list[Conversion]:
    """Return the conversions of a plan; `where` is its path, for messages.

    Raises ValueError if it is not a plan, or two models would become the same store.
    """
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    found = []
    try:
        if not {"source", "store"} <= set(rows.fieldnames or ()) <= set(_COLUMNS):
            raise ValueError(f"its first line is not {','.join(_COLUMNS)}")
        for row in rows:
            cells = {name: (cell or "").strip() for name, cell in row.items() if name is not None}
            if None in row or not (cells["source"] and cells["store"]):
                raise ValueError(f"line {rows.line_num}: not a source, a store, and a base or none")
            found.append(Conversion(**cells))
    except (csv.Error, ValueError) as e:
        raise ValueError(f"{where}: not a plan: {e}") from None
    _check(found)
    return found


def with_absolute_paths(conversion: Conversion) -> Conversion:
    """Return a conversion for workers, which may have other working folders."""

    def absolute_place(text: str) -> str:
        start, text = (AUTO, text.removeprefix(AUTO)) if text.startswith(AUTO) else ("", text)
        path = path_of(text)
        return start + (absolute(path) if path else text)

    source, store, base = conversion.source, conversion.store, conversion.base
    return Conversion(absolute_place(source), absolute_place(store), absolute_place(base))


def in_rounds(conversions: Sequence[Conversion]) -> list[list[int]]:
    """Return the numbers of conversions in rounds: bases come before the stores that need them.

    Raises ValueError if stores need each other.
    """
    number_of = {identity(each.store): number for number, each in enumerate(conversions)}
    round_of: dict[int, int] = {}
    for number in range(len(conversions)):
        chain: list[int] = []
        current: int | None = number
        while current is not None and current not in round_of:
            if current in chain:
                names = [conversions[each].store for each in chain[chain.index(current) :]]
                raise ValueError(f"stores are bases of each other: {few(names, _SHOWN)}")
            chain.append(current)
            base = conversions[current].base
            is_named = base and not base.startswith(AUTO)
            current = number_of.get(identity(base)) if is_named else None
        before = -1 if current is None else round_of[current]
        for place, each in enumerate(reversed(chain), before + 1):
            round_of[each] = place
    rounds: list[list[int]] = [[] for _ in range(max(round_of.values(), default=-1) + 1)]
    for number, place in sorted(round_of.items()):
        rounds[place].append(number)
    return rounds
