"""Runs commands in this process, and returns their output and exit codes."""

from __future__ import annotations

import re
from typing import Any

from click.testing import CliRunner, Result

from bf16codecs import cli

NAMES = ("st2zarr", "zarr2st", "st2h5", "h52st")
COMMANDS = {name: getattr(cli, name) for name in NAMES} | {"bf16codecs": cli.main}
#: Name of a store: the commands that write and restore it.
CONVERTERS = {
    "m.zarr": ("st2zarr", "zarr2st"),
    "m.zip": ("st2zarr", "zarr2st"),
    "m.h5": ("st2h5", "h52st"),
}


def run(command: str, *args: Any) -> Result:
    return CliRunner().invoke(COMMANDS[command], [str(a) for a in args], prog_name=command)


def done(command: str, *args: Any) -> str:
    """Run a command that must succeed; return its output."""
    result = run(command, *args)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def refused(command: str, *args: Any, status: int = 1) -> str:
    """Run a command that must fail; return its one line of error."""
    result = run(command, *args)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(command)
    assert line.isprintable()
    return line


def info_table(*args: Any) -> list[str]:
    """Return the header of the table of `bf16codecs info`, and a line for each tensor."""
    lines = done("bf16codecs", "info", *args).splitlines()
    first = lines.index("") + 1
    return lines[first : lines.index("", first)]


def row_cells(text: str, name: str) -> list[str]:
    """Return the cells of the first row of a table that begins with a name."""
    line = next(line for line in text.splitlines() if line.startswith(name))
    return re.split(r"\s{2,}", line.strip())
