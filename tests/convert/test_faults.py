"""Every operation of a conversion fails, is the last one, or is the last before power is lost."""

from __future__ import annotations

import itertools
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bf16codecs import _replace
from fault_process import STEP, Ask, driven, needs_glibc, smallest_allocation
from folders import Files, files_in, write_files
from power_cut import Disk, Record, read_log, states_during

pytestmark = needs_glibc

BASED = ["based.zarr", "based.h5"]
#: Stores that are rewritten in place: there is always an old one.
REBASED = ["rebased.zarr", "rebased.h5"]
KINDS = ["m.zarr", "m.zip", "m.h5", "file", "shards", *BASED, *REBASED]
#: Each kind, with a target that is new, and one that is replaced.
TARGETS = [(kind, replaced) for kind in KINDS for replaced in (False, True)]
TARGETS = [(kind, replaced) for kind, replaced in TARGETS if replaced or kind not in REBASED]
targets = pytest.mark.parametrize(
    ("kind", "overwrite"), TARGETS, ids=[f"{k}-{'overwrite' if o else 'new'}" for k, o in TARGETS]
)

SMALLEST = {kind: smallest_allocation(kind.endswith((".h5", "shards"))) for kind in KINDS}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def ask(base: Path) -> Iterator[Ask]:
    """Return a function that asks the driver."""
    with driven("fault_driver.py", base) as answer:
        yield answer


@pytest.mark.slow
@pytest.mark.parametrize("action", ["fail", "full", "kill"])
@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no exchange"])
@targets
def test_file_operations(ask: Ask, kind: str, overwrite: bool, exchange: bool, action: str) -> None:
    """The old target or the new one, complete, and nothing else after the next run."""
    request = {"kind": kind, "overwrite": overwrite, "exchange": exchange, "action": action}
    answer = ask(**request, first=random.randint(1, STEP), step=STEP)
    assert answer["problems"] == []
    assert answer["count"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_allocations(ask: Ask, kind: str) -> None:
    request = {"kind": kind, "overwrite": True, "exchange": True, "action": "fail"}
    first = random.randint(1, STEP)
    answer = ask(**request, first=first, step=STEP, allocation=SMALLEST[kind])
    assert answer["problems"] == []
    assert answer["count"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no exchange"])
@targets
def test_power_cuts(ask: Ask, base: Path, kind: str, overwrite: bool, exchange: bool) -> None:
    """Whatever is left of what was not synced, the old target or the new one is there, complete."""
    request = {"kind": kind, "overwrite": overwrite, "exchange": exchange, "action": "fail"}
    done = ask(**request, log=str(base / "log"))
    assert done["error"] is None
    new = files_in(base / "expected" / kind / "new")
    old: Files = files_in(base / "expected" / kind / "old") if overwrite else {}
    disk = Disk(base / "root", old)
    # What names are given to, and what was synced before, decides; all else is much the same.
    deciding = ("rename", "exchange", "link")
    every = math.ceil(STEP / 7)
    records = read_log(base / "log")
    states = states_during(disk, records, deciding, every, first=random.randrange(every))
    for state in states:
        assert recovered(state, base / "cut") in (old, new)
    assert len(states) > 3
    for state in disk.states(again=True):
        assert recovered(state, base / "cut") == new, "the command had ended"


def recovered(state: Files, folder: Path) -> Files:
    """Return what the next run makes of what is left."""
    if not any(name.startswith(".") for name in state):
        return state
    if all("/" not in name and content is None for name, content in state.items()):
        return {}  # an empty working folder
    shutil.rmtree(folder, ignore_errors=True)
    _replace.recover(write_files(state, folder))
    return files_in(folder)


def test_pairs_of_states_differ(base: Path) -> None:
    """The simulation has both extremes: a name without its data, and data without their name."""
    disk = Disk(base, {})
    log = [("create", ""), ("write", "x"), ("rename", "")]
    for name, text in log:
        disk.do(Record(name, 0, text.encode(), f"{base}/a", f"{base}/b"))
    states = list(disk.states())
    for expected in itertools.chain([{}], ({n: d} for n in "ab" for d in (b"", b"x"))):
        assert expected in states
    disk.do(Record("sync", 0, b"", f"{base}/b", ""))
    assert {"b": b""} not in disk.states(again=True)
