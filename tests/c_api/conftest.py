"""The C library that the tests load."""

from __future__ import annotations

import pytest

from c_library import PREFIX, Library


@pytest.fixture(scope="session")
def library() -> Library:
    """Return the library, or skip: `docs/contributing.md` describes building and installing it."""
    if PREFIX is None:
        pytest.skip("BF16CODECS_C_PREFIX does not say where the C library is installed")
    return Library(PREFIX)
