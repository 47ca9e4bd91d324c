"""The examples, used wrongly, end with one line of error. `tests/docs` tests their proper use."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import tiers
from bf16codecs.convert import safetensors_to_zarr
from checkout import ROOT, package_environment
from looping import for_each

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
    ("measure_updates", ["missing"]),
    ("measure_vllm", []),
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
WITHOUT = {**dict.fromkeys(OF_TORCH, "torch"), "measure_vllm": "vllm", "orbax_sizes": "jax"}
RUN_WITHOUT = "import runpy, sys; sys.modules[{!r}] = None; runpy.run_path(sys.argv[1])"


@pytest.fixture(scope="module")
def stores(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two stores, which no example that is used wrongly changes."""
    folder = tmp_path_factory.mktemp("stores")
    for store in ("m.zarr", "m.zip"):
        safetensors_to_zarr(demo_model, folder / store)
    return folder


def message_of_a_process(name: str, *arguments: str) -> str:
    path = str(ROOT / "examples" / f"{name}.py")
    start = ["-c", RUN_WITHOUT.format(WITHOUT[name])] if name in WITHOUT else []
    done = subprocess.run(
        [sys.executable, *start, path, *arguments],
        capture_output=True,
        text=True,
        env=package_environment(),
        timeout=120,
    )
    assert done.returncode == 1, (name, arguments, done.stderr)
    return done.stderr


def message_of_a_call(name: str, *arguments: str) -> str:
    """Run an example in this process; return the text that it exits with, which Python prints."""
    path = str(ROOT / "examples" / f"{name}.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [path, *arguments])
        if name in WITHOUT:
            patch.setitem(sys.modules, WITHOUT[name], None)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(path, run_name="__main__")
    assert isinstance(ended.value.code, str), (name, arguments, ended.value.code)
    return ended.value.code


@for_each("name, arguments", MISUSES)
def test_misuse_is_one_line(
    stores: Path, monkeypatch: pytest.MonkeyPatch, name: str, arguments: list[str]
) -> None:
    monkeypatch.chdir(stores)
    told = tiers.by_tier(message_of_a_call, message_of_a_process)(name, *arguments)
    (line,) = told.splitlines()
    assert f"{name}.py" in line
    assert sorted(path.name for path in stores.iterdir()) == ["m.zarr", "m.zip"]


def test_a_fleet_at_scale() -> None:
    """The page shows a simulation of 100,000 models; this test simulates 50."""
    pytest.importorskip("simpy")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "fleet_at_scale.py", "50"],
        capture_output=True,
        text=True,
        env=package_environment(),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "145.2 million      726 $" in done.stdout
    rates = [
        float(line.split(": ")[1].partition(";")[0])
        for line in done.stdout.splitlines()
        if "lost" in line
    ]
    assert len(rates) == 7
    assert all(0 < rate <= 1 for rate in rates)
    assert rates[-1] > 0.9


def test_updates_are_measured(demo_model: Path) -> None:
    pytest.importorskip("safetensors")
    example = ROOT / "examples" / "measure_updates.py"
    done = subprocess.run(
        [sys.executable, example, demo_model, "--megabytes", "1", "--rounds", "1"],
        capture_output=True,
        text=True,
        env=package_environment(),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    head, steps, *rates = done.stdout.splitlines()
    assert head == "67 MB, 1 % of the values changed"
    assert steps.startswith("2 steps in ")
    assert [line.split()[0] for line in rates] == ["copied", "compared", "trusted"]


@pytest.mark.slow
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
