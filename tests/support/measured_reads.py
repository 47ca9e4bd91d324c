"""Reads a store in every way in a child process, which fails if that takes much memory or time.

    python measured_reads.py

Each line of standard input is a list in JSON: a store, a file to restore it to, and a file for the
outcomes. A fork of this process reads the store, since imports take longer than that. The answer is
a line with its exit status; death by signal N is -N.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NoReturn

import h5py  # noqa: F401
import pytest
import zarr.registry
import zarr.storage

import bf16codecs.zarr
from bf16codecs.convert import hdf5_to_safetensors, verify_store, zarr_to_safetensors
from bf16codecs.errors import BF16CodecsError
from checkout import package_environment

__all__ = ["linux", "outcomes"]

linux = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is told in other units")


@cache
def _driver() -> subprocess.Popen[str]:
    driver = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A fork has only the thread that forked.
        env=package_environment(OPENBLAS_NUM_THREADS="1", PYTHONSAFEPATH=""),
    )
    atexit.register(driver.communicate)  # which ends its input, and so the driver
    return driver


def outcomes(store: Path) -> list[str]:
    """Return the outcome of each way to read a store."""
    driver = _driver()
    assert driver.stdin is not None
    assert driver.stdout is not None
    with tempfile.NamedTemporaryFile() as log:
        request = str(store), str(store.with_name("back")), log.name
        print(json.dumps(request), file=driver.stdin, flush=True)
        answer = driver.stdout.readline()
        told = Path(log.name).read_text("utf-8")
    assert answer == "0\n", told
    return told.splitlines()


def _read(path: str, back: str) -> None:
    import resource  # which Windows lacks

    restore = hdf5_to_safetensors if path.endswith(".h5") else zarr_to_safetensors
    # Processor time, not wall time: far below an earlier defect's, far above today's.
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


def _run(path: str, back: str, log: str) -> NoReturn:
    """Read a store in the fork, and exit."""
    os.dup2(os.open(log, os.O_WRONLY), 2)
    os.dup2(2, 1)
    signal.alarm(300)
    try:
        _read(path, back)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _serve() -> None:
    zarr.registry.get_pipeline_class()  # imports, when it is first used, what others have for zarr
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
