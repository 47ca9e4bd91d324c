"""Parts of growing frames: fetched ranges, decoded blocks, and damage."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiers
from bf16codecs.errors import CodecError, CorruptDataError, StoreError, TruncatedDataError
from looping import for_each
from makers.growing import (
    HEADER,
    blocks_on_the_way,
    ends_of,
    frames_of,
    grow,
    grown,
    head_sizes,
    with_entry,
)
from native_core import core
from noted_chunks import (
    ChunkPart,
    FrameFormat,
    NotedChunk,
    NotedStorage,
    allow_few_ancestors,
    chunked_array,
    read,
    read_at_once_up_to,
    read_axes,
    read_range,
    read_selection,
)
from selections import selections
from versions import ancestors, fields


@st.composite
def growing_frames(draw):
    """Draw versions of a few blocks each, with any parents, in more room than they take."""
    count = draw(st.integers(1, 9))
    array = fields(count, draw(st.integers(1, 30)), draw(st.integers(1, 40)))
    parents = [draw(st.none() | st.integers(0, v - 1)) if v else None for v in range(count)]
    room = count + draw(st.integers(0, 3))
    block = draw(st.sampled_from([256, 512]))
    return grow(array, room, parents, block=block), array, room


read_sizes = st.sampled_from([None, 1, 2048, 1 << 20])
from_memory_and_files = pytest.mark.parametrize("read_nbytes", [None, 1 << 20])


@settings(max_examples=tiers.by_tier(50, 400))
@given(
    data=st.data(),
    case=growing_frames(),
    rest=st.binary(max_size=99),
    read_nbytes=read_sizes,
    is_large=st.booleans(),
)
def test_any_part_is_numpys(data, case, rest, read_nbytes, is_large):
    growing, array, room = case
    with pytest.MonkeyPatch.context() as patch:
        if is_large:  # too large to be read at once
            read_at_once_up_to(patch, 16)
        selection = tuple(data.draw(selections(n)) for n in array.shape)
        shape = (room, *array.shape[1:])
        first = selection[0]
        if isinstance(first, int):
            first %= len(array)
        else:
            first = slice(*(i if i >= 0 else None for i in first.indices(len(array))))
        selection = (first, *selection[1:])
        found = read_selection(NotedChunk(growing + rest, read_nbytes), shape, selection)
        np.testing.assert_array_equal(found.view("u4"), array[selection].view("u4"))


@from_memory_and_files
@for_each(
    "selection, versions, blocks",
    [
        (np.s_[0], [0], range(40)),
        (np.s_[7], [7], range(40)),
        (np.s_[7, 300], [7], [1]),
        (np.s_[7, -1], [7], [39]),
        (np.s_[12, 250:260], [12], [0, 1]),
        (np.s_[5:8, 600], [5, 6, 7], [2]),
        (np.s_[:13:5], [0, 5, 10], range(40)),
        (np.s_[[3, 12]], [3, 12], range(40)),
        (np.s_[11:11], [], []),
    ],
)
def test_touched_blocks_and_their_ancestors_alone(large, selection, versions, blocks, read_nbytes):
    array, growing = large
    # Everything else is damaged, heads of other versions included: it is not read.
    needed = blocks_on_the_way(growing, versions, blocks)
    wanted = {a for v in versions for a in (v, *ancestors(v))}
    damaged = bytearray(growing[: HEADER + 16 * 16].ljust(len(growing), b"\x99"))
    begin, sizes = HEADER + 16 * 16, head_sizes(growing)
    for version, frame in enumerate(frames_of(growing)):
        if version in wanted:
            damaged[begin : begin + sizes[version]] = frame[: sizes[version]]
        begin += len(frame)
    for start, stop in needed:
        damaged[start:stop] = growing[start:stop]
    stored = NotedChunk(bytes(damaged), read_nbytes)
    found = read_selection(stored, (16, *array.shape[1:]), selection)
    np.testing.assert_array_equal(found, array[selection])
    fetched = sum(stop - start for start, stop in stored.fetched())
    blocks = sum(stop - start for start, stop in needed)
    # Directory, heads, and heads of versions that follow on each other once more.
    assert fetched - blocks <= HEADER + 16 * 16 + 48 + 2 * sum(sizes)
    if read_nbytes is None:
        assert len(stored.requests) <= 5  # directory and heads in two each: the first is small


def test_one_round_of_requests_for_heads_and_one_for_blocks(monkeypatch):
    read_at_once_up_to(monkeypatch, 1024)
    array = fields(13, 40 * 2048)
    growing = grow(array, 16, block=2048)
    stored = NotedChunk(growing)
    found = read_selection(stored, (16, *array.shape[1:]), np.s_[11, 70_000])
    assert found == array[11, 70_000]
    prefix, heads, blocks = stored.requests
    assert prefix == [(0, 4096)]
    assert len(heads) == 3  # of 8, 10 and 11: that of 0 came with the directory
    assert blocks == blocks_on_the_way(growing, [11], [34])


def test_heads_may_be_long(small_heads):
    """A model of row and column scales is larger than what is read for a head at first."""
    array = fields(3, 200, 300)
    growing = grow(array, 4, level=1, row=300)
    assert max(head_sizes(growing)) > 48
    for form in (FrameFormat(), FrameFormat(keep_heads=False)):
        for version in (2, 1, 0):
            stored = NotedChunk(growing, 4096)
            found = read_selection(stored, (4, 200, 300), np.s_[version, 7], form)
            np.testing.assert_array_equal(found, array[version, 7])


@from_memory_and_files
def test_known_heads_are_not_read_again(large, read_nbytes):
    array, growing = large
    form, shape = FrameFormat(), (16, *array.shape[1:])
    read_selection(NotedChunk(growing, read_nbytes), shape, np.s_[7, 0], form)
    stored = NotedChunk(growing, read_nbytes)
    read_selection(stored, shape, np.s_[7, 600], form)
    assert sorted(stored.fetched()) == blocks_on_the_way(growing, [7], [2])
    stored = NotedChunk(growing, read_nbytes)
    read_selection(stored, shape, np.s_[5, 600], form)  # 4 and 0 are known from 7
    assert sorted(stored.fetched())[-1] == blocks_on_the_way(growing, [5], [2])[-1]
    assert stored.requests[0][0][0] > HEADER + 16 * 16


@from_memory_and_files
def test_a_version_that_is_not_there(large_or_not, read_nbytes):
    array, growing = large_or_not
    for selection, version in ((np.s_[13], 13), (np.s_[::5], 15), (np.s_[:], 15), (np.s_[-2], 14)):
        message = f"the chunk has 13 of 16 versions, and version {version} was asked for"
        with pytest.raises(CorruptDataError, match=message):
            read_selection(NotedChunk(growing, read_nbytes), (16, *array.shape[1:]), selection)


@from_memory_and_files
def test_padding_where_it_is_asked_for(large_or_not, read_nbytes):
    array, growing = large_or_not
    nbytes = 16 * array[0].nbytes
    whole = array.tobytes().ljust(nbytes, b"\xff")
    for start, stop in ((0, nbytes), (array.nbytes - 9, nbytes - 1), (array.nbytes + 5, nbytes)):
        out = np.full(stop - start, 0x55, np.uint8)
        part = replace(ChunkPart.of_range(nbytes, out, start), pads=True)
        read(FrameFormat(), NotedChunk(growing, read_nbytes), part)
        assert out.tobytes() == whole[start:stop]


@from_memory_and_files
def test_a_directory_that_was_kept_is_read_anew(large, read_nbytes):
    array, growing = large
    form, shape = FrameFormat(), (16, *array.shape[1:])
    frames, parents = frames_of(growing), core.GrowingIndex(growing).parents
    for count in range(1, 14):
        frame = grown(frames[:count], parents[:count], 16, array[0].nbytes)
        stored = NotedChunk(frame, read_nbytes)
        last = np.s_[count - 1, 300]
        assert read_selection(stored, shape, last, form) == array[last]
        with pytest.raises(CorruptDataError, match=f"{count} of 16 versions"):
            read_selection(stored, shape, np.s_[count, 300], form)
        stored.requests.clear()
        assert read_selection(stored, shape, np.s_[0, 300], form) == array[0, 300]
        assert min(start for start, _ in stored.fetched()) > 0


def test_a_chunk_of_another_size(large):
    array, growing = large
    with pytest.raises(CorruptDataError, match="a chunk of this array has"):
        read_selection(NotedChunk(growing), (15, *array.shape[1:]), np.s_[0, 0])


@from_memory_and_files
def test_memory_does_not_grow_with_the_number_of_ancestors(read_nbytes):
    """Each of 24 versions of 4 MiB comes from the one before."""
    array = np.tile(fields(1, 1 << 20), (24, 1))
    parents = [None, *range(23)]
    growing = grow(array, 25, parents, block=0)
    out = np.empty(4 << 20, np.uint8)
    part = ChunkPart.of_range(25 * out.size, out, 23 * out.size)
    tracemalloc.start()
    try:
        read(FrameFormat(keep_heads=False), NotedChunk(growing, read_nbytes), part)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.tobytes() == array[23].tobytes()
    assert peak < (4 << 20)


def test_far_more_ancestors_than_this_package_writes_are_refused(monkeypatch):
    allow_few_ancestors(monkeypatch)
    array = fields(40, 3000)
    growing = grow(array, 40, [None, *range(39)])
    with pytest.raises(StoreError, match="read the whole chunk"):
        read_selection(NotedChunk(growing), array.shape, np.s_[39])
    found = read_selection(NotedChunk(growing), array.shape, np.s_[:])
    np.testing.assert_array_equal(found, array)


@from_memory_and_files
def test_versions_of_one_item(read_nbytes, monkeypatch):
    """Directory and heads take far more than the items."""
    read_at_once_up_to(monkeypatch, 16)
    array = fields(3000, 1)
    growing = grow(array, 4000)
    found = read_selection(NotedChunk(growing, read_nbytes), (4000, 1), np.s_[:3000])
    np.testing.assert_array_equal(found, array)
    item = read_selection(NotedChunk(growing, read_nbytes), (4000, 1), np.s_[2999, 0])
    assert item == array[2999, 0]


@from_memory_and_files
def test_arrays_that_end_where_the_versions_do(small_heads, read_nbytes):
    """Only the array's part of a padded chunk is requested."""
    array = fields(5, 20, 300)
    storage = NotedStorage(read_nbytes)
    reader = chunked_array(
        "x", array, (8, 4, 300), storage, FrameFormat(), lambda i, c: grow(c[:5], 8)
    )
    for piece in reader.plan("x").pieces():
        assert piece.index[0] == 0
        rows = slice(4 * piece.index[1], 4 * piece.index[1] + 4)
        box = read_axes(reader, [range(5), range(rows.start, rows.stop), range(300)])
        np.testing.assert_array_equal(box, array[:, rows])
    whole = chunked_array(
        "y", array, (8, 20, 300), storage, FrameFormat(), lambda i, c: grow(c[:5], 8)
    )
    (piece,) = whole.plan("y").pieces()
    out = np.zeros(8 * array[0].nbytes, np.uint8)
    whole.read_piece(piece, out)
    assert out[: array.nbytes].tobytes() == array.tobytes()
    assert read_range(whole, 7, array.nbytes - 5) == array.tobytes()[7:-5]


