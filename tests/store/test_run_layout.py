"""A run's attributes, and the paths of tensors that appear later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bf16codecs._files.digests import Digests
from bf16codecs.errors import StepNotFoundError, StoreError
from bf16codecs.store.attributes import ROUNDED, StoredFile
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import array_paths, later_paths
from bf16codecs.store.runs.layout import Placement, RunInfo, RunStep
from looping import noted


def step(number: int) -> RunStep:
    return RunStep(
        number, (StoredFile("m.safetensors", 9, Digests("00"), "safetensors/header/0"),), None
    )


def run_of(history: list[dict[str, str]]) -> RunInfo:
    info = RunInfo(4)
    for number, paths in enumerate(history):
        info = info.with_step(step(10 * number), paths)
    return info


def test_tensors_come_go_and_change() -> None:
    history = [
        {"a": "a", "b": "b"},
        {"a": "a"},
        {"a": "a2", "b": "a2"},
        {"b": "b", "a": "a", "c": "b" + ROUNDED},
    ]
    info = run_of(history)
    assert [info.paths_at(index) for index in range(4)] == history
    assert info.tensors["a"] == (Placement("a2", ((2, 3),)), Placement("a", ((0, 2), (3, None))))
    assert info.tensors["c"] == (Placement("b" + ROUNDED, ((3, None),)),)


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.sampled_from(["x", "y", "x" + ROUNDED])),
        min_size=1,
        max_size=8,
    )
)
def test_any_history_is_written_and_read_back(history: list[dict[str, str]]) -> None:
    info = run_of(history)
    assert [info.paths_at(index) for index in range(len(history))] == history
    content = StoreInfo((), None, {}, run=info).to_attributes()
    assert StoreInfo.from_attributes(content, "x").run == info


def test_placements_know_their_steps() -> None:
    placement = Placement("a", ((0, 2), (4, None)))
    assert list(placement.indices(6)) == [0, 1, 4, 5]
    assert [index for index in range(6) if index in placement] == [0, 1, 4, 5]
    assert (placement.last(6), placement.is_always) == (5, False)
    assert (Placement("a").last(6), Placement("a").is_always) == (5, True)
    info = run_of([{"a": "x", "b": "x", "c": "x" + ROUNDED}, {"a": "y"}])
    assert info.arrays == {
        "x": [Placement("x", ((0, 1),))] * 2,
        "y": [Placement("y", ((1, None),))],
    }


def test_steps_by_number() -> None:
    info = run_of([{}] * 9)
    assert info.index_of(30, "run") == 3
    with pytest.raises(
        StepNotFoundError, match=r"run: no step 31; there are 0, 10, 20, ..., 70, 80"
    ):
        info.index_of(31, "run")


DAMAGES: list[Callable[[Any], object]] = [
    lambda a: a["run"].update(group=0),
    lambda a: a["run"].update(group=True),
    lambda a: a["run"].update(group=10**9),
    lambda a: a.update(run=3),
    lambda a: a.update(lossy={"to": "float16"}),
    lambda a: a.update(steps={}),
    lambda a: a.update(steps=[]),
    lambda a: a["steps"][0].update(step=20),
    lambda a: a["steps"][0].update(step=-1),
    lambda a: a["steps"][0].update(step="1"),
    lambda a: a["steps"][1].update(parent=1),
    lambda a: a["steps"][1].update(parent=-1),
    lambda a: a["steps"][0].pop("files"),
    lambda a: a["steps"][0]["files"][0].update(name="../x"),
    lambda a: a["tensors"].update(a=3),
    lambda a: a["tensors"].update(a=[3]),
    lambda a: a["tensors"].update(a=[{}]),
    lambda a: a["tensors"].update(a=[{"path": "a#bfloat16"}]),
    lambda a: a["tensors"].update(a=[{"path": "a"}, {"path": "b"}]),
    lambda a: a["tensors"].update(a=[]),
    lambda a: a["tensors"].update(a=[{"path": "a", "at": []}]),
    lambda a: a["tensors"].update(a=[{"path": "a", "at": {}}]),
    lambda a: a["tensors"].update(a=[{"path": "a", "at": [[0, 0]]}]),
    lambda a: a["tensors"].update(a=[{"path": "a", "at": [[0, 3]]}]),
    lambda a: a["tensors"].update(a=[{"path": "a", "at": [[2, None]]}]),
    lambda a: a["tensors"].update(a=[{"path": "a", "at": [[1, 2], [0, 1]]}]),
    lambda a: a["tensors"].update(a=[{"path": "a", "at": [[0, 2], [1, 3]]}]),
    lambda a: a["tensors"].update(a=[{"path": "a", "at": [0]}]),
    lambda a: a["tensors"].update(a=[{"path": "a", "at": [["0", 1]]}]),
]


def test_damaged_attributes() -> None:
    for change in DAMAGES:
        attributes = StoreInfo((), None, {}, run=run_of([{"a": "a"}] * 2)).to_attributes()
        change(attributes["bf16codecs"])
        with noted(attributes), pytest.raises(StoreError, match="damaged store attributes"):
            StoreInfo.from_attributes(attributes, "x")


def test_paths_of_what_comes_later() -> None:
    taken = list(array_paths(["a.b", "c", "D"]).values())
    paths = later_paths(["a", "a.b.x", "c", "d", "new", "step.x", "A.n"], taken, "3")
    assert paths["new"] == "new"
    assert later_paths(["step"], taken, "3") == {"step": "=73tep"}
    assert paths["step.x"] == "=73tep/x"
    # No path is a prefix of another, even where upper and lower case are the same.
    parts = [path.lower().split("/") for path in [*taken, *paths.values()]]
    assert len({tuple(p) for p in parts}) == len(parts)
    assert not any(a != b and a == b[: len(a)] for a in parts for b in parts)
    assert paths["c"].startswith("==")
    assert later_paths(["c"], taken, "3") != later_paths(["c"], taken, "4")
