"""The tier of a test run, quick or full, and its seed. conftest.py sets both before it collects."""

from __future__ import annotations

import random
from typing import TypeVar

T = TypeVar("T")

#: The first number of everything random: `--seed`.
SEED = 0
#: Whether the run includes the tests marked slow: `--all`, or `-m "slow or not slow"`.
IS_FULL = False


def by_tier(quick: T, full: T) -> T:
    """Return the value for this run's tier, such as a number of examples, seeds or rounds."""
    return full if IS_FULL else quick


def rng(*names: object) -> random.Random:
    """Return random numbers that depend on the seed and on the names alone.

    Give the test's name and its parameters: then it draws the same numbers however it is run.
    """
    return random.Random(f"{SEED}:{names}")
