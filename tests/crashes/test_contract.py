"""Every writing operation fails, is the process's last, or has another process beside it.

`tests/support/crashes.py` has the table of operations, that of moments, and the contract.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiers
from crashes import MOMENTS, OPERATIONS, Driven, driven
from power_cut import Disk, Record


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    with driven(tmp_path_factory.mktemp("crashes")) as driver:
        yield driver


@pytest.mark.parametrize("name", OPERATIONS)
def test_contract(driver: Driven, name: str) -> None:
    """The old target or the new one, complete, and nothing else after the next run."""
    verb = OPERATIONS[name].verb
    problems = []
    for moment in MOMENTS:
        if verb in MOMENTS[moment].verbs:
            problems += driver.problems(name, moment)
            # Operations on runs exchange no names.
            if verb == "convert" and moment != "no memory":
                problems += driver.problems(name, moment, exchange=False)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name.endswith("-overwrite")])
def test_writers_and_readers_at_once(driver: Driven, name: str) -> None:
    """In any order; unlike in `test_contract`, no seed repeats it."""
    for exchange in (True, False):
        assert driver.race(name, exchange, tiers.by_tier(1, 40)) == [], exchange


def test_pairs_of_states_differ(tmp_path: Path) -> None:
    """The simulation has both extremes: a name without its data, and data without their name."""
    disk = Disk(tmp_path, {})
    log = [("create", ""), ("write", "x"), ("rename", "")]
    for name, text in log:
        disk.do(Record(name, 0, 0, text.encode(), f"{tmp_path}/a", f"{tmp_path}/b"))
    states = list(disk.states())
    for expected in itertools.chain([{}], ({n: d} for n in "ab" for d in (b"", b"x"))):
        assert expected in states
    disk.do(Record("sync", 0, 0, b"", f"{tmp_path}/b", ""))
    assert {"b": b""} not in disk.states(again=True)
