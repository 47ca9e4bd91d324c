"""Parts of growing frames that are damaged, cut off, or grow while they are read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bf16codecs import _core
from bf16codecs._chunks.formats import read
from bf16codecs._chunks.frames import FrameFormat
from bf16codecs._chunks.wanted import Wanted
from bf16codecs.errors import CodecError, CorruptDataError, TruncatedDataError
from growing_frames import HEADER, blocks_on_the_way, ends_of, grow, with_entry
from noted_chunks import NotedChunk, read_selection
from versions import ancestors, fields


@pytest.mark.parametrize("piece", [None, 1 << 20])
def test_a_damaged_version_and_those_that_come_from_it(large, piece):
    array, growing = large
    damaged = bytearray(growing)
    damaged[blocks_on_the_way(growing, [4], [10])[-1][0] + 20] ^= 1
    for version in range(13):
        stored = partial(NotedChunk, bytes(damaged), piece)
        shape = (16, *array.shape[1:])
        if 4 in (version, *ancestors(version)):
            with pytest.raises(CodecError, match="version 4: block 10 of 40"):
                read_selection(stored(), shape, np.s_[version])
            found = read_selection(stored(), shape, np.s_[version, 11 * 256 :])
            np.testing.assert_array_equal(found, array[version, 11 * 256 :])
        else:
            found = read_selection(stored(), shape, np.s_[version])
            np.testing.assert_array_equal(found, array[version])


@pytest.mark.parametrize("piece", [None, 1 << 20])
def test_another_parent_is_damage(large_or_not, piece):
    array, growing = large_or_not
    ends = ends_of(growing)
    shape = (16, *array.shape[1:])
    other = with_entry(growing, 6, ends[6], 5)
    with pytest.raises(CorruptDataError, match="version 6: its parent is not what"):
        read_selection(NotedChunk(other, piece), shape, np.s_[7, 500])
    assert read_selection(NotedChunk(other, piece), shape, np.s_[5, 500]) == array[5, 500]
    for changed, message in (
        (with_entry(growing, 6, ends[6], 65535), "version 6: its frame needs a base"),
        (with_entry(growing, 6, ends[6] + 1, 4), "version (6: its frame has|7: not a frame)"),
        (with_entry(growing, 6, ends[6], 4, 1), "unknown bits of entry 6"),
    ):
        with pytest.raises(CorruptDataError, match=message):
            read_selection(NotedChunk(changed, piece), shape, np.s_[7, 500])


@pytest.mark.parametrize("piece", [None, 1 << 20])
def test_what_is_cut_off(large, piece):
    array, growing = large
    shape = (16, *array.shape[1:])
    for size in (0, 5, 31, 33, HEADER + 255, HEADER + 256, len(growing) - 1):
        with pytest.raises(TruncatedDataError):
            read_selection(NotedChunk(growing[:size], piece), shape, np.s_[12])


@pytest.mark.parametrize("pads", [True, False])
def test_what_is_cut_off_is_not_padded(large, pads):
    """Nor is it taken for versions that are not there."""
    array, growing = large
    nbytes = 16 * array[0].nbytes
    out = np.empty(nbytes if pads else array.nbytes, np.uint8)
    wanted = replace(Wanted.run(nbytes, out, 0), pads=pads)
    for size in (HEADER + 256, len(growing) // 2, len(growing) - 1):
        with pytest.raises(TruncatedDataError, match=f"has {size} bytes of {len(growing)}"):
            read(FrameFormat(), NotedChunk(growing[:size], 1 << 20), wanted)


def test_what_was_appended_since_the_chunk_was_opened(large):
    """The directory names it, and the file had not its bytes."""
    array, growing = large
    shape, form = (16, *array.shape[1:]), FrameFormat()
    stored = NotedChunk(growing, 1 << 20)
    stored.size = ends_of(growing)[9]
    assert read_selection(stored, shape, np.s_[9, 300], form) == array[9, 300]
    with pytest.raises(TruncatedDataError, match="the growing frame has"):
        read_selection(stored, shape, np.s_[10, 300], form)
    # And another one, opened later, with what is known from before.
    later = NotedChunk(growing, 1 << 20)
    assert read_selection(later, shape, np.s_[10, 300], form) == array[10, 300]


@settings(max_examples=300)
@given(data=st.data(), piece=st.sampled_from([None, 2048]))
def test_damage_gives_an_error_or_the_original(data, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "DEFAULT_BLOCK_BYTES", data.draw(st.sampled_from([16, 1 << 20])))
        array = fields(5, 600)
        growing = bytearray(grow(array, 6))
        places = st.integers(0, HEADER + 96) | st.integers(0, len(growing) - 1)
        for _ in range(data.draw(st.integers(1, 3))):
            growing[data.draw(places)] ^= 1 << data.draw(st.integers(0, 7))
        version, item = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 599))
        try:
            found = read_selection(
                NotedChunk(bytes(growing), piece), (6, 600), np.s_[version, item]
            )
        except CodecError:
            return
        assert found == array[version, item]
