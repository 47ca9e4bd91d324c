"""Fixtures of the tests of HDF5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import pytest


@pytest.fixture
def file(tmp_path: Path) -> Iterator[h5py.File]:
    """Return a new file, open for writing."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        yield file
