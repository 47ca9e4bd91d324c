"""Fixtures of the tests of models."""

from __future__ import annotations

from typing import Any

import pytest

from bf16codecs._arrays import storage
from bf16codecs._arrays.storage import AtMost


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Note each read of a local file: its key and its ranges, None for all of it."""
    reads: list[tuple[Any, Any]] = []
    original = storage.OpenRange.read

    def read(self: Any, request: Any) -> Any:
        reads.append((self.key, None if isinstance(request, AtMost) else list(request)))
        return original(self, request)

    monkeypatch.setattr(storage.OpenRange, "read", read)
    return reads
