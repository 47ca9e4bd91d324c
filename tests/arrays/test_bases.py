"""Chunks coded against another array, which may be coded against another one in turn."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import Fletcher32

import tiers
from bf16codecs import BF16Arithmetic, encode_delta
from bf16codecs.errors import BaseMismatchError
from bits import assert_same_bits
from looping import for_each
from native_core import core
from noted_chunks import (
    RAW,
    ChunkPart,
    Fletcher32Format,
    FrameFormat,
    InMemory,
    NotedStorage,
    chunked_array,
    let_heads_be_small,
    padded_chunks,
    read,
    read_axes,
    read_range,
)
from versions import fields

ROWS, COLUMNS = 20, 1024  # of 4 KiB


class Runs(NamedTuple):
    """A base that is read by ranges alone."""

    read_range: Callable[[int, int, np.ndarray], None]


def encode(raw, base=None, block=256, dtype="float32", codec="arithmetic", **options):
    """Encode in blocks of 1 KiB, or of `block` items."""
    content = raw.reshape(-1).view(np.uint8)
    below = None if base is None else base.reshape(-1).view(np.uint8)
    number = core.CODECS[codec]
    return core.encode(content, number, core.DTYPES[dtype], block=block, base=below, **options)


def differing(base, chunks, **options):
    """Return a function that encodes an array's chunks against another's."""
    below = padded_chunks(base, chunks)
    return lambda index, chunk: encode(chunk, below[index], **options)


def chain(read_nbytes):
    """Return three arrays, each with other chunks and blocks, and a reader of the last.

    They share storage and a format, and with these the memory that a thread reads and decodes to.
    """
    arrays = fields(3, ROWS, COLUMNS)
    storage, form = NotedStorage(read_nbytes), FrameFormat()
    first = chunked_array("0", arrays[0], (8, COLUMNS), storage, form, lambda i, c: encode(c))
    encoded = differing(arrays[0], (3, COLUMNS), block=512)
    second = chunked_array("1", arrays[1], (3, COLUMNS), storage, form, encoded, base=first)
    encoded = differing(arrays[1], (13, COLUMNS), block=1024)
    third = chunked_array("2", arrays[2], (13, COLUMNS), storage, form, encoded, base=second)
    return storage, arrays[2], third


read_sizes = pytest.mark.parametrize("read_nbytes", [None, 2048])
is_large_or_not = pytest.mark.parametrize("is_large", [True, False])


@read_sizes
@pytest.mark.usefixtures("small_heads")
@settings(max_examples=tiers.by_tier(15, 60))
@given(st.data())
def test_any_part_through_several_bases(read_nbytes, data):
    _, array, reader = chain(read_nbytes)
    start, stop = sorted(data.draw(st.integers(0, array.nbytes)) for _ in "ab")
    assert read_range(reader, start, stop) == array.tobytes()[start:stop]
    axes = [range(*data.draw(st.slices(n).map(lambda s, n=n: s.indices(n)))) for n in array.shape]
    axes = [axis if axis.step > 0 else axis[::-1] for axis in axes]
    assert_same_bits(read_axes(reader, axes, threads=4), array[np.ix_(*axes)])
    points = [
        np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=4, max_size=4)))
        for n in array.shape
    ]
    found = np.empty(4, array.dtype)
    reader.read_points(points, found)
    assert_same_bits(found, array[tuple(points)])


@pytest.mark.usefixtures("small_heads")
@for_each("start, stop", [(5000, 5004), (4095, 4097), (8190, 60_000)])
def test_of_each_base_the_touched_blocks_alone(start, stop):
    storage, array, reader = chain(2048)
    assert read_range(reader, 0, array.nbytes) == array.tobytes()  # keeps the heads
    storage.ranges.clear()
    assert read_range(reader, start, stop) == array.tobytes()[start:stop]
    for label, rows, block in (("2", 13, 4096), ("1", 3, 2048), ("0", 8, 1024)):
        chunk = rows * 4 * COLUMNS
        expected = 0
        bounds = []
        for index in range(start // chunk, -(-stop // chunk)):
            first = max(0, start - index * chunk) // block
            last = -(-min(chunk, stop - index * chunk) // block)
            offsets = core.Index(storage.chunks[label, (index, 0)]).offsets
            expected += offsets[last] - offsets[first]
            bounds += [index * chunk + first * block, index * chunk + last * block]
        assert storage.fetched(label) == expected
        start, stop = bounds[0], min(bounds[-1], array.nbytes)


def test_decoded_over_the_base(small_heads):
    """Blocks that are wanted whole are decoded in the base's memory, no others."""
    base, array = fields(2, COLUMNS * 8)
    reads = []

    def read_base(start, stop, out):
        reads.append((start, stop, out.ctypes.data))
        out[:] = base.view(np.uint8)[start:stop]

    memory = np.empty(6000, np.uint8)
    part = replace(ChunkPart.of_range(array.nbytes, memory, 500), base=read_base)
    read(FrameFormat(), InMemory(encode(array, base)), part)
    assert memory.tobytes() == array.tobytes()[500:6500]
    assert sorted((a, b) for a, b, _ in reads) == [(0, 1024), (1024, 6144), (6144, 7168)]
    (within,) = [address for a, _, address in reads if a == 1024]
    assert within == memory.ctypes.data + 524


