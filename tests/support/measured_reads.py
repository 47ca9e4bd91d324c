"""Reads a store in every way in a child process, which fails if that takes much memory or time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

__all__ = ["linux", "outcomes"]

MEASURED = """
import resource, sys
import h5py, numpy, zarr, zarr.storage
import bf16codecs, bf16codecs.model, bf16codecs.convert
from bf16codecs.convert import *
from bf16codecs.errors import BF16CodecsError

path, back = sys.argv[1:]
restore = hdf5_to_safetensors if path.endswith(".h5") else zarr_to_safetensors
# Far below what it took once, and far above what it takes. Processor time, not that of the clock.
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for read in (
    lambda: bf16codecs.open_model(path).load(),
    lambda: [t[:1] if t.ndim else t[...] for t in bf16codecs.open_model(path).values()],
    lambda: bf16codecs.open_model(path).metadata(),
    lambda: verify_store(path),
    lambda: restore(path, back),
):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read()
        print("ok")
    except (BF16CodecsError, OSError) as e:
        print(type(e).__name__, str(e)[:300])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 120_000, f"{grown} kB for {path}"
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is told in other units")


def outcomes(run_python: Any, store: Path) -> list[str]:
    done = run_python(MEASURED, str(store), str(store.with_name("back")))
    return done.stdout.splitlines()
