"""What commands say of wrong usage, and of warnings: which words were meant, in one line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import click
import pytest

from bf16codecs._version import __version__
from bf16codecs.cli.group import main
from bf16codecs.cli.options import command
from invoked import done, run

PLUGIN_PATH = """
import sys
from bf16codecs._commands import main
sys.argv[1:] = ["plugin-path"]
main()
"""


def misused(name: str, *args: Any) -> str:
    """Return the last line of a command that is used wrongly."""
    result = run(name, *args)
    assert result.exit_code == 2
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(("name", "target"), [("st2zarr", "STORE"), ("st2h5", "FILE")])
@pytest.mark.parametrize("options", [[], ["--series"], ["--append"]])
def test_missing_target(demo_model: Path, name: str, target: str, options: list[str]) -> None:
    assert f"Missing arguments 'SRC...' and '{target}'" in misused(name, *options)
    line = misused(name, *options, "a.safetensors")
    assert f"Missing argument '{target}': what to make of a.safetensors" in line
    line = misused(name, *options, "a.safetensors", demo_model)
    assert f"Missing argument '{target}'" in line
    assert f"the last one, {demo_model}, is a safetensors model" in line


@pytest.mark.parametrize("name", ["zarr2st", "h52st"])
def test_missing_target_of_what_is_restored(name: str) -> None:
    assert "Missing argument 'DST'" in misused(name, "m")


@pytest.mark.parametrize("name", main.commands)
def test_subcommands_tell_the_version(name: str) -> None:
    assert __version__ in done("bf16codecs", name, "--version")


def test_warnings_take_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would show the place in its own code, too."""

    @click.command()
    @command
    def strange() -> None:
        warnings.warn("two\nlines", FutureWarning, stacklevel=1)

    monkeypatch.setitem(main.commands, "strange", strange)
    result = run("bf16codecs", "strange")
    assert result.exit_code == 0
    assert result.stderr == "bf16codecs strange: warning: two\\nlines\n"


@pytest.mark.parametrize("name", ["BF16CODECS_ISA", "BF16CODECS_NUM_THREADS"])
def test_warnings_of_the_environment(run_python, name: str) -> None:
    """They come while the command is being imported."""
    (line,) = run_python(PLUGIN_PATH, **{name: "many"}).stderr.splitlines()
    assert line.startswith(f"bf16codecs: warning: {name} is 'many'")