def test_a_base_is_not_read_where_none_is_needed():
    array = fields(1, 3000)

    def refuse(start, stop, out):
        raise AssertionError

    reader = chunked_array(
        "x",
        array,
        (1, 3000),
        NotedStorage(),
        FrameFormat(),
        lambda i, c: encode(c),
        base=Runs(refuse),
    )
    assert read_range(reader, 0, array.nbytes) == array.tobytes()
    reader = chunked_array(
        "x", array, (1, 1500), NotedStorage(), RAW, lambda i, c: c.tobytes(), base=Runs(refuse)
    )
    assert read_range(reader, 3, 9000) == array.tobytes()[3:9000]


@read_sizes
@is_large_or_not
def test_another_base_gives_no_output(monkeypatch, read_nbytes, is_large):
    if is_large:
        let_heads_be_small(monkeypatch)
    arrays = fields(2, ROWS, COLUMNS)
    other = arrays[0].copy()
    other[3, 5] += 1
    raw = other.view(np.uint8).reshape(-1)
    reader = chunked_array(
        "x",
        arrays[1],
        (8, COLUMNS),
        NotedStorage(read_nbytes),
        FrameFormat(),
        differing(arrays[0], (8, COLUMNS)),
        base=Runs(lambda start, stop, out: np.copyto(out, raw[start:stop])),
    )
    wrong = 3 * 4 * COLUMNS  # where the wrong block begins
    for start, stop in ((wrong, wrong + 1024), (0, arrays.nbytes // 2), (wrong + 9, wrong + 11)):
        memory = np.full(stop - start, 0x55, np.uint8)
        with pytest.raises(BaseMismatchError, match=r"chunk \(0, 0\): block 12 of 32: this is not"):
            reader.read_range(start, stop, memory)
        found = memory[max(0, wrong - start) :][:1024]
        assert np.isin(found, [0x55, *raw[wrong : wrong + 1024]]).all()
    assert (
        read_range(reader, wrong + 1024, wrong + 4096)
        == (arrays[1].tobytes()[wrong + 1024 : wrong + 4096])
    )


@read_sizes
@is_large_or_not
def test_a_base_is_asked_for_where_there_is_none(monkeypatch, read_nbytes, is_large):
    if is_large:
        let_heads_be_small(monkeypatch)
    arrays = fields(2, ROWS, COLUMNS)
    reader = chunked_array(
        "x",
        arrays[1],
        (8, COLUMNS),
        NotedStorage(read_nbytes),
        FrameFormat(),
        differing(arrays[0], (8, COLUMNS)),
    )
    with pytest.raises(BaseMismatchError, match=r"open_model, or .*decode\(frame, base=\.\.\.\)"):
        read_range(reader, 0, 4)


@for_each("dtype", ["float32", "bfloat16", "float8_e4m3fn", "complex64", "int16"])
@for_each("chunks", [(1, 3, 33), (1, 1, 20), (3, 4, 33)])
def test_padding_is_that_of_the_chunk(dtype, chunks):
    """Frames know their base by its bytes, those of the padding included."""
    arrays = (100 * fields(2, 2, 4, 33)).astype(dtype)
    layout = "float32" if dtype == "complex64" else "bfloat16" if dtype == "int16" else dtype
    codec, below = BF16Arithmetic(layout), padded_chunks(arrays[0], chunks)
    base = arrays[0].reshape(-1).view(np.uint8)
    for encoded in (
        lambda index, chunk: encode(chunk, below[index], dtype=layout),
        lambda index, chunk: encode_delta(codec, chunk, below[index]),
    ):
        reader = chunked_array(
            "x",
            arrays[1],
            chunks,
            NotedStorage(),
            FrameFormat(),
            encoded,
            base=Runs(lambda start, stop, out: np.copyto(out, base[start:stop])),
        )
        assert read_range(reader, 0, base.size) == arrays[1].tobytes()
        for index, chunk in padded_chunks(arrays[1], chunks).items():
            out, piece = np.empty(chunk.nbytes, np.uint8), reader.plan("x").piece(index)
            reader.read_piece(piece, out)
            assert out[: piece.nbytes].tobytes() == chunk.tobytes()[: piece.nbytes]


@for_each("items", [1, 3, 7, 8, 9, 2051])
def test_bytes_after_the_last_item(items):
    """Of arrays whose items are smaller than the frame's."""
    arrays = np.random.default_rng(0).integers(0, 256, (2, items), "u1")
    reader = chunked_array(
        "x",
        arrays[1],
        (items,),
        NotedStorage(),
        FrameFormat(),
        differing(arrays[0], (items,), dtype="float64"),
        base=Runs(lambda start, stop, out: np.copyto(out, arrays[0, start:stop])),
    )
    for start in range(0, items, 100):
        assert read_range(reader, start, items) == arrays[1].tobytes()[start:]


def test_behind_a_checksum_of_hdf5(small_heads):
    """The chunk lies in memory that reading the base reuses."""
    arrays = fields(2, ROWS, COLUMNS)
    storage, form, chunks = NotedStorage(1 << 20), FrameFormat(), (8, COLUMNS)
    base = chunked_array("0", arrays[0], chunks, storage, form, lambda i, c: encode(c))
    encoded = differing(arrays[0], chunks)
    reader = chunked_array(
        "1",
        arrays[1],
        chunks,
        storage,
        Fletcher32Format(form),
        lambda index, chunk: Fletcher32().encode(encoded(index, chunk)),
        base=base,
    )
    assert read_range(reader, 9, 50_000) == arrays[1].tobytes()[9:50_000]


@for_each("chunks", [(20, 500), (7, 512), (1, 3), (20, 1)])
@for_each("base_chunks", [(20, 500), (6, COLUMNS)])
def test_chunks_that_are_boxes(chunks, base_chunks):
    """Each is coded against the same box of the base, in C order and with the same padding."""
    size = 12 if chunks[1] < 500 else COLUMNS
    arrays = [np.ascontiguousarray(array[:, :size]) for array in fields(2, ROWS, COLUMNS)]
    storage, form = NotedStorage(), FrameFormat()
    base = chunked_array("0", arrays[0], base_chunks, storage, form, lambda i, c: encode(c))
    encoded = differing(arrays[0], chunks)
    reader = chunked_array("1", arrays[1], chunks, storage, form, encoded, base=base)
    assert_same_bits(read_axes(reader, [range(ROWS), range(size)], threads=2), arrays[1])
    part = np.empty((3, 4), arrays[1].dtype)
    reader.read_box([range(5, 8), range(2, 6)], part)
    assert_same_bits(part, arrays[1][5:8, 2:6])
    assert read_range(reader, 101, arrays[1].nbytes) == arrays[1].tobytes()[101:]


def test_memory_is_in_proportion_to_the_range(small_heads):
    arrays = fields(2, 4, 1 << 19)
    form, storage, chunks = FrameFormat(), NotedStorage(1 << 16), (4, 1 << 19)
    base = chunked_array("0", arrays[0], chunks, storage, form, lambda i, c: encode(c))
    reader = chunked_array(
        "1", arrays[1], chunks, storage, form, differing(arrays[0], chunks), base=base
    )
    out = np.empty(1 << 19, np.uint8)
    reader.read_range(0, out.size, out)
    tracemalloc.start()
    try:
        reader.read_range(4097, 4097 + out.size, out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.tobytes() == arrays[1].tobytes()[4097 : 4097 + out.size]
    assert peak < out.size
