"""Text for people, in tables and with units, and JSON for programs."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import Any

from bf16codecs._base.cached import cached_property

__all__ = [
    "Column",
    "Layout",
    "format_rate",
    "format_size",
    "json_parts",
    "printable",
    "shortened",
    "table_lines",
]

_GAP = 2
# A name with less room than this gets a separate line.
_LEAST_NAME = 32
# Every terminal can show it.
_CUT = "..."
# How many numbers, names and signs of JSON are joined.
_TOKENS = 1 << 16
# Words of a name, and the signs between them.
_PARTS = re.compile(r"[^\W_]+|[\W_]+")


@dataclass(frozen=True)
class Column:
    """A column: its title, and how it gives way where room is short."""

    title: str
    #: Whether it is text, to the left; numbers are to the right, and never cut.
    is_text: bool = False
    #: Columns with the highest are left out first; those with 0 never are.
    rank: int = 0
    #: Room for cells that come later.
    least: int = 0


def shortened(text: str, width: int) -> str:
    """Return text of at most `width` cells, cut in its middle: tensors differ at the end."""
    if _cells(text) <= width:
        return text
    head, tail = "", ""
    for sign in text:
        if _cells(head + sign) > (width - len(_CUT)) // 3:
            break
        head += sign
    for sign in reversed(text):
        if _cells(head + sign + tail) > width - len(_CUT):
            break
        tail = sign + tail
    return f"{head}{_CUT}{tail}"


class _Node:
    """A node in a tree of name parts: sorted parts, and the node below each."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.following: dict[str, _Node] = {}


class _Names:
    """Names that are shortened so that they stay different, as far as there is room.

    Words are cut to a beginning that no other word at that level has, the first words first, and no
    more of them than necessary: ``m.layers.3.self_attn.o_proj.weight``. Words with numbers stay
    whole.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)

    @cached_property
    def _tree(self) -> _Node:
        """The tree of all names, built when the first one is shortened."""
        tree = _Node()
        # In the order of their parts, so that each node's are appended in order.
        for parts in sorted(map(_PARTS.findall, self._names)):
            node = tree
            for part in parts:
                if part not in node.following:
                    node.parts.append(part)
                    node.following[part] = _Node()
                node = node.following[part]
        return tree

    def fitted(self, name: str, width: int) -> str:
        """Return one of the names in at most `width` cells: without its middle if need be."""
        excess = _cells(name) - width
        if excess <= 0:
            return name
        parts = _PARTS.findall(name)
        node = self._tree
        for i, part in enumerate(parts):
            if excess <= 0 or part not in node.following:
                break
            parts[i] = self._brief(part, node.parts)
            excess -= _cells(part) - _cells(parts[i])
            node = node.following[part]
        return shortened("".join(parts), width)

    @staticmethod
    def _brief(part: str, others: list[str]) -> str:
        """Return the shortest beginning of a word that no other word at its level has."""
        if not part.isalpha():
            return part
        at = bisect_left(others, part)
        beside = others[max(0, at - 1) : at] + others[at + 1 : at + 2]
        same = [list(takewhile(lambda s: s[0] == s[1], zip(part, o, strict=False))) for o in beside]
        return part[: 1 + max(map(len, same), default=0)]


class Layout:
    """The layout of a table whose first column names the subject of each row.

    Where there is little room, names are shortened, and stay different as far as there is room,
    columns are left out, and at last names get separate lines, until the important numbers fit.

    Parameters
    ----------
    columns
        The first has names.
    rows
        Rows that are known before, which may be names alone.
    room
        Columns of the terminal; None to show everything.
    """

    def __init__(
        self, columns: Sequence[Column], rows: Iterable[Sequence[str]], room: int | None = None
    ) -> None:
        self._columns = columns
        self._widths = [max(_cells(c.title), c.least) for c in columns]
        known = [[printable(cell) for cell in row] for row in rows]
        for row in known:
            for i, cell in enumerate(row):
                self._widths[i] = max(self._widths[i], _cells(cell))
        self._names, self._longest = _Names(row[0] for row in known), self._widths[0]
        self._is_stacked = False
        self._shown = list(range(1, len(columns)))
        if room is not None:
            self._fit(room)

    def titles(self) -> list[str]:
        """Return the lines of the titles."""
        return self.lines([column.title for column in self._columns])

    def lines(self, cells: Sequence[str]) -> list[str]:
        """Return the lines of a row: one, or two if names have separate lines."""
        texts = [printable(cell) for cell in cells]
        name = self._names.fitted(texts[0], self._widths[0])
        parts = [self._padded(i, texts[i]) for i in self._shown]
        if self._is_stacked:
            lines = [name, " " * _GAP + (" " * _GAP).join(parts)]
        else:
            lines = [(" " * _GAP).join([self._padded(0, name), *parts])]
        return [line.rstrip() for line in lines]

    def left_out(self) -> list[str]:
        """Return what was left out: titles of columns, and ``"whole names"``."""
        names = [c.title for i, c in enumerate(self._columns) if i and i not in self._shown]
        if self._widths[0] < self._longest:
            names.insert(0, "whole names")
        return list(dict.fromkeys(names))

    def _fit(self, room: int) -> None:
        least = min(self._widths[0], _LEAST_NAME)
        others = self._leave_out(room - least - _GAP)
        if others <= room - least - _GAP:
            self._widths[0] = min(self._widths[0], room - others - _GAP)
            return
        self._is_stacked, self._shown = True, list(range(1, len(self._columns)))
        self._leave_out(room - _GAP)
        self._widths[0] = room

    def _leave_out(self, room: int) -> int:
        """Leave out columns until the others fit; return their width, whether they fit or not."""
        while True:
            taken = sum(self._widths[i] + _GAP for i in self._shown) - _GAP
            rank = max((self._columns[i].rank for i in self._shown), default=0)
            if taken <= room or rank == 0:
                return taken
            self._shown = [i for i in self._shown if self._columns[i].rank < rank]

    def _padded(self, i: int, cell: str) -> str:
        fill = " " * (self._widths[i] - _cells(cell))
        return cell + fill if i == 0 or self._columns[i].is_text else fill + cell


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], sums: Sequence[Sequence[str]] = ()
) -> Iterator[str]:
    """Yield the lines of a whole table, at full width, with sums below it."""
    layout = Layout(columns, [*rows, *sums])
    yield from layout.titles()
    for row in rows:
        yield from layout.lines(row)
    if sums:
        yield ""
    for row in sums:
        yield from layout.lines(row)


def _cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def printable(text: object) -> str:
    """Return text on one line, with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def format_size(nbytes: float) -> str:
    """Return a size in decimal units (1 MB is 1,000,000 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} TB"


def format_rate(nbytes: float, seconds: float) -> str:
    """Return a speed as text, such as 3.30 MB/s."""
    return f"{format_size(nbytes / max(seconds, 1e-9))}/s"


def json_parts(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of a JSON object, with a line feed; ValueError for numbers that JSON lacks.

    In one piece, that of thousands of tensors takes hundreds of megabytes.
    """
    tokens = json.JSONEncoder(indent=2, allow_nan=False).iterencode(document)
    tokens = chain(tokens, "\n")
    while part := "".join(islice(tokens, _TOKENS)):
        yield part
