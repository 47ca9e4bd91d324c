"""Appends of which an operation fails, or is the last one, or the last before power is lost.

Afterwards the run is as before or has the step, and the next appends make of it what they would
have made without.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from append_driver import KINDS
from fault_process import STEP, Ask, driven, needs_glibc, smallest_allocation
from folders import files_in, write_files
from power_cut import Disk, read_log, states_during

pytestmark = [needs_glibc, pytest.mark.slow]

SMALLEST = {kind: smallest_allocation(kind.startswith("HDF5")) for kind in KINDS}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def ask(base: Path) -> Iterator[Ask]:
    """Return a function that asks the driver."""
    with driven("append_driver.py", base) as answer:
        yield answer


@pytest.mark.parametrize("action", ["fail", "full", "kill"])
@pytest.mark.parametrize("kind", KINDS)
def test_file_operations(ask: Ask, kind: str, action: str) -> None:
    first = random.randint(1, STEP)
    answer = ask(kind=kind, action=action, first=first, step=STEP)
    assert answer["problems"] == []
    assert answer["count"] > 20


@pytest.mark.parametrize("kind", KINDS)
def test_allocations(ask: Ask, kind: str) -> None:
    first = random.randint(1, STEP)
    answer = ask(kind=kind, action="fail", first=first, step=STEP, allocation=SMALLEST[kind])
    assert answer["problems"] == []
    assert answer["count"] > 10


@pytest.mark.parametrize("kind", KINDS)
def test_power_cuts(ask: Ask, base: Path, kind: str) -> None:
    """Whatever is left of what was not flushed."""
    done = ask(kind=kind, action="fail", log=str(base / "log"))
    assert done["error"] is None
    before = files_in(base / "runs" / kind / str(KINDS[kind][2]))
    disk = Disk(base / "root", before)
    every = math.ceil(STEP / 5)
    records = read_log(base / "log")
    states = states_during(disk, records, ["rename"], every, first=random.randrange(every))
    # Most are much the same; all of them take as long as everything else here.
    states = random.sample(states, min(len(states), 300 // every))
    # The last ones: the command had ended.
    ended = list(disk.states(again=True))
    paths = [
        write_files(state, base / "cut" / kind / str(n))
        for n, state in enumerate([*states, *ended])
    ]
    answer = ask(kind=kind, states=[str(path) for path in paths])
    assert answer["problems"] == []
    answer = ask(kind=kind, states=[str(path) for path in paths[len(states) :]], has_step=True)
    assert answer["problems"] == []
