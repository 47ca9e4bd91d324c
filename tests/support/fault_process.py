"""A driver of faults as a process of its own, and the sample of them that is tried."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT, package_environment

needs_glibc = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc",
    reason="the interposer is for glibc on Linux",
)

#: One operation of so many is tried, others in each run: all of them take a quarter of an hour.
STEP = int(os.environ.get("BF16CODECS_FAULTS_EVERY", "47"))

Ask = Callable[..., Any]


def smallest_allocation(is_hdf5: bool) -> int:
    """Return from how many bytes on allocations fail: below 1 kB, libhdf5 itself crashes."""
    return 1024 if is_hdf5 else 64


@contextmanager
def driven(script: str, base: Path) -> Iterator[Ask]:
    """Start a driver of tests/support, and yield a function that asks it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = base / "faults.so"
    source = ROOT / "tests" / "support" / "faults.c"
    options = ["-shared", "-fPIC", "-O2", "-fno-builtin", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *options, "-o", library, source, "-ldl"], check=True)
    support = str(source.parent)
    environment = package_environment(LD_PRELOAD=str(library))
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], support])
    driver = subprocess.Popen(
        [sys.executable, source.with_name(script), base],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert driver.stdin is not None
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"

    def answer(**request: Any) -> Any:
        print(json.dumps(request), file=driver.stdin, flush=True)
        return json.loads(driver.stdout.readline())

    yield answer
    driver.stdin.close()
    driver.stdout.close()
    assert driver.wait() == 0
