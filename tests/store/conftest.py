"""A small model store for tests that damage it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lazy_models import weights, write_store


@pytest.fixture
def arrays() -> dict[str, Any]:
    return {"w": weights((64, 32)), "n": np.arange(1000)}


@pytest.fixture
def store(tmp_path: Path, arrays: dict[str, Any]) -> Path:
    return write_store(tmp_path / "m.zarr", arrays)
