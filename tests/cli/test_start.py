"""How commands begin: what they load, and what ends them before they do anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bf16codecs.convert import safetensors_to_zarr

LOADED = """
import sys
from bf16codecs import cli
command, *sys.argv[1:] = sys.argv[1:]
sys.argv[0] = command
try:
    getattr(cli, "main" if command == "bf16codecs" else command)()
except SystemExit as end:
    print(end.code, *{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
"""

COMMANDS = ["analyze", "bench", "bench-run", "demo", "info", "plugin-path", "rebase", "verify"]

HEAVY = {"numpy", "numcodecs", "zarr", "h5py", "rich", "blake3", "asyncio", "ml_dtypes"}


def loaded(run_python, *arguments: str | Path) -> tuple[int, set[str]]:
    """Run a command; return its status, and the packages that it loaded."""
    status, *names = run_python(LOADED, *map(str, arguments)).stderr.splitlines()[-1].split()
    return int(status), set(names)


@pytest.mark.parametrize(
    "arguments",
    [
        ["st2zarr", "--help"],
        ["zarr2st", "--help"],
        ["st2h5", "--help"],
        ["h52st", "--help"],
        ["bf16codecs", "--help"],
        *(["bf16codecs", command, "--help"] for command in COMMANDS),
    ],
)
def test_help_needs_no_package(run_python, arguments: list[str]) -> None:
    status, names = loaded(run_python, *arguments)
    assert status == 0
    assert names.isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "arguments",
    [
        ["st2zarr", "one"],
        ["st2zarr", "a", "b", "--codec", "zstd", "--level", "99"],
        ["st2zarr", "a", "b", "--level", "worst"],
        ["st2h5", "a", "b", "--series", "--codec", "none"],
        ["zarr2st", "a"],
        ["bf16codecs", "infos"],
        ["bf16codecs", "info", "a", "--sort", "colour"],
    ],
)
def test_wrong_usage_needs_no_package(run_python, arguments: list[str]) -> None:
    status, names = loaded(run_python, *arguments)
    assert status == 2
    assert names.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["info", "zarr2st", "st2zarr"])
def test_a_zarr_store_needs_no_zarr(
    run_python, demo_model: Path, tmp_path: Path, command: str
) -> None:
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(demo_model, store)
    arguments = {
        "st2zarr": ["st2zarr", demo_model, tmp_path / "other.zarr"],
        "info": ["bf16codecs", "info", store],
        "zarr2st": ["zarr2st", store, tmp_path / "again.safetensors"],
    }
    status, names = loaded(run_python, *arguments[command])
    assert status == 0
    assert names.isdisjoint({"zarr", "h5py", "asyncio", "rich"})


SIGNALLED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who began this may ignore it
wanted = sys.argv[1]

class Signal:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Signal())
from bf16codecs import _commands
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
@pytest.mark.parametrize("module", ["numpy.linalg", "numcodecs", "bf16codecs.store.zarr_reader"])
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
from bf16codecs import _commands
_commands.st2zarr()
"""
    done = run_python(code, check=False)
    assert done.returncode == 130
    assert done.stderr.endswith(": interrupted\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize("command", ["st2zarr --help", "zarr2st --version", "main --help"])
def test_help_that_cannot_be_printed(run_python, command: str) -> None:
    code = """
import os, sys
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
from bf16codecs import _commands
command, *sys.argv[1:] = sys.argv[1:]
getattr(_commands, command)()
"""
    done = run_python(code, *command.split(), check=False)
    name = command.split()[0].replace("main", "bf16codecs")
    assert (done.returncode, done.stderr) == (
        1,
        f"{name}: standard output: No space left on device\n",
    )
