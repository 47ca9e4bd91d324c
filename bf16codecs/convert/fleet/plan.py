"""The plan of a fleet's conversion: which model becomes which store. People may change it."""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bf16codecs._base.arguments import for_caller
from bf16codecs._base.messages import few
from bf16codecs._base.paths import absolute
from bf16codecs.convert.options import AUTO
from bf16codecs.store.bases import identity
from bf16codecs.store.kinds import path_of

__all__ = [
    "Conversion",
    "check_plan",
    "in_rounds",
    "parse_plan",
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


def check_plan(conversions: Iterable[Conversion]) -> None:
    """Raise ValueError if two models would become the same store, or the order would matter."""
    by_store: defaultdict[str, list[str]] = defaultdict(list)
    for conversion in conversions:
        by_store[identity(conversion.store)].append(conversion.source)
    for store, sources in by_store.items():
        if len(sources) > 1:
            raise ValueError(
                f"{few(sources, _SHOWN)} would become one store, {store}: rename it in a plan"
                f" ({for_caller('plan_text, parse_plan', '--plan FILE')})"
            )
    for store in by_store:
        parts = store.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        if (outer := next((each for each in above if each in by_store), None)) is not None:
            raise ValueError(f"{store}: would lie in another store of the plan, {outer}")
    folders = {os.path.dirname(store) for store in by_store}
    for each in conversions:
        folder = each.base.removeprefix(AUTO)
        if each.base != folder and identity(folder) in folders:
            find = for_caller("find_bases=True", "--find-bases")
            raise ValueError(
                f"{each.base}: stores of this plan are made there, one after the other: let their"
                f" bases be found before ({find})"
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

    Columns may be in any order, and there may be others; spreadsheets separate them by commas,
    semicolons or tabs. Raises ValueError if it is not a plan, or has no models, or two of them
    would become the same store.
    """
    text = text.removeprefix("\ufeff")
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    rows = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    found = []
    try:
        names = [name.strip().lower() for name in next(rows, [])]
        if not {"source", "store"} <= set(names):
            raise ValueError(f"its first line does not name the columns {', '.join(_COLUMNS)}")
        for row in rows:
            cells = dict(zip(names, row, strict=False))
            if not any(cell.strip() for cell in row):
                continue
            chosen = {name: cells.get(name, "") for name in _COLUMNS}
            if not (chosen["source"].strip() and chosen["store"].strip()):
                raise ValueError("a source and a store are needed")
            found.append(Conversion(**chosen))
        if not found:
            raise ValueError("it has no models")
    except (csv.Error, ValueError) as e:
        raise ValueError(f"{where}: not a plan: line {rows.line_num}: {e}") from None
    check_plan(found)
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
