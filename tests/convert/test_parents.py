"""Which step a step is coded against."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bf16codecs.convert.parents import choose_parent, max_depth


@pytest.mark.parametrize(("group", "depth"), [(1, 1), (2, 1), (3, 2), (4, 2), (16, 4), (17, 5)])
def test_depth_grows_like_the_digits_of_the_group(group: int, depth: int) -> None:
    assert max_depth(group) == depth


def test_nothing_is_gained() -> None:
    assert choose_parent({}, 10, {}, 4) is None
    assert choose_parent({0: 10, 1: 12}, 10, {0: 0, 1: 1}, 4) is None


def test_of_equals_the_shallower_is_taken() -> None:
    assert choose_parent({0: 5, 1: 5}, 10, {0: 0, 1: 1}, 4) == 0


def drift(group: int, exponent: float) -> list[int | None]:
    """Return the parents of steps whose differences grow with a power of how far they are apart."""
    parents: list[int | None] = [None]
    depths = {0: 0}
    for step in range(1, group):
        sizes = {p: round(1000 * (step - p) ** exponent) for p in range(step)}
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
