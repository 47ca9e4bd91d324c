"""The parents that steps are coded against."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bf16codecs.convert import append_to_run
from bf16codecs.convert.runs import appending
from bf16codecs.convert.runs.appending import candidates, choose_parent, max_depth
from run_stores import drifting, write_checkpoints


def test_depth_grows_like_the_digits_of_the_group() -> None:
    depths = {group: max_depth(group) for group in (1, 2, 3, 4, 16, 17)}
    assert depths == {1: 1, 2: 1, 3: 2, 4: 2, 16: 4, 17: 5}


def test_nothing_is_gained() -> None:
    assert choose_parent({}, 10, {}, 4) is None
    assert choose_parent({0: 10, 1: 12}, 10, {0: 0, 1: 1}, 4) is None


def test_of_equals_the_shallower_is_taken() -> None:
    assert choose_parent({0: 5, 1: 5}, 10, {0: 0, 1: 1}, 4) == 0


def drift(
    group: int, exponent: float, tried: Callable[[dict[int, int]], Iterable[int]] = candidates
) -> list[int | None]:
    """Return the parents of steps whose differences grow with a power of how far they are apart."""
    parents: list[int | None] = [None]
    depths = {0: 0}
    for step in range(1, group):
        sizes = {p: round(1000 * (step - p) ** exponent) for p in tried(depths)}
        parent = choose_parent(sizes, 100_000, depths, max_depth(group))
        assert parent is not None
        parents.append(parent)
        depths[step] = depths[parent] + 1
    return parents


def test_chains_that_begin_anew() -> None:
    parents = drift(16, 0.5)
    assert parents[1:5] == [0, 1, 2, 3]
    assert parents[5] == 0
    # Two thirds follow the step right before.
    assert sum(parent == step - 1 for step, parent in enumerate(parents)) >= 10


def test_few_are_tried_and_they_are_the_best() -> None:
    for group, exponent in itertools.product((5, 16, 17, 64, 128), (0.3, 0.5, 1.0)):

        def size(parents: list[int | None], exponent: float = exponent) -> float:
            return sum((n - p) ** exponent for n, p in enumerate(parents) if p is not None)

        few, all_of_them = drift(group, exponent), drift(group, exponent, list)
        is_near = group > 17 and size(few) <= 1.01 * size(all_of_them)
        assert few == all_of_them or is_near, (group, exponent)
        depths = {0: 0}
        for step, parent in enumerate(few[1:], 1):
            assert len(candidates(depths)) <= 16 + max_depth(group), (group, exponent)
            depths[step] = depths[parent or 0] + 1


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=40),
    st.integers(1, 1000),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_never_too_deep_and_never_larger_than_alone(sizes, alone, limit, random) -> None:
    depths = {place: random.randint(0, limit) for place in range(len(sizes))}
    chosen = choose_parent(dict(enumerate(sizes)), alone, depths, limit)
    if chosen is not None:
        assert depths[chosen] < limit
        assert sizes[chosen] < alone


def test_appending_costs_the_same_in_a_large_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = write_checkpoints(tmp_path, {n: {"w": drifting((8, 8), n)} for n in range(24)})
    tried = []
    estimate = appending.coded_nbytes

    def count(*args: Any) -> int | None:
        tried[-1] += 1
        return estimate(*args)

    monkeypatch.setattr(appending, "coded_nbytes", count)
    run = tmp_path / "run.zarr"
    for step in steps:
        tried.append(0)
        append_to_run(step, run, keyframe_every=64, sync=False)
    # The parents that are tried, and the step alone.
    assert tried[:16] == [0, *range(2, 17)]
    assert max(tried) <= 1 + 16 + max_depth(64)
