"""What tests of checkpoints need."""

from __future__ import annotations

import pytest

from training_jobs import skip_without_jobs


@pytest.fixture(scope="session")
def needs_jobs():
    skip_without_jobs()
