"""The example of a trainer and two followers, in few steps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from checkout import ROOT, package_environment

pytest.importorskip("torch")

EXAMPLE = ROOT / "examples" / "publish_weights.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLE, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=package_environment(OMP_NUM_THREADS="1"),
        timeout=300,
    )


def test_followers_stay_equal_to_the_trainer(tmp_path: Path) -> None:
    done = run(tmp_path / "policy.zarr", "--steps", 25, "--width", 64, "--layers", 2)
    assert done.returncode == 0, done.stderr
    assert "follower 1: 25 steps, 25 of them equal" in done.stdout
    found = re.search(r"follower 2: (\d+) steps, (\d+) of them equal", done.stdout)
    assert found is not None
    assert 1 < int(found[1]) == int(found[2]) < 25  # it was away for a while


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path}: exists: name another folder\n"
