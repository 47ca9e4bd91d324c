"""Lower limits of what a store may make its reader take, so that small stores meet them."""

from __future__ import annotations

import pytest

from bf16codecs._base import limits as _limits


def lower_limits(monkeypatch: pytest.MonkeyPatch, floor: int, ratio: int | None = None) -> None:
    """Lower the size above which data are distrusted, and the ratio of decoded to stored size."""
    monkeypatch.setattr(_limits, "_SMALL", floor)
    if ratio is not None:
        monkeypatch.setattr(_limits, "_RATIO", ratio)
