"""The start of commands: the modules that they load, and interrupts before they do anything."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bf16codecs.convert import safetensors_to_zarr

#: Run commands, one after the other; print a line for each: its status, and the imported modules.
LOADED = """
import contextlib, io, json, sys
from bf16codecs import cli
for command, *sys.argv[1:] in json.loads(sys.argv[1]):
    sys.argv[0] = command
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            getattr(cli, "main" if command == "bf16codecs" else command)()
        except SystemExit as end:
            status = end.code
    names = sorted({name.split(".")[0] for name in sys.modules})
    print(json.dumps([status, names, text.getvalue()]))
"""

COMMANDS = [
    "analyze",
    "bench",
    "bench-run",
    "demo",
    "drop-steps",
    "info",
    "plugin-path",
    "rebase",
    "undo-append",
    "verify",
]

HEAVY = {"numpy", "numcodecs", "zarr", "h5py", "rich", "blake3", "asyncio", "ml_dtypes"}


def check_loaded(
    run_python, commands: list[list[str]], wanted: int, heavy: set[str], said: str
) -> None:
    """Check the status of commands, and that none of them imports any of some packages."""
    lines = run_python(LOADED, json.dumps(commands)).stdout.splitlines()
    for command, line in zip(commands, lines, strict=True):
        status, names, text = json.loads(line)
        assert status == wanted, (command, text)
        assert said in text, command
        assert not heavy.intersection(names), command


def test_help_needs_no_package(run_python) -> None:
    names = ["st2zarr", "zarr2st", "st2h5", "h52st", "bf16codecs"]
    commands = [[name, "--help"] for name in names]
    commands += [["bf16codecs", command, "--help"] for command in COMMANDS]
    check_loaded(run_python, commands, 0, HEAVY, "Usage: ")


def test_wrong_usage_needs_no_package(run_python) -> None:
    commands = [
        ["st2zarr", "one"],
        ["st2zarr", "a", "b", "--codec", "zstd", "--level", "99"],
        ["st2zarr", "a", "b", "--level", "worst"],
        ["st2h5", "a", "b", "--series", "--codec", "none"],
        ["zarr2st", "a"],
        ["bf16codecs", "infos"],
        ["bf16codecs", "info", "a", "--sort", "colour"],
    ]
    check_loaded(run_python, commands, 2, HEAVY, "Error: ")


def test_a_zarr_store_needs_no_zarr(run_python, demo_model: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "m.zarr")
    commands = [
        ["st2zarr", str(demo_model), store],
        ["bf16codecs", "info", store],
        ["zarr2st", store, str(tmp_path / "again.safetensors")],
    ]
    check_loaded(run_python, commands, 0, {"zarr", "h5py", "asyncio", "rich"}, "39 tensors")


SIGNALLED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who began this may ignore it
wanted = sys.argv[1]

class Signal:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Signal())
from bf16codecs.cli import entry as _commands
command, *sys.argv[1:] = sys.argv[2:]
getattr(_commands, command)()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    "module", ["bf16codecs.errors", "click", "bf16codecs.cli.console", "bf16codecs.cli.options"]
)
def test_ctrl_c_before_anything_is_begun(run_python, module: str) -> None:
    done = run_python(SIGNALLED, module, "st2zarr", "a", "b", check=False)
    assert (done.returncode, done.stderr) == (130, "st2zarr: interrupted\n")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    "module",
    [
        "numcodecs",
        pytest.param("numpy.linalg", marks=pytest.mark.slow),
        pytest.param("bf16codecs.store.zarr.reader", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_while_a_command_imports(
    run_python, demo_model: Path, tmp_path: Path, module: str
) -> None:
    store, target = tmp_path / "m.zarr", tmp_path / "back.safetensors"
    safetensors_to_zarr(demo_model, store)
    done = run_python(SIGNALLED, module, "zarr2st", str(store), str(target), "--quiet", check=False)
    assert (done.returncode, done.stderr) == (130, "zarr2st: interrupted\n")
    assert not target.exists()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_while_options_are_parsed(run_python) -> None:
    code = """
import os, signal, sys
import click
signal.signal(signal.SIGINT, signal.default_int_handler)
click.Command.parse_args = lambda *args: os.kill(os.getpid(), signal.SIGINT)
from bf16codecs.cli import entry as _commands
_commands.st2zarr()
"""
    done = run_python(code, check=False)
    assert done.returncode == 130
    assert done.stderr.endswith(": interrupted\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize(
    "command",
    [
        "st2zarr --help",
        pytest.param("zarr2st --version", marks=pytest.mark.slow),
        pytest.param("main --help", marks=pytest.mark.slow),
    ],
)
def test_help_that_cannot_be_printed(run_python, command: str) -> None:
    code = """
import os, sys
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
from bf16codecs.cli import entry as _commands
command, *sys.argv[1:] = sys.argv[1:]
getattr(_commands, command)()
"""
    done = run_python(code, *command.split(), check=False)
    name = command.split()[0].replace("main", "bf16codecs")
    assert (done.returncode, done.stderr) == (
        1,
        f"{name}: standard output: No space left on device\n",
    )
