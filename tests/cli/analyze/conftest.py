"""A folder to work in, and a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tiers
from bf16codecs import analysis
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


@pytest.fixture
def draw_few(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that limits drawing to two pictures, each in all styles."""

    def replace() -> None:
        folder = pytest.importorskip("bf16codecs.analysis.folder")
        every = folder.pictures

        def few(analysis):
            return (each for each in every(analysis) if each[0] in ("exponents", "layers"))

        monkeypatch.setattr(folder, "pictures", few)
        monkeypatch.setattr("bf16codecs.analysis.html_report.pictures", few)

    return replace


@pytest.fixture
def draw_less(draw_few: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that limits drawing to two pictures in one style."""

    def replace() -> None:
        draw_few()
        styles = {"light": analysis.plots.STYLES["light"]}
        monkeypatch.setattr(analysis.plots, "STYLES", styles)  # others differ in colours alone

    return replace


@pytest.fixture
def quickly_drawn(draw_less: Callable[[], None]) -> None:
    """Limit the pictures that the quick tier draws."""
    if not tiers.IS_FULL:
        draw_less()
