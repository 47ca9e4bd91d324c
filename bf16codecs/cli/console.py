"""Printing: sizes, lines, and a progress bar on terminals."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import click

from bf16codecs._base.tables import format_rate, format_size, json_parts, printable

__all__ = [
    "format_rate",
    "format_size",
    "prepare_streams",
    "printable",
    "progress_bar",
    "say",
    "show",
    "show_json",
    "silence_standard_output",
]


# What shells make of the signal SIGPIPE, which ends programs that nobody reads any more.
_CLOSED = 128 + 13
# Columns of a terminal, from which on there is room for a bar.
_WIDE = 60


def prepare_streams() -> None:
    """Let standard streams take everything: those that are closed, and those of few characters.

    Under some daemons, they are closed: a null device stands in for them. And what a command has
    done, it must not tell as failed because a terminal cannot show a name.
    """
    # Otherwise files that are opened next, the target among them, could get the numbers to which
    # libraries write what they have to say.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error has it


@contextmanager
def _standard_output() -> Iterator[None]:
    """Name it in errors: a disk that is full may be another one than the target's."""
    try:
        yield
    except OSError as e:
        silence_standard_output()
        if e.errno == errno.EPIPE:
            sys.exit(_CLOSED)  # as `head` does, who has seen enough: nothing to tell
        e.filename = "standard output"
        raise


def silence_standard_output() -> None:
    """Let nothing more be written there that could not be written."""
    # At exit, Python would write once more what is left to be written, and tell of that error.
    with suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def show(line: str) -> None:
    """Print a line on standard output."""
    with _standard_output():
        click.echo(line)


def say(sentence: str) -> None:
    """Print a sentence on standard output: on a terminal, wrapped at words."""
    lines = [sentence]
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        # Paths and digests are copied: they stay in one piece.
        wrapper = textwrap.TextWrapper(
            width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        lines = wrapper.wrap(sentence)
    show("\n".join(lines))


def show_json(document: Mapping[str, Any]) -> None:
    """Print a JSON object on standard output."""
    with _standard_output():
        for part in json_parts(document):
            click.echo(part, nl=False)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a function that shows progress, or None if quiet or not on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    columns, has_bar = _progress_columns(console.width), console.width >= _WIDE
    with Progress(*columns, console=console, transient=True, expand=has_bar) as bar:
        tasks = {}

        def update(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total)
            bar.update(tasks[phase], completed=done)

        yield update


def _progress_columns(width: int) -> list[Any]:
    """Return what fits on one line: text takes 42 columns at most, and 30 without the rate."""
    from rich import progress
    from rich.table import Column

    def whole() -> Column:
        return Column(no_wrap=True)

    return [
        progress.TextColumn("{task.description}", table_column=whole()),
        *([progress.BarColumn(None, table_column=Column(ratio=1))] if width >= _WIDE else []),
        progress.DownloadColumn(table_column=whole()),
        *([progress.TransferSpeedColumn(table_column=whole())] if width >= 50 else []),
        progress.TimeRemainingColumn(table_column=whole()),
    ]
