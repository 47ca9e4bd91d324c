"""The blocks that a selection touches, against a count by NumPy."""

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from looping import for_each
from noted_chunks import block_ranges, touched_ranges


def touched_blocks(selection, shape, item_size, block_bytes):
    count = -(-math.prod(shape) * item_size // block_bytes)
    ranges = touched_ranges(selection, shape, item_size, block_bytes)
    return block_ranges(ranges, block_bytes, count)


def blocks_of(runs):
    for (_, end), (begin, _) in itertools.pairwise(runs):
        assert end < begin
    assert all(first < last for first, last in runs)
    return {block for first, last in runs for block in range(first, last)}


def expected_blocks(selection, shape, item_size, block_bytes):
    starts = np.arange(math.prod(shape)).reshape(shape)[selection].ravel() * item_size
    return set(starts // block_bytes) | set((starts + item_size - 1) // block_bytes)


def slices(length):
    bound = st.integers(-length - 1, length + 1) | st.none()
    step = st.integers(1, 7) | st.integers(-7, -1) | st.none()
    return st.builds(slice, bound, bound, step)


def axis_selection(length):
    index = st.integers(0, length - 1)
    return st.one_of(index, slices(length), st.lists(index, min_size=1, max_size=6))


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)))
    item_size = draw(st.sampled_from([1, 2, 3, 4, 16]))
    block_bytes = draw(st.integers(16, 600))
    kind = draw(st.sampled_from(["basic", "orthogonal", "coordinates", "mask"]))
    if kind == "basic":
        axes = [draw(st.integers(0, n - 1) | slices(n)) for n in shape]
        if draw(st.booleans()):
            axes[draw(st.integers(0, len(axes) - 1)) :] = [Ellipsis]
        selection = tuple(axes)
    elif kind == "orthogonal":
        picked = [np.atleast_1d(np.arange(n)[draw(axis_selection(n))]) for n in shape]
        selection = np.ix_(*picked)
    elif kind == "coordinates":
        count = draw(st.integers(1, 8))
        points = [
            draw(st.lists(st.integers(0, n - 1), min_size=count, max_size=count)) for n in shape
        ]
        selection = tuple(np.array(p) for p in points)
    else:
        selection = np.random.default_rng(draw(st.integers(0, 99))).random(shape) < 0.1
    return selection, shape, item_size, block_bytes


@given(cases())
def test_no_touched_block_is_missed(case):
    _, shape, item_size, block_bytes = case
    found = blocks_of(touched_blocks(*case))
    expected = expected_blocks(*case)
    assert found >= expected
    assert found <= set(range(-(-math.prod(shape) * item_size // block_bytes)))


@for_each(
    "selection",
    [
        np.s_[:],
        np.s_[3],
        np.s_[3:5],
        np.s_[::25],
        np.s_[:, 0],
        np.s_[10:90:40, 5:7],
        np.s_[..., -1],
        np.s_[5:5],
        np.s_[99, 63],
        np.ix_([0, 1, 50], [3, 4]),
        (np.array([0, 99, 50]), np.array([0, 63, 1])),
    ],
)
@for_each("block_bytes", [64, 128, 1000, 1024, 1 << 20])
def test_and_no_other_is_named(selection, block_bytes):
    found = blocks_of(touched_blocks(selection, (100, 64), 2, block_bytes))
    assert found == expected_blocks(selection, (100, 64), 2, block_bytes)


def test_many_rows_stay_few_spans():
    # 2^24 separate elements: an array of their positions would take 128 MiB.
    assert touched_ranges(np.s_[:, 0], (1 << 24, 2), 2, 1 << 19) == [(0, (1 << 26) - 2)]
