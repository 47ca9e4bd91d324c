"""Processes that fork while other threads read, as data loaders do."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import bf16codecs
from bf16codecs._base import forks as _forks
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr, verify_store
from checkout import ROOT
from looping import for_each
from models import write_model

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:.*multi-?threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*multithreaded:RuntimeWarning"),
]


def status_of_child(call: Callable[[], object]) -> int:
    """Call a function in a forked child, which an alarm ends; return its exit status."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            call()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@for_each("name", ["m.zarr", "m.zarr.zip", "m.h5", "m.safetensors"])
def test_whatever_other_threads_hold(tmp_path: Path, name: str) -> None:
    source = write_model(tmp_path / "source.safetensors", [("w", "BF16", (300, 40))])
    path = source if name == "m.safetensors" else tmp_path / name
    if path != source:
        (safetensors_to_hdf5 if name.endswith("h5") else safetensors_to_zarr)(source, path)
    model = bf16codecs.open_model(path)
    row = model["w"][7].tobytes()
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in list(_forks._locks):
            lock.acquire()
        is_held.set()
        may_end.wait(60)
        for lock in list(_forks._locks):
            if lock.locked():
                lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert is_held.wait(60)

        def read() -> None:
            assert model["w"][7].tobytes() == row
            if path != source:
                verify_store(path)

        assert status_of_child(read) == 0
    finally:
        may_end.set()
        thread.join()
    assert model["w"][7].tobytes() == row
    model.close()


@for_each("name", ["m.zarr", "m.h5"])
def test_a_child_opens_a_model_while_another_thread_does(tmp_path: Path, name: str) -> None:
    source = write_model(tmp_path / "source.safetensors", [("w", "BF16", (300, 40))])
    (safetensors_to_hdf5 if name == "m.h5" else safetensors_to_zarr)(source, tmp_path / name)
    is_over = threading.Event()

    def read() -> None:
        with bf16codecs.open_model(tmp_path / name) as model:
            assert model["w"][7].shape == (40,)

    def read_on() -> None:
        while not is_over.is_set():
            read()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=read_on) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        assert {status_of_child(read) for _ in range(20)} == {0}
    finally:
        is_over.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()


def test_all_locks_are_made_for_forks() -> None:
    """A lock of `threading`'s own stays taken in a child for ever, and so do those of functools."""
    found = []
    for path in sorted((ROOT / "bf16codecs").rglob("*.py")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            has_lock = re.search(
                r"threading\.R?Lock\(\)|from functools import.*cached_property", line
            )
            if has_lock and path.name != "forks.py":
                found.append(f"{path.relative_to(ROOT)}:{number}")
    assert found == []
