"""Two models of the same tensors, and a folder for targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import write_model


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
