"""Two models of the same tensors, a folder for targets, and servers of sources."""

from __future__ import annotations

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
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an object store in memory, which takes the place of the one with the bucket."""
    object_folder = pytest.importorskip("bf16codecs.store.remote.object_folder")
    found = pytest.importorskip("obstore.store").MemoryStore()
    monkeypatch.setattr(object_folder, "object_store", lambda *args: found)
    return found
