"""What the tests of models share."""

from __future__ import annotations

from typing import Any

import pytest

from bf16codecs._chunks import sources
from bf16codecs._chunks.stored import AtMost


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Note each read of a local file: its key and its ranges, None for all of it."""
    reads: list[tuple[Any, Any]] = []
    original = sources.OpenPart.read

    def read(self: Any, request: Any) -> Any:
        reads.append((self.key, None if isinstance(request, AtMost) else list(request)))
        return original(self, request)

    monkeypatch.setattr(sources.OpenPart, "read", read)
    return reads
