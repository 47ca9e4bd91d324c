"""A model for the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model of two tensors, one of them of integers."""
    return write_model(tmp_path / "m.safetensors", [("a", "BF16", (64, 8)), ("b", "I32", (50,))])
