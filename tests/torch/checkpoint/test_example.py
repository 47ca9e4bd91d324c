"""The example that trains, dies, and resumes ends with the same bits as an uninterrupted one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bf16codecs.convert import zarr_to_safetensors
from checkout import ROOT, package_environment

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_jobs")]


def train(folder: Path, run: str, processes: int, *arguments: str) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
    # Any free port: several of these run at a time.
    place = [
        "--nproc-per-node",
        str(processes),
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    ]
    return subprocess.Popen(
        [*torchrun, *place, ROOT / "examples" / "train.py", run, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=package_environment(OMP_NUM_THREADS="1"),
    )


def test_a_job_that_dies_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = train(tmp_path, "whole", 1)
    said, _ = train(tmp_path, "run", 4, "--die-at", "35").communicate(timeout=300)
    assert "SIGKILL" in said
    steps = [f"step-{step}.zarr" for step in range(10, 70, 10)]
    assert sorted(name for name in os.listdir(tmp_path / "run") if name[0] != ".") == steps[:3]
    for job in (train(tmp_path, "run", 2), whole):
        said, _ = job.communicate(timeout=300)
        # Not the exit status: at its very end, PyTorch 2.13 aborts at times on busy machines, with
        # its own writer as well.
        assert "saved step 60" in said, said
    contents = []
    for run in ("run", "whole"):
        assert sorted(os.listdir(tmp_path / run)) == steps
        restored = tmp_path / f"{run}.safetensors"
        zarr_to_safetensors(tmp_path / run / "step-60.zarr", restored)
        contents.append(restored.read_bytes())
    assert contents[0] == contents[1]
