"""Tables on standard output, as wide as the terminal is."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from bf16codecs.cli.console import printable, show

__all__ = ["Column", "Table", "print_table", "shortened"]

_GAP = 2
# Of a name, below which it gets a line of its own: what is left of
# "model.layers.10.self_attn.q_proj.weight" has to tell its layer.
_LEAST_NAME = 32
# Every terminal can show it.
_CUT = "..."


@dataclass(frozen=True)
class Column:
    """A column: its title, and what becomes of it where there is no room for all."""

    title: str
    #: Whether it is text, to the left; numbers are to the right, and never cut.
    is_text: bool = False
    #: Columns with the highest are left out first; those with 0 never are.
    rank: int = 0
    #: Room for cells that come later.
    least: int = 0


def shortened(text: str, width: int) -> str:
    """Return text of at most so many cells, without its middle: the end tells tensors apart."""
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


class Table:
    """A table whose first column says what a row is about.

    On a terminal, names are shortened, columns are left out, and at last names get lines of their
    own, until the numbers that matter fit. Elsewhere, all is shown.

    Parameters
    ----------
    columns
        The first has names.
    rows
        What is known when it begins, which may be names alone.
    """

    def __init__(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        self._columns = columns
        self._widths = [max(_cells(c.title), c.least) for c in columns]
        for row in rows:
            for i, cell in enumerate(row):
                self._widths[i] = max(self._widths[i], _cells(printable(cell)))
        self._is_stacked = False
        self._shown = list(range(1, len(columns)))
        if sys.stdout.isatty():
            self._fit(shutil.get_terminal_size().columns)
        self._print([column.title for column in columns], is_bold=True)

    def row(self, cells: Sequence[str]) -> None:
        """Print a row."""
        self._print([printable(cell) for cell in cells])

    def end(self) -> None:
        """Say what there was no room for."""
        names = [c.title for i, c in enumerate(self._columns) if i and i not in self._shown]
        if names:
            show(f"Too wide for this terminal: {', '.join(dict.fromkeys(names))}; a pipe gets all.")

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
        """Leave out columns until the others fit; return what they take, fit or not."""
        while True:
            taken = sum(self._widths[i] + _GAP for i in self._shown) - _GAP
            rank = max((self._columns[i].rank for i in self._shown), default=0)
            if taken <= room or rank == 0:
                return taken
            self._shown = [i for i in self._shown if self._columns[i].rank < rank]

    def _print(self, cells: Sequence[str], is_bold: bool = False) -> None:
        name = shortened(cells[0], self._widths[0])
        parts = [self._padded(i, cells[i]) for i in self._shown]
        if self._is_stacked:
            lines = [name, " " * _GAP + (" " * _GAP).join(parts)]
        else:
            lines = [(" " * _GAP).join([self._padded(0, name), *parts])]
        for line in lines:
            show(click.style(line.rstrip(), bold=True) if is_bold else line.rstrip())

    def _padded(self, i: int, cell: str) -> str:
        fill = " " * (self._widths[i] - _cells(cell))
        return cell + fill if i == 0 or self._columns[i].is_text else fill + cell


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], sums: Sequence[Sequence[str]] = ()
) -> None:
    """Print a table of which all rows are known, with sums below it."""
    table = Table(columns, [*rows, *sums])
    for row in rows:
        table.row(row)
    if sums:
        show("")
    for row in sums:
        table.row(row)
    table.end()


def _cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
