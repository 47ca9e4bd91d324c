"""What commands load before they do anything: importing zarr takes longer than all that they do."""

from __future__ import annotations

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

COMMANDS = ["bench", "bench-run", "demo", "info", "plugin-path", "rebase", "verify"]

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
