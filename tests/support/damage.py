"""Helpers for the damage that `verify_store` reports."""

from __future__ import annotations

from typing import Any

import pytest

from bf16codecs.convert import verify_store
from bf16codecs.errors import BF16CodecsError, CorruptDataError, Damage


def error_of(*args: Any, error: type[BF16CodecsError] = CorruptDataError) -> BF16CodecsError:
    with pytest.raises(error) as caught:
        verify_store(*args)
    assert "\n" not in str(caught.value)
    return caught.value


def damage_of(*args: Any, error: type[BF16CodecsError] = CorruptDataError) -> tuple[Damage, ...]:
    return error_of(*args, error=error).damage


def places(found: tuple[Damage, ...]) -> list[tuple[str | None, tuple[int, ...] | None]]:
    return [(damage.tensor, damage.chunk) for damage in found]
