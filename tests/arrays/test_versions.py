"""Parts of frames of several versions: fetched, decoded and cached blocks."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiers
from bf16codecs import BF16Arithmetic, encode_delta
from bf16codecs.errors import BaseMismatchError, CodecError, StoreError
from looping import for_each
from native_core import core
from noted_chunks import (
    ChunkPart,
    FrameFormat,
    NotedChunk,
    allow_few_ancestors,
    read,
    read_at_once_up_to,
    read_selection,
)
from selections import selections
from versions import ancestors, fields, with_parents

FLOAT32 = core.DTYPES["float32"]


def encode(array, block=256, codec="arithmetic", **options):
    raw = array.reshape(-1).view(np.uint8)
    number = core.CODECS[codec]
    return core.encode(raw, number, FLOAT32, steps=len(array), block=block, **options)


def read_range(stored, nbytes, start, stop):
    """Read bytes of a chunk, and check that the memory around them stays untouched."""
    memory = np.full(stop - start + 64, 0x55, np.uint8)
    out = memory[32:-32]
    read(FrameFormat(keep_heads=False), stored, ChunkPart.of_range(nbytes, out, start))
    assert (memory[:32] == 0x55).all()
    assert (memory[-32:] == 0x55).all()
    return out.tobytes()


@st.composite
def several_versions(draw):
    """Draw versions of a few blocks each, the last one short, with any parents."""
    steps = draw(st.integers(1, 9))
    array = fields(steps, draw(st.integers(1, 30)), draw(st.integers(1, 40)))
    frame = encode(array, draw(st.sampled_from([256, 512])), checksum=False)
    if steps > 1 and draw(st.booleans()):
        parents = [draw(st.integers(0, max(0, v - 1))) for v in range(steps)]
        frame = with_parents(frame, parents)
        array = np.frombuffer(core.decode(frame), "f4").reshape(array.shape)
    return frame, array


read_sizes = st.sampled_from([None, 1, 2048, 1 << 20])


@settings(max_examples=tiers.by_tier(40, 200))
@given(data=st.data(), case=several_versions(), read_nbytes=read_sizes, is_large=st.booleans())
def test_any_part_is_numpys(data, case, read_nbytes, is_large):
    frame, array = case
    with pytest.MonkeyPatch.context() as patch:
        if is_large:  # too large to be read at once
            read_at_once_up_to(patch, 16)
        selection = tuple(data.draw(selections(n)) for n in array.shape)
        found = read_selection(NotedChunk(frame, read_nbytes), array.shape, selection)
        np.testing.assert_array_equal(found.view("u4"), array[selection].view("u4"))
        start, stop = sorted(data.draw(st.integers(0, array.nbytes)) for _ in "ab")
        if start < stop:
            found = read_range(NotedChunk(frame, read_nbytes), array.nbytes, start, stop)
            assert found == array.tobytes()[start:stop]


@pytest.fixture
def large(small_heads):
    """16 versions of 40 blocks; the last of each has 100 items."""
    array = fields(16, 39 * 256 + 100)
    return array, encode(array)


def expected_blocks(versions, blocks):
    wanted = {a for v in versions for a in (v, *ancestors(v))}
    return sorted(40 * v + block for v in wanted for block in blocks)


@pytest.mark.parametrize("read_nbytes", [None, 1 << 20])
@for_each(
    "selection, versions, blocks",
    [
        (np.s_[0], [0], range(40)),
        (np.s_[7], [7], range(40)),
        (np.s_[15], [15], range(40)),
        (np.s_[7, 300], [7], [1]),
        (np.s_[7, -1], [7], [39]),
        (np.s_[6, 250:260], [6], [0, 1]),
        (np.s_[5:8, 600], [5, 6, 7], [2]),
        (np.s_[::5], [0, 5, 10, 15], range(40)),
        (np.s_[[3, 12]], [3, 12], range(40)),
        (np.s_[11:11], [], []),
    ],
)
def test_touched_blocks_and_their_ancestors_alone(
    large, decoded, selection, versions, blocks, read_nbytes
):
    array, frame = large
    decoded.clear()
    # Each block that is not needed is damaged: it is not read.
    needed = expected_blocks(versions, blocks)
    offsets = core.Index(frame).offsets
    damaged = bytearray(frame)
    for block in set(range(640)) - set(needed):
        damaged[offsets[block] : offsets[block + 1]] = bytes(offsets[block + 1] - offsets[block])
    stored = NotedChunk(bytes(damaged), read_nbytes)
    np.testing.assert_array_equal(read_selection(stored, array.shape, selection), array[selection])
    assert sorted(decoded) == needed
    fetched = stored.fetched()
    head, payloads = fetched[:2], fetched[2:]
    assert [head[0][0], head[1][1]] == [0, core.Index(frame).header_size]
    assert sum(b - a for a, b in payloads) == sum(offsets[b + 1] - offsets[b] for b in needed)


def test_one_request_for_each_run_of_blocks(large):
    array, frame = large
    offsets = core.Index(frame).offsets
    stored = NotedChunk(frame)
    read_selection(stored, array.shape, np.s_[5:8])
    runs = [(0, 40), (4 * 40, 8 * 40)]  # 5, 6 and 7 come from 4, and that from 0
    assert stored.fetched()[2:] == [(offsets[a], offsets[b]) for a, b in runs]


def test_small_versions_are_read_from_files_together():
    array = fields(64, 1000)
    frame = encode(array, 1024)
    with pytest.MonkeyPatch.context() as patch:
        read_at_once_up_to(patch, 1024)
        stored = NotedChunk(frame, 1 << 16)
        np.testing.assert_array_equal(read_selection(stored, array.shape, np.s_[:]), array)
    assert len(stored.fetched()) == 1 + 4


@pytest.mark.parametrize("read_nbytes", [None, 1 << 20])
def test_a_damaged_version_and_those_that_come_from_it(large, read_nbytes):
    array, frame = large
    offsets = core.Index(frame).offsets
    damaged = bytearray(frame)
    damaged[offsets[4 * 40 + 10] + 20] ^= 1
    for version in range(16):
        stored = NotedChunk(bytes(damaged), read_nbytes)
        if 4 in (version, *ancestors(version)):
            with pytest.raises(CodecError, match="block 170 of 640"):
                read_selection(stored, array.shape, np.s_[version])
            stored = NotedChunk(bytes(damaged), read_nbytes)
            np.testing.assert_array_equal(
                read_selection(stored, array.shape, np.s_[version, 11 * 256 :]),
                array[version, 11 * 256 :],
            )
        else:
            np.testing.assert_array_equal(
                read_selection(stored, array.shape, np.s_[version]), array[version]
            )


@pytest.mark.parametrize("read_nbytes", [None, 1 << 20])
def test_memory_does_not_grow_with_the_number_of_ancestors(read_nbytes):
    """Each of 24 versions of 4 MiB comes from the one before."""
    array = np.tile(fields(1, 1 << 20), (24, 1))
    frame = with_parents(encode(array, 0, checksum=False), [max(0, v - 1) for v in range(24)])
    stored = NotedChunk(frame, read_nbytes)
    out = np.empty(4 << 20, np.uint8)
    part = ChunkPart.of_range(array.nbytes, out, 23 * out.size)
    tracemalloc.start()
    try:
        read(FrameFormat(keep_heads=False), stored, part)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.tobytes() == array[23].tobytes()
    assert peak < (4 << 20)


def test_far_more_ancestors_than_this_package_writes_are_refused(monkeypatch):
    allow_few_ancestors(monkeypatch)
    array = fields(40, 3000)
    frame = with_parents(encode(array, checksum=False), [max(0, v - 1) for v in range(40)])
    array = np.frombuffer(core.decode(frame), "f4").reshape(array.shape)
    with pytest.raises(StoreError, match="read the whole chunk"):
        read_selection(NotedChunk(frame), array.shape, np.s_[39])
    found = read_selection(NotedChunk(frame), array.shape, np.s_[:])
    np.testing.assert_array_equal(found.view("u4"), array.view("u4"))
    found = read_selection(NotedChunk(frame), array.shape, np.s_[15])
    np.testing.assert_array_equal(found.view("u4"), array[15].view("u4"))


def test_frames_with_a_base_outside_are_refused():
    array = fields(2, 3000)
    frame = encode_delta(BF16Arithmetic("float32"), array[1], array[0])
    with pytest.raises(BaseMismatchError, match="base="):
        read_selection(NotedChunk(frame), array[1].shape, np.s_[5])