# --- damaged, cut off, or growing while they are read


@from_memory_and_files
def test_a_damaged_version_and_those_that_come_from_it(large, read_nbytes):
    array, growing = large
    damaged = bytearray(growing)
    damaged[blocks_on_the_way(growing, [4], [10])[-1][0] + 20] ^= 1
    for version in range(13):
        stored = partial(NotedChunk, bytes(damaged), read_nbytes)
        shape = (16, *array.shape[1:])
        if 4 in (version, *ancestors(version)):
            with pytest.raises(CodecError, match="version 4: block 10 of 40"):
                read_selection(stored(), shape, np.s_[version])
            found = read_selection(stored(), shape, np.s_[version, 11 * 256 :])
            np.testing.assert_array_equal(found, array[version, 11 * 256 :])
        else:
            found = read_selection(stored(), shape, np.s_[version])
            np.testing.assert_array_equal(found, array[version])


@from_memory_and_files
def test_another_parent_is_damage(large_or_not, read_nbytes):
    array, growing = large_or_not
    ends = ends_of(growing)
    shape = (16, *array.shape[1:])
    other = with_entry(growing, 6, ends[6], 5)
    with pytest.raises(CorruptDataError, match="version 6: its parent is not what"):
        read_selection(NotedChunk(other, read_nbytes), shape, np.s_[7, 500])
    assert read_selection(NotedChunk(other, read_nbytes), shape, np.s_[5, 500]) == array[5, 500]
    for changed, message in (
        (with_entry(growing, 6, ends[6], 65535), "version 6: its frame needs a base"),
        (with_entry(growing, 6, ends[6] + 1, 4), "version (6: its frame has|7: not a frame)"),
        (with_entry(growing, 6, ends[6], 4, 1), "unknown bits of entry 6"),
    ):
        with pytest.raises(CorruptDataError, match=message):
            read_selection(NotedChunk(changed, read_nbytes), shape, np.s_[7, 500])


