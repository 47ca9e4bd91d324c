"""Print tables that fit the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence

import click

from bf16codecs._base.tables import Column, Layout
from bf16codecs.cli.console import say, show

__all__ = ["Table", "print_table"]


class Table:
    """A table that is printed row by row.

    On a terminal, `Layout` fits it to the width; elsewhere, all columns are printed.

    Parameters
    ----------
    columns
        The columns; the first one has names.
    rows
        Cells that are known in advance, possibly only the names.
    """

    def __init__(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        self._layout = Layout(columns, rows, room)
        for line in self._layout.titles():
            show(click.style(line, bold=True))

    def row(self, cells: Sequence[str]) -> None:
        """Print a row."""
        for line in self._layout.lines(cells):
            show(line)

    def end(self) -> None:
        """Name the columns that did not fit."""
        if names := self._layout.left_out():
            say(f"Too wide for this terminal: {', '.join(names)}; a pipe gets all.")


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], sums: Sequence[Sequence[str]] = ()
) -> None:
    """Print a table, with sums below it."""
    table = Table(columns, [*rows, *sums])
    for row in rows:
        table.row(row)
    if sums:
        show("")
    for row in sums:
        table.row(row)
    table.end()
