"""Ranges of an array's bytes, wherever chunks and blocks begin and end."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiers
from bf16codecs import BF16Arithmetic
from bf16codecs.errors import TruncatedDataError
from looping import for_each
from native_core import core
from noted_chunks import (
    RAW,
    FrameFormat,
    NotedStorage,
    ZstdFormat,
    chunked_array,
    cut_range,
    encode_zstd,
    in_library,
    little_endian,
    read_range,
)
from versions import fields

shapes = st.lists(st.integers(1, 9), max_size=4).map(tuple)
FORMS = {
    "raw": (RAW, lambda index, chunk: chunk.tobytes()),
    "zstd": (ZstdFormat(), lambda index, chunk: encode_zstd(chunk.tobytes(), 1, 1)),
    "frames": (FrameFormat(), lambda index, chunk: BF16Arithmetic("float32").encode(chunk)),
}


def in_blocks(index, chunk):
    """Encode a chunk in blocks of 1 KiB."""
    dtype = core.DTYPES["float32"]
    return core.encode(chunk.tobytes(), core.CODECS["arithmetic"], dtype, block=256)


@given(shapes, st.data())
def test_consecutive_items_are_cut_into_few_boxes(shape, data):
    count = math.prod(shape)
    first, last = sorted(data.draw(st.integers(0, count)) for _ in "ab")
    boxes = list(cut_range(shape, first, last))
    items = np.arange(count).reshape(shape)
    found = [items[tuple(slice(a.start, a.stop) for a in box)].ravel() for box in boxes]
    assert list(itertools.chain.from_iterable(found)) == list(range(first, last))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=tiers.by_tier(15, 60))
@given(shapes, st.sampled_from(["uint8", "bool", "<f4", ">f4", "complex128"]), st.data())
def test_any_range_of_any_array(form, shape, dtype, data):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    chunked = chunked_array("x", array, chunks, NotedStorage(), *FORMS[form])
    for reader in (chunked, in_library(array, chunks)):
        start, stop = sorted(data.draw(st.integers(0, array.nbytes)) for _ in "ab")
        assert read_range(reader, start, stop) == little_endian(array)[start:stop]


@pytest.mark.usefixtures("small_heads")
@pytest.mark.parametrize("read_nbytes", [None, 2048])
def test_of_frames_the_touched_blocks_alone(read_nbytes):
    array = fields(1, 20, 1024)[0]  # chunks of 32 KiB: 8 rows, of 4 blocks each
    storage = NotedStorage(read_nbytes)
    reader = chunked_array("x", array, (8, 1024), storage, FrameFormat(), in_blocks)
    for chunk in range(3):  # to keep the heads
        read_range(reader, chunk << 15, (chunk << 15) + 1)
    for start, stop, blocks in [
        (1030, 1034, {0: [1]}),
        (1023, 1025, {0: [0, 1]}),
        (30 << 10, 34 << 10, {0: [30, 31], 1: [0, 1]}),
        (70 << 10, 80 << 10, {2: range(6, 16)}),
        (4096, 4096, {}),
    ]:
        storage.ranges.clear()
        assert read_range(reader, start, stop) == array.tobytes()[start:stop]
        expected = 0
        for chunk, touched in blocks.items():
            offsets = core.Index(storage.chunks["x", (chunk, 0)]).offsets
            expected += sum(offsets[b + 1] - offsets[b] for b in touched)
        assert storage.fetched("x") == expected


@pytest.mark.usefixtures("small_heads")
@pytest.mark.parametrize("make", [chunked_array, lambda label, array, *_: in_library(array, None)])
@for_each("rows, share", [(4, 1), (16, 4)])
def test_memory_is_in_proportion_to_the_range(make, rows, share):
    row = tiers.by_tier(1 << 16, 1 << 18)
    array, chunks = fields(1, 16, row)[0], (rows, row // share)
    reader = make("x", array, chunks, NotedStorage(1 << 16), FrameFormat(), in_blocks)
    out = np.empty(4 * row, np.uint8)
    reader.read_range(0, out.size, out)
    tracemalloc.start()
    try:
        reader.read_range(4097, 4097 + out.size, out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.tobytes() == array.tobytes()[4097 : 4097 + out.size]
    assert peak < 2 * out.size


def test_errors_name_the_chunk():
    array = fields(1, 20, 1024)[0]
    storage = NotedStorage()
    reader = chunked_array("x", array, (8, 1024), storage, FrameFormat(), in_blocks)
    storage.chunks["x", (1, 0)] = storage.chunks["x", (1, 0)][:-1]
    with pytest.raises(TruncatedDataError, match=r"x, chunk \(1, 0\): "):
        read_range(reader, 30 << 10, 34 << 10)
