"""Fixtures that tests of chunks share."""

from __future__ import annotations

import numpy as np
import pytest

from bf16codecs import _core
from bf16codecs._chunks import heads
from growing_frames import grow
from versions import fields


@pytest.fixture
def small_heads(monkeypatch) -> None:
    """Let chunks of a few kB be read as those of many blocks are."""
    monkeypatch.setattr(heads, "_PREFIX_BYTES", 48)
    monkeypatch.setattr(heads, "_PREFIX_SHIFT", 40)
    monkeypatch.setattr(_core, "DEFAULT_BLOCK_BYTES", 1024)


@pytest.fixture
def decoded(monkeypatch) -> list[int]:
    """Return the list of blocks that are decoded from now on."""
    found = []

    class Index:
        def __init__(self, prefix):
            self._index = _Index(prefix)

        def __getattr__(self, name):
            return getattr(self._index, name)

        def decode_block_range(self, payload, first, last, out, base):
            found.extend(range(first, last))
            self._index.decode_block_range(payload, first, last, out, base)

    _Index = _core.Index
    monkeypatch.setattr(heads._core, "Index", Index)
    return found


@pytest.fixture
def large(small_heads) -> tuple[np.ndarray, bytes]:
    """13 versions of 40 blocks, the last of which has 100 items, in room for 16."""
    array = fields(13, 39 * 256 + 100)
    return array, grow(array, 16)


@pytest.fixture(params=["in parts", "at once"])
def large_or_not(request, large, monkeypatch) -> tuple[np.ndarray, bytes]:
    """The versions of `large`, which are read in parts, or are too few for that."""
    if request.param == "at once":
        monkeypatch.setattr(_core, "DEFAULT_BLOCK_BYTES", 1 << 24)
    return large
