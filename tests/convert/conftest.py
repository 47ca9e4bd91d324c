"""Two models of the same tensors, a folder for targets, and servers of sources."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models import write_model
from servers import FileServer, serving


@pytest.fixture
def old(tmp_path: Path) -> Path:
    (tmp_path / "sources").mkdir()
    return write_model(tmp_path / "sources" / "old", [("a", "BF16", (64, 8))], 1)


@pytest.fixture
def new(tmp_path: Path, old: Path) -> Path:
    return write_model(old.with_name("new"), [("a", "BF16", (64, 8))], 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "targets").mkdir()
    return tmp_path / "targets"


@pytest.fixture
def server(tmp_path: Path, aiohttp: Any) -> Iterator[FileServer]:
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let writers of object stores count as dead after half a second; see that leases end."""
    lease = pytest.importorskip("bf16codecs.store.remote.lease")
    monkeypatch.setattr(lease, "_RENEW_SECONDS", 0.1)
    monkeypatch.setattr(lease, "_FRESH_SECONDS", 0.3)
    monkeypatch.setattr(lease, "_DEAD_SECONDS", 0.5)
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.1)
    yield
    assert not [thread for thread in threading.enumerate() if "lease" in thread.name]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an object store in memory, which takes the place of the one with the bucket."""
    object_folder = pytest.importorskip("bf16codecs.store.remote.object_folder")
    found = pytest.importorskip("obstore.store").MemoryStore()
    monkeypatch.setattr(object_folder, "object_store", lambda *args: found)
    return found


@pytest.fixture
def bucket(s3: dict[str, str], tmp_path: Path, fsspec: Any) -> Iterator[str]:
    """Return the address of an empty folder in a bucket."""
    address = f"s3://bucket/{tmp_path.name}"
    yield address
    fs = fsspec.filesystem("s3", **s3)
    if fs.exists(address):
        fs.rm(address, recursive=True)
