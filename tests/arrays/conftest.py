"""Fixtures that tests of chunks share."""

from __future__ import annotations

import numpy as np
import pytest

from makers.growing import grow
from noted_chunks import let_heads_be_small, note_decoded, read_at_once_up_to
from versions import fields


@pytest.fixture
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let chunks of a few kB be read like those of many blocks."""
    let_heads_be_small(monkeypatch)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects decoded blocks."""
    return note_decoded(monkeypatch)


@pytest.fixture
def large(small_heads) -> tuple[np.ndarray, bytes]:
    """Return 13 versions of 40 blocks, the last of which has 100 items, in room for 16."""
    array = fields(13, 39 * 256 + 100)
    return array, grow(array, 16)


@pytest.fixture(params=["in parts", "at once"])
def large_or_not(request, large, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, bytes]:
    """Return the versions of `large`, which are read in parts, or too few for that."""
    if request.param == "at once":
        read_at_once_up_to(monkeypatch, 1 << 24)
    return large
