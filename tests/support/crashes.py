"""Crashes at every moment of an operation: the tables, and the client of the driver.

One driver process (crash_driver.py) runs under an interposer (faults.c), which counts a program's
operations on files. The driver forks a child for each try: the child carries out one of OPERATIONS,
and the chosen one of MOMENTS strikes at its n-th operation on files. Both tables are below.

One contract holds for each pair. The target is the old one or the new one, complete; an operation
that succeeds leaves the new one. An error is of an allowed class and names the target. The next
run, at the latest, removes everything else. Without `overwrite`, one of two writers wins; of two
that append one step, or remove one, too. A reader gets the old or the new content, never both.

The numbers n depend on `--seed`, the operation and the moment alone. Half of them lie just before
and after renames, since those decide; where allocations fail, n counts these instead. The quick
tier tries a few, the full tier every twentieth as well.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tiers
from checkout import ROOT, package_environment


class Operation(NamedTuple):
    """An operation under test.

    `verb` is convert, append, undo or read. `before` says what is there: nothing, old, or a number
    of steps.
    """

    verb: str
    target: str
    before: str | int


OPERATIONS = {
    "zarr-new": Operation("convert", "m.zarr", "nothing"),
    "zarr-overwrite": Operation("convert", "m.zarr", "old"),
    "zip-new": Operation("convert", "m.zip", "nothing"),
    "zip-overwrite": Operation("convert", "m.zip", "old"),
    "hdf5-new": Operation("convert", "m.h5", "nothing"),
    "hdf5-overwrite": Operation("convert", "m.h5", "old"),
    "file-new": Operation("convert", "file", "nothing"),
    "file-overwrite": Operation("convert", "file", "old"),
    "shards-new": Operation("convert", "shards", "nothing"),
    "shards-overwrite": Operation("convert", "shards", "old"),
    "based-zarr-new": Operation("convert", "based.zarr", "nothing"),
    "based-zarr-overwrite": Operation("convert", "based.zarr", "old"),
    "based-hdf5-new": Operation("convert", "based.h5", "nothing"),
    "based-hdf5-overwrite": Operation("convert", "based.h5", "old"),
    # These rewrite a store: there always is an old one.
    "rebased-zarr": Operation("convert", "rebased.zarr", "old"),
    "rebased-hdf5": Operation("convert", "rebased.h5", "old"),
    # Groups have three steps: the next one is in a group, or begins one.
    "append-zarr": Operation("append", "run.zarr", 2),
    "append-zarr-group": Operation("append", "run.zarr", 3),
    "append-zarr2": Operation("append", "run2.zarr", 4),
    "append-hdf5": Operation("append", "run.h5", 2),
    "append-hdf5-group": Operation("append", "run.h5", 3),
    "undo-zarr": Operation("undo", "run.zarr", 3),
    "undo-zarr-group": Operation("undo", "run.zarr", 4),
    "undo-zarr2": Operation("undo", "run2.zarr", 5),
    "undo-hdf5": Operation("undo", "run.h5", 3),
    "undo-hdf5-group": Operation("undo", "run.h5", 4),
    "read-zarr": Operation("read", "m.zarr", "old"),
    "read-zip": Operation("read", "m.zip", "old"),
    "read-hdf5": Operation("read", "m.h5", "old"),
    "read-file": Operation("read", "file", "old"),
    "read-shards": Operation("read", "shards", "old"),
}


class Moment(NamedTuple):
    """A fault or an interruption.

    `verbs` are those of the operations that it strikes, `action` is what the interposer does, and
    `tries` is how many operations on files the quick tier tries.
    """

    verbs: tuple[str, ...]
    action: str
    tries: int


_WRITES = ("convert", "append", "undo")
MOMENTS = {
    "fails": Moment(_WRITES, "fail", 2),
    "disk full": Moment(_WRITES, "full", 1),
    "killed": Moment(_WRITES, "kill", 2),
    "killed again and again": Moment(_WRITES, "kill", 1),
    "no memory": Moment(_WRITES, "fail", 2),
    "power cut": Moment(_WRITES, "log", 6),
    "another writer": Moment(_WRITES, "stop", 1),
    "a reader": Moment(_WRITES, "stop", 1),
    "replaced": Moment(("read",), "stop", 8),
}

#: The full tier tries every twentieth operation, with another seed others, but never fewer than the
#: quick tier.
EVERY = 20


@contextmanager
def driven(base: Path) -> Iterator[Driven]:
    """Start the driver, with files below a folder."""
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        pytest.skip("the interposer is for glibc on Linux")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = base / "faults.so"
    source = ROOT / "tests" / "support" / "faults.c"
    options = ["-shared", "-fPIC", "-O2", "-fno-builtin", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *options, "-o", library, source, "-ldl"], check=True)
    environment = package_environment(LD_PRELOAD=str(library))
    environment["PYTHONPATH"] += os.pathsep + str(source.parent)
    process = subprocess.Popen(
        [sys.executable, source.with_name("crash_driver.py"), base],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with process:
        yield Driven(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


class Driven:
    """The driver, as tests see it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **request: Any) -> Any:
        """Send a request, and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def problems(self, operation: str, moment: str, exchange: bool = True) -> list[str]:
        """Let a moment strike at some operations; return the violations of the contract."""
        tries = MOMENTS[moment].tries
        answer = self.ask(
            operation=operation,
            moment=moment,
            exchange=exchange,
            seed=tiers.rng(operation, moment, exchange).getrandbits(32),
            tries=tries if exchange else (tries + 1) // 2,
            every=tiers.by_tier(0, EVERY),
        )
        least = {"fails": 20, "killed": 20, "no memory": 10, "power cut": 3}.get(moment, 2)
        assert answer["count"] > least, (operation, moment)
        way = "" if exchange else ", names cannot be exchanged"
        return [f"{operation}, {moment}{way}, {text}" for text in answer["problems"]]

    def race(self, operation: str, exchange: bool, rounds: int) -> list[str]:
        """Let two writers and two readers run at once; return the violations of the contract."""
        answer = self.ask(operation=operation, exchange=exchange, rounds=rounds)
        return answer["problems"]
