"""The examples, used wrongly: they end with one line. `tests/docs` runs them as they are meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bf16codecs.convert import safetensors_to_zarr
from checkout import ROOT, package_environment

MISUSES = [
    ("analyze_model", ["missing"]),
    ("analyze_model", ["m.zarr", "missing/folder"]),
    ("analyze_model", ["m.zarr", "folder", "more"]),
    ("compare_checkpoints", []),
    ("compare_checkpoints", ["m.zarr", "missing"]),
    ("convert_model", ["missing"]),
    ("convert_model", ["m.zarr"]),
    ("follow_weight", ["missing"]),
    ("follow_weight", ["missing", "missing"]),
    ("load_torch", []),
    ("measure_loading", []),
    ("measure_saving", []),
    ("measure_reading", []),
    ("measure_reading", ["missing"]),
    ("measure_reading", ["m.zip"]),
    ("measure_reading", ["m.zarr", "missing"]),
    ("measure_zarr", ["--rounds", "0", "--rows", "1", "--only", "blocks"]),
    ("orbax_sizes", []),
    ("read_hdf5", ["missing"]),
    ("read_hdf5", ["m.zarr"]),
    ("read_plain_zarr", []),
    ("read_plain_zarr", ["missing"]),
    ("remote_svd", ["m.zarr"]),
    ("remote_svd", ["m.zarr", "missing"]),
    ("remote_svd", ["m.zarr", "missing", "option"]),
    ("training_over_time", ["missing"]),
    ("training_over_time", ["m.zarr"]),
    ("use_codecs", ["m.zip"]),
    ("use_codecs", ["one", "two"]),
]
OF_TORCH = ("load_torch", "measure_loading", "measure_saving")
WITHOUT = {**dict.fromkeys(OF_TORCH, "torch"), "orbax_sizes": "jax"}
RUN_WITHOUT = "import runpy, sys; sys.modules[{!r}] = None; runpy.run_path(sys.argv[1])"


@pytest.mark.parametrize(("name", "arguments"), MISUSES, ids=str)
def test_misuse_is_one_line(
    demo_model: Path, tmp_path: Path, name: str, arguments: list[str]
) -> None:
    for store in ("m.zarr", "m.zip"):
        safetensors_to_zarr(demo_model, tmp_path / store)
    path = str(ROOT / "examples" / f"{name}.py")
    start = ["-c", RUN_WITHOUT.format(WITHOUT[name])] if name in WITHOUT else []
    done = subprocess.run(
        [sys.executable, *start, path, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=package_environment(),
        timeout=120,
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert f"{name}.py" in line


def test_sizes_of_orbax(tmp_path: Path) -> None:
    """The page shows them after hundreds of steps, of which two will do here."""
    pytest.importorskip("orbax.checkpoint")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "orbax_sizes.py", "2"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=package_environment(),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    head, _, *rows = done.stdout.splitlines()
    assert head.startswith("after 2 steps: ")
    raw, orbax, *ours = map(int, rows[-2].replace(",", "").split()[1:])
    assert max(ours) < orbax < raw
