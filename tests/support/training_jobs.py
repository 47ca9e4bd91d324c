"""Runs `checkpoint_job.py`, training jobs of several processes, where these are supported."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from checkout import package_environment

DRIVER = Path(__file__).with_name("checkpoint_job.py")


def skip_without_jobs() -> None:
    """Skip a test where jobs are not supported."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.distributed.tensor")
    if not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    if not hasattr(os, "fork"):
        pytest.skip("jobs are forked")


@cache
def _driver() -> subprocess.Popen[str]:
    driver = subprocess.Popen(
        [sys.executable, "-W", "ignore", DRIVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # The driver is found beside what it imports.
        env=package_environment(OMP_NUM_THREADS="1", PYTHONSAFEPATH=""),
    )
    atexit.register(driver.communicate)  # which ends its input, and so the driver
    return driver


def run_jobs(folder: Path, *jobs: str, status: int = 0) -> None:
    """Run jobs, one after the other: scenario, processes, arguments."""
    driver = _driver()
    assert driver.stdin is not None
    assert driver.stdout is not None
    with tempfile.NamedTemporaryFile() as log:
        print(json.dumps([log.name, str(folder), *jobs]), file=driver.stdin, flush=True)
        answer = driver.stdout.readline()
        assert answer == f"{status}\n", Path(log.name).read_text()
