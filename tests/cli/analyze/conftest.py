"""A folder to work in, and a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazy_models import weights, write_safetensors


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model() -> Path:
    """Return a small model of two kinds of tensors."""
    arrays = {
        "layers.0.mlp.weight": weights((80, 80)),
        "layers.0.attn.weight": weights((80, 80), seed=1),
    }
    return write_safetensors(Path("m.safetensors"), arrays)
