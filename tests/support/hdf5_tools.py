"""HDF5's own programs, with the plugin."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np

import plugin


def tool(*arguments: object) -> str:
    """Run a program of HDF5 that finds the plugin, and return what it prints."""
    done = subprocess.run(
        [str(a) for a in arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "HDF5_PLUGIN_PATH": plugin.PLUGIN_FOLDER, "LC_ALL": "C"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "bf16codecs:" not in done.stderr, done.stderr
    return done.stdout


def dumped(path: Path, dataset: str, *options: str) -> np.ndarray:
    """Return the numbers that h5dump prints."""
    text = tool("h5dump", "-d", dataset, *options, "-y", "-w", "0", "-m", "%.9g", path)
    (data,) = re.findall(r"DATA \{(.*?)\}", text, re.DOTALL)
    return np.array([float(x) for x in data.split(",")], np.float32)


def filters(path: Path, dataset: str) -> tuple[list[str], str]:
    """Return the ids and parameters of filters as h5dump shows them."""
    text = tool("h5dump", "-p", "-H", "-d", dataset, path)
    (parameters,) = re.findall(r"PARAMS \{ (.*?) \}", text) or [""]
    return re.findall(r"FILTER_ID (\d+)", text), parameters
