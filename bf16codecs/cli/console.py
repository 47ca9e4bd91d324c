"""Print lines and JSON, and a progress bar on terminals."""

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

from bf16codecs._base.tables import json_parts

__all__ = [
    "prepare_streams",
    "progress_bar",
    "say",
    "show",
    "show_json",
    "silence_standard_output",
]


# Exit status of programs that SIGPIPE ends, because the reader of their output has gone.
_CLOSED = 128 + 13
# Least width of a terminal with a progress bar, in columns.
_WIDE = 60


def prepare_streams() -> None:
    """Make writing to standard streams safe, if they are closed or cannot encode a character.

    Some daemons close them: the null device stands in. And a command that has succeeded must not
    fail because a terminal cannot show a name.
    """
    # Otherwise the next files to be opened, such as the target, could get the descriptors that
    # libraries write their messages to.
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
    """Name standard output in errors: a full disk may be another one than the target's."""
    try:
        yield
    except OSError as e:
        silence_standard_output()
        if e.errno == errno.EPIPE:
            sys.exit(_CLOSED)  # the reader, such as `head`, has seen enough: no message
        e.filename = "standard output"
        raise


def silence_standard_output() -> None:
    """Drop what could not be written to standard output."""
    # At exit, Python would try once more to write it, and print that error.
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
        # Paths and digests stay in one piece, so that they can be copied.
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
    # Lines that are printed meanwhile go above the bar, unless they go into a pipe or a file.
    redirects = sys.stdout.isatty()
    with Progress(
        *columns, console=console, transient=True, expand=has_bar, redirect_stdout=redirects
    ) as bar:
        tasks = {}

        def update(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total)
            bar.update(tasks[phase], completed=done, total=total)

        yield update


def _progress_columns(width: int) -> list[Any]:
    """Return the columns that fit on one line: text takes at most 42, or 30 without the rate."""
    from rich import progress
    from rich.table import Column

    def unwrapped() -> Column:
        return Column(no_wrap=True)

    return [
        progress.TextColumn("{task.description}", table_column=unwrapped()),
        *([progress.BarColumn(None, table_column=Column(ratio=1))] if width >= _WIDE else []),
        progress.DownloadColumn(table_column=unwrapped()),
        *([progress.TransferSpeedColumn(table_column=unwrapped())] if width >= 50 else []),
        progress.TimeRemainingColumn(table_column=unwrapped()),
    ]
