"""One step of an array whose first axis is the step, and steps that are in several arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tiers
from looping import for_each
from makers.growing import frames_of, grow
from noted_chunks import (
    RAW,
    FrameFormat,
    NotedStorage,
    StepsArray,
    StepView,
    chunked_array,
    in_library,
    little_endian,
    read_axes,
    read_range,
    rounded_array,
    step_nbytes,
)
from versions import fields

GROUP = 4


def growing(index, chunk):
    """Encode a chunk of steps as a growing frame, in blocks of 1 KiB."""
    return grow(chunk, GROUP)


def raw(index, chunk):
    return chunk.tobytes()


def box_of(reader, selection):
    """Read a box, given by a slice for each axis."""
    parts = zip(reader.shape, selection, strict=True)
    return read_axes(reader, [range(n)[part] for n, part in parts])


def points_of(reader, points):
    out = np.empty(points[0].size, reader.dtype)
    reader.read_points([np.asarray(p) for p in points], out)
    return out


def units_of(reader):
    """Read piece by piece, as for whole stores."""
    plan = reader.plan("x")
    found = []
    for piece in plan.pieces():
        chunk = np.empty(plan.chunk_nbytes, np.uint8)
        reader.read_piece(piece, chunk)
        found.append(chunk[: piece.nbytes].tobytes())
    return b"".join(found)


@pytest.fixture(params=["growing", "raw", "library", "rounded"])
def steps(request):
    """Return an array of 11 steps, in groups of 4, and its reader."""
    array = fields(11, 9, 40)
    storage = NotedStorage(1 << 20)
    if request.param == "library":
        return array, in_library(array)
    form, encode = (RAW, raw) if request.param == "raw" else (FrameFormat(), growing)
    reader = chunked_array("x", array, (GROUP, 4, 40), storage, form, encode)
    if request.param == "rounded":
        return array.astype(ml_dtypes.bfloat16), rounded_array(reader)
    return array, reader


@settings(max_examples=tiers.by_tier(10, 40))
@given(data=st.data())
def test_one_step_is_read_like_any_array(steps, data):
    array, reader = steps
    position = data.draw(st.integers(0, len(array) - 1))
    step, view = array[position], StepView(reader, position)
    assert (view.shape, view.dtype) == (step.shape, step.dtype)
    selection = tuple(
        data.draw(st.slices(n).filter(lambda s: s.step is None or s.step > 0)) for n in step.shape
    )
    assert box_of(view, selection).tobytes() == step[selection].tobytes()
    start, stop = sorted(data.draw(st.integers(0, step.nbytes)) for _ in "ab")
    assert read_range(view, start, stop) == little_endian(step)[start:stop]
    points = data.draw(hnp.integer_array_indices(step.shape, result_shape=st.just((5,))))
    points = [p % n for p, n in zip(points, step.shape, strict=True)]
    assert points_of(view, points).tobytes() == step[tuple(points)].tobytes()


def test_one_step_is_read_piece_by_piece(steps):
    array, reader = steps
    for position, step in enumerate(array):
        assert units_of(StepView(reader, position)) == little_endian(step)


@for_each("shape", [(), (1,), (3, 1, 7)])
def test_steps_of_any_shape(shape):
    array = np.arange(7 * int(np.prod(shape)), dtype="f4").reshape(7, *shape)
    reader = chunked_array("x", array, (GROUP, *shape), NotedStorage(), FrameFormat(), growing)
    for position, step in enumerate(array):
        view = StepView(reader, position)
        assert box_of(view, [slice(None)] * len(shape)).tobytes() == step.tobytes()
        assert units_of(view) == step.tobytes()


def test_a_step_takes_its_own_frames():
    array = fields(7, 9, 256)
    storage = NotedStorage()
    reader = chunked_array("x", array, (GROUP, 2, 256), storage, FrameFormat(), growing)
    for position in range(7):
        group, version = divmod(position, GROUP)
        chunks = [storage.chunks["x", (group, row, 0)] for row in range(5)]
        assert step_nbytes(reader, position) == sum(len(frames_of(c)[version]) for c in chunks)
    total = sum(len(chunk) - 32 - 16 * GROUP for chunk in storage.chunks.values())
    fill = sum(len(frames_of(storage.chunks["x", (1, row, 0)])[3]) for row in range(5))
    assert sum(step_nbytes(reader, position) for position in range(7)) == total - fill
    # For other software's chunks, an even share.
    shared = chunked_array("x", array, (GROUP, 2, 256), NotedStorage(1 << 20), RAW, raw)
    shares = [step_nbytes(shared, position) for position in range(7)]
    assert shares == [5 * 2 * 256 * 4] * 7
    assert step_nbytes(in_library(array), 3) == 0


@pytest.mark.usefixtures("small_heads")
def test_of_a_step_the_touched_blocks_of_its_versions_alone():
    array = fields(GROUP, 40, 256)
    storage = NotedStorage()
    reader = chunked_array("x", array, (GROUP, 40, 256), storage, FrameFormat(), growing)
    view = StepView(reader, 3)
    box_of(view, np.s_[:1, :])  # to keep the heads
    storage.ranges.clear()
    assert box_of(view, np.s_[7:8, :]).tobytes() == array[3, 7].tobytes()
    # 3 comes from 2, and 2 from 0: one block of each.
    assert len(storage.ranges) == 3
    assert storage.fetched("x") < 3 * 1024
    assert view.box_work([range(7, 8), range(256)]).total >= 1024


@st.composite
def histories(draw):
    """Draw which of three arrays has each step, if any has."""
    which = st.sampled_from([0, 1, 2, None])
    return draw(st.lists(which, min_size=1, max_size=9).filter(lambda f: set(f) != {None}))


@settings(max_examples=tiers.by_tier(20, 60))
@given(history=histories(), data=st.data())
def test_steps_of_several_arrays(history, data):
    n = len(history)
    arrays = [fields(n, 3, 5, seed=seed) for seed in range(3)]
    readers = [
        chunked_array("x", arrays[0], (2, 3, 5), NotedStorage(), RAW, raw),
        chunked_array("x", arrays[1], (GROUP, 2, 5), NotedStorage(), FrameFormat(), growing),
        in_library(arrays[2]),
    ]
    by_step = [None if i is None else readers[i] for i in history]
    joined = StepsArray(by_step, np.nan)
    expected = np.full((n, 3, 5), np.nan, "f4")
    for position, i in enumerate(history):
        if i is not None:
            expected[position] = arrays[i][position]
    selection = tuple(
        data.draw(st.slices(size).filter(lambda s: s.step is None or s.step > 0))
        for size in expected.shape
    )
    assert box_of(joined, selection).tobytes() == expected[selection].tobytes()
    picked = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1)))), int)
    out = np.empty((len(picked), 3, 5), "f4")
    for job in joined.box_jobs([picked, range(3), range(5)], out):
        job()
    assert out.tobytes() == expected[picked].tobytes()
    points = [data.draw(hnp.arrays(int, 6, elements=st.integers(0, s - 1))) for s in joined.shape]
    assert points_of(joined, points).tobytes() == expected[tuple(points)].tobytes()
    assert joined.points_work(points) >= 0


def test_work_is_that_of_the_arrays_that_are_read():
    array = fields(8, 3, 5)
    reader = chunked_array("x", array, (GROUP, 3, 5), NotedStorage(), FrameFormat(), growing)
    joined = StepsArray([reader, None, None, None, reader, None, None, None], np.nan)
    whole = range(3), range(5)
    assert joined.box_work([range(8), *whole]) == reader.box_work([range(0, 8, 4), *whole])
    assert joined.box_work([range(1, 4), *whole]) == (0, 0)
    assert joined.box_work([range(0), *whole]) == (0, 0)
    assert joined.whole_work == joined.box_work([range(8), *whole]).total
    assert joined.scratch_nbytes == reader.scratch_nbytes
