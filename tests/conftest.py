"""Fixtures that several test files share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import bf16codecs
from checkout import ROOT, package_environment

# Asserts outside test files say what they compared, too.
pytest.register_assert_rewrite("based_models", "bits", "both_decoders", "frames", "invoked")
pytest.register_assert_rewrite("noted_chunks", "orbax_checkpoints", "run_stores", "store_contract")

# Shared machines stall now and then: with a deadline, tests would fail without a bug.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the root of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Return the model of the demo: half a million trained BF16 weights, step 400 of a run."""
    return Path(bf16codecs.__file__).parent / "data" / "demo.safetensors"


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Return a function that runs Python code in a child process, away from the source tree."""

    def run(
        code: str, *args: str, check: bool = True, timeout: float = 120, **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=package_environment(**env),
            timeout=timeout,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return run
