"""What the commands print: sizes, tables, and a progress bar on terminals."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

__all__ = [
    "format_rate",
    "format_size",
    "open_closed_streams",
    "print_table",
    "printable",
    "progress_bar",
    "show",
]

# Wider than any table: piped output must not be cut at a terminal's width.
_UNLIMITED = 10_000


def open_closed_streams() -> None:
    """Let a null device stand in for standard streams that are closed, as under some daemons."""
    # Otherwise files that are opened next, the target among them, could get the numbers to which
    # libraries write what they have to say.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


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
    """Return a rate."""
    return f"{format_size(nbytes / max(seconds, 1e-9))}/s"


@contextmanager
def _standard_output() -> Iterator[None]:
    """Name it in errors: a disk that is full may be another one than the target's."""
    try:
        yield
    except OSError as e:
        e.filename = "standard output"
        # At exit, Python would write once more what is left to be written, and tell of that error.
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise


def show(line: str) -> None:
    """Print a line on standard output."""
    with _standard_output():
        click.echo(line)


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], total: Sequence[str] | None = None
) -> None:
    """Print a table on standard output: text columns to the left, numbers to the right."""
    console = Console(width=None if sys.stdout.isatty() else _UNLIMITED, highlight=False)
    table = Table(box=None, pad_edge=False, show_footer=total is not None)
    for i, name in enumerate(header):
        left = i == 0 or name in ("shape", "dtype", "codec", "round trip")
        table.add_column(
            name,
            justify="left" if left else "right",
            no_wrap=True,
            footer=Text(total[i]) if total is not None else "",
        )
    for row in rows:
        # Text, since square brackets in a tensor's name are not markup.
        table.add_row(*(Text(printable(cell)) for cell in row))
    with _standard_output():
        console.print(table)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a function that shows progress, or None if quiet or not on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def update(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total)
            bar.update(tasks[phase], completed=done)

        yield update