@from_memory_and_files
def test_truncated_frames(large, read_nbytes):
    array, growing = large
    shape = (16, *array.shape[1:])
    for size in (0, 5, 31, 33, HEADER + 255, HEADER + 256, len(growing) - 1):
        with pytest.raises(TruncatedDataError):
            read_selection(NotedChunk(growing[:size], read_nbytes), shape, np.s_[12])


@pytest.mark.parametrize("pads", [True, False])
def test_truncated_frames_are_not_padded(large, pads):
    """Nor is it taken for missing versions."""
    array, growing = large
    nbytes = 16 * array[0].nbytes
    out = np.empty(nbytes if pads else array.nbytes, np.uint8)
    part = replace(ChunkPart.of_range(nbytes, out, 0), pads=pads)
    for size in (HEADER + 256, len(growing) // 2, len(growing) - 1):
        with pytest.raises(TruncatedDataError, match=f"has {size} bytes of {len(growing)}"):
            read(FrameFormat(), NotedChunk(growing[:size], 1 << 20), part)


def test_versions_appended_since_the_chunk_was_opened(large):
    """The directory names a version whose bytes were not in the file yet."""
    array, growing = large
    shape, form = (16, *array.shape[1:]), FrameFormat()
    stored = NotedChunk(growing, 1 << 20)
    stored.size = ends_of(growing)[9]
    assert read_selection(stored, shape, np.s_[9, 300], form) == array[9, 300]
    with pytest.raises(TruncatedDataError, match="the growing frame has"):
        read_selection(stored, shape, np.s_[10, 300], form)
    # Another reader, opened later, uses the remembered directory.
    later = NotedChunk(growing, 1 << 20)
    assert read_selection(later, shape, np.s_[10, 300], form) == array[10, 300]


@settings(max_examples=tiers.by_tier(50, 300))
@given(data=st.data(), read_nbytes=st.sampled_from([None, 2048]))
def test_damage_gives_an_error_or_the_original(data, read_nbytes):
    with pytest.MonkeyPatch.context() as patch:
        read_at_once_up_to(patch, data.draw(st.sampled_from([16, 1 << 20])))
        array = fields(5, 600)
        growing = bytearray(grow(array, 6))
        offsets = st.integers(0, HEADER + 96) | st.integers(0, len(growing) - 1)
        for _ in range(data.draw(st.integers(1, 3))):
            growing[data.draw(offsets)] ^= 1 << data.draw(st.integers(0, 7))
        version, item = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 599))
        try:
            found = read_selection(
                NotedChunk(bytes(growing), read_nbytes), (6, 600), np.s_[version, item]
            )
        except CodecError:
            return
        assert found == array[version, item]
