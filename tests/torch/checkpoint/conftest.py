"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

import pytest

from training_jobs import skip_without_jobs


@pytest.fixture(scope="session")
def needs_jobs():
    skip_without_jobs()
