"""Runs `checkpoint_job.py`: training jobs of several processes, where there is what they take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkout import package_environment

DRIVER = Path(__file__).with_name("checkpoint_job.py")


def skip_without_jobs(whole_module: bool = False) -> None:
    """Skip a test, or all of a module, where no jobs run."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.distributed.tensor")
    if not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo", allow_module_level=whole_module)
    if not hasattr(os, "fork"):
        pytest.skip("jobs are forked", allow_module_level=whole_module)


def run_jobs(folder: Path, *jobs: str, status: int = 0) -> None:
    """Run jobs, one after the other: scenario, processes, arguments."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", DRIVER, folder, *jobs],
        capture_output=True,
        text=True,
        cwd=folder,
        # The driver is found beside what it imports.
        env=package_environment(OMP_NUM_THREADS="1", PYTHONSAFEPATH=""),
        timeout=300,
    )
    assert done.returncode == status, done.stderr
