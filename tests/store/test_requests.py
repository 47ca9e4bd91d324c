"""Daemon threads that read from a server, or a store of zarr's, when the interpreter exits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiers
from lazy_models import write_store
from servers import serving

MEMORY = """
import sys, threading, time
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore
from bf16codecs.store.remote.storage import RemoteStorage
source = RemoteStorage(MemoryStore({"k": cpu.Buffer.from_bytes(b"abc")}))
read = lambda: source.read("k")
"""
ADDRESS = """
import sys, threading, time, bf16codecs
source = bf16codecs.open_model(sys.argv[1])
read = lambda: source["n"][:3]
"""
SPIN = """
def spin():
    while True:
        read()
for _ in range(4):
    threading.Thread(target=spin, daemon=True).start()
time.sleep(0.2)
"""


def test_nothing_is_heard_at_exit(run_python) -> None:
    for _ in range(tiers.by_tier(1, 3)):
        assert run_python(MEMORY + SPIN).stderr == ""


@pytest.mark.parametrize("name", tiers.by_tier(["m.zarr.zip"], ["m.zarr", "m.zarr.zip"]))
def test_nothing_is_heard_of_a_server_at_exit(run_python, tmp_path: Path, name: str) -> None:
    pytest.importorskip("aiohttp")
    write_store(tmp_path / name, {"n": np.arange(100)}, codec="none")
    with serving(tmp_path) as server:
        assert run_python(ADDRESS + SPIN, f"{server.url}/{name}").stderr == ""
