"""Lowers the limits on memory that a store may cost its reader, so that small stores meet them."""

from __future__ import annotations

import pytest

from bf16codecs._base import limits as _limits


def lower_limits(monkeypatch: pytest.MonkeyPatch, floor: int, ratio: int | None = None) -> None:
    """Lower the size above which data are distrusted, and the ratio of decoded to stored size."""
    monkeypatch.setattr(_limits, "_SMALL", floor)
    if ratio is not None:
        monkeypatch.setattr(_limits, "_RATIO", ratio)
