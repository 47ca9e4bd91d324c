"""Writing growing frames: their first versions, and appends."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bf16codecs
import reference_growing as reference
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, encode_delta
from bf16codecs.codecs.growing import Version, append_version, new_growing_frame
from bf16codecs.errors import CodecError, TruncatedDataError
from looping import for_each
from makers.growing import ENTRY, HEADER, frames_of, grow
from native_core import core
from versions import fields, weights


def in_order(data, parents=None):
    """Return an array's versions, with parents by their lowest set bits."""
    parents = [v & v - 1 for v in range(len(data))] if parents is None else parents
    return [Version(data[0])] + [
        Version(own, p, data[p]) for own, p in zip(data[1:], parents[1:], strict=True)
    ]


def write(file: bytearray, at: int, content: bytes) -> None:
    file[at:] = file[at:].ljust(len(content), b"\0")
    file[at : at + len(content)] = content


CODECS = [
    BF16Huffman("float32", steps=8),
    BF16Arithmetic("float32", steps=8),
    BF16Arithmetic("float32", "best", checksum=False, steps=8),
]
codecs = for_each("codec", CODECS)
FIELD = fields(8, 30, 50)


@codecs
def test_versions_are_appended_one_by_one(codec):
    file = bytearray(new_growing_frame(codec, [Version(FIELD[0])]))
    assert bf16codecs.inspect(bytes(file))["steps"] == 8
    for number, version in enumerate(in_order(FIELD)[1:], start=1):
        before = bytes(file)
        directory = before[: HEADER + ENTRY * 8]
        addition = append_version(codec, directory, version)
        assert (addition.frame_at, len(addition.entry)) == (len(before), ENTRY)
        # Killed anywhere before the entry is written: nothing has happened.
        for part in (1, len(addition.frame) // 2, len(addition.frame)):
            write(file, addition.frame_at, addition.frame[:part])
            assert bf16codecs.decode(bytes(file)) == FIELD[:number].tobytes()
        write(file, addition.entry_at, addition.entry)
        assert bf16codecs.decode(bytes(file)) == FIELD[: number + 1].tobytes()
        assert file[: addition.entry_at] == before[: addition.entry_at]
        after = addition.entry_at + ENTRY
        assert file[after : len(before)] == before[after:]
        assert bytes(file) == new_growing_frame(codec, in_order(FIELD)[: number + 1])
    assert codec.decode(bytes(file)) == FIELD.tobytes()
    assert reference.decode_whole(bytes(file)) == FIELD.tobytes()


@given(st.data())
def test_an_append_that_was_not_finished_leaves_no_trace(data):
    """The next append overwrites any part of a longer one that is left."""
    codec = CODECS[1]
    file = bytearray(new_growing_frame(codec, in_order(FIELD)[:2]))
    unfinished = append_version(codec, bytes(file), Version(FIELD[7]))
    write(file, unfinished.frame_at, unfinished.frame[: data.draw(st.integers(0, 9999))])
    addition = append_version(codec, bytes(file), Version(FIELD[2], 0, FIELD[0]))
    write(file, addition.frame_at, addition.frame)
    assert bf16codecs.decode(bytes(file)) == FIELD[:2].tobytes()
    write(file, addition.entry_at, addition.entry)
    assert bf16codecs.decode(bytes(file)) == FIELD[:3].tobytes()


def test_frames_are_those_of_the_codec_without_steps():
    data = weights(3, 40, 64)
    codec, one = BF16Arithmetic(level="best", steps=4), BF16Arithmetic(level="best")
    first, second, third = frames_of(new_growing_frame(codec, in_order(data, [None, 0, 0])))
    assert first == one.encode(data[0])
    assert second == encode_delta(one, data[1], data[0])
    assert third == encode_delta(one, data[2], data[0])
    # Rows are those of the arrays.
    assert first != one.encode(data[0].tobytes())


def test_versions_of_any_parent_or_none():
    data = weights(4, 500)
    parents = [None, 0, None, 2]
    versions = [
        Version(own, p, None if p is None else data[p])
        for own, p in zip(data, parents, strict=True)
    ]
    growing = new_growing_frame(BF16Huffman(steps=4), versions)
    assert core.GrowingIndex(growing).parents == parents
    assert bf16codecs.decode(growing) == data.tobytes()


def test_blocks_are_those_that_are_there():
    """Another release may have other default sizes."""
    data = fields(2, 300, 100)
    codec = BF16Arithmetic("float32", steps=2)
    growing = grow(data[:1], room=2, block=4096)
    assert core.GrowingIndex(growing).block_items == 4096
    addition = append_version(codec, growing, Version(data[1], 0, data[0]))
    assert core.Index(addition.frame).block_items == 4096


def test_room_for_one():
    data = weights(1, 100)
    for codec in (BF16Huffman(), BF16Split()):
        growing = new_growing_frame(codec, [Version(data[0])])
        assert codec.decode(growing) == data.tobytes()
        with pytest.raises(ValueError, match="no room for more than 1 version"):
            append_version(codec, growing, Version(data[0]))


def test_bad_versions_are_refused():
    data = weights(4, 100)
    codec = BF16Huffman(steps=3)
    new = new_growing_frame
    with pytest.raises(ValueError, match="0 versions, and room for 3"):
        new(codec, [])
    with pytest.raises(ValueError, match="4 versions, and room for 3"):
        new(codec, in_order(data))
    with pytest.raises(ValueError, match="version 1 has 198 bytes, the others 200"):
        new(codec, [Version(data[0]), Version(data[1][:-1])])
    with pytest.raises(ValueError, match="versions of 0 bytes"):
        new(codec, [Version(b"")])
    with pytest.raises(ValueError, match="no whole items"):
        new(codec, [Version(b"abc")])
    for parent, base in ((1, data[0]), (2, data[0]), (-1, data[0]), (0, None), (None, data[0])):
        with pytest.raises(ValueError, match="version 1 needs an earlier one and its content"):
            new(codec, [Version(data[0]), Version(data[1], parent, base)])
    with pytest.raises(ValueError, match="the base has 198 bytes"):
        new(codec, [Version(data[0]), Version(data[1], 0, data[0][:-1])])
    with pytest.raises(ValueError, match="data type float32"):
        new(codec, [Version(data[0]), Version(data[1], 0, np.zeros(50, "f4"))])

    growing = new(codec, [Version(data[0])])
    with pytest.raises(ValueError, match="versions of bfloat16 are there, and the codec is for"):
        append_version(BF16Huffman("float16", steps=3), growing, Version(data[1]))
    with pytest.raises(ValueError, match="version 1 has 2 bytes, the others 200"):
        append_version(codec, growing, Version(data[1][:1]))
    with pytest.raises(ValueError, match="version 1 needs an earlier one"):
        append_version(codec, growing, Version(data[1], 1, data[0]))
    with pytest.raises(TruncatedDataError):
        append_version(codec, growing[:40], Version(data[1]))
    with pytest.raises(CodecError):
        append_version(codec, codec.encode(data[:3]), Version(data[1]))


@for_each("dtype", ["bfloat16", "float32", "float8_e5m2"])
def test_sizes(dtype):
    """A growing frame takes little more than a frame of versions."""
    data = weights(8, 100, 300, dtype=dtype)
    codec = BF16Arithmetic(dtype, steps=8)
    growing = new_growing_frame(codec, in_order(data))
    assert len(growing) <= len(codec.encode(data)) + HEADER + 8 * (ENTRY + 60)
    assert data.dtype == np.dtype(getattr(ml_dtypes, dtype, dtype))


def test_a_megabyte_may_have_room_for_gigabytes():
    """Only a codec with as many steps decodes all of it, and compares `out` before."""
    codec = BF16Arithmetic("float8_e5m2", steps=core.MAX_STEPS)
    frame = new_growing_frame(codec, [Version(np.zeros(1 << 21, np.uint8))])
    assert len(frame) < 1_100_000
    assert bf16codecs.inspect(frame)["raw_size"] == 65534 << 21
    assert len(bf16codecs.decode(frame)) == 1 << 21
    with pytest.raises(ValueError, match="out has 4194304 bytes, the data have"):
        codec.decode(frame, out=np.empty(1 << 22, np.uint8))
    with pytest.raises(CodecError, match="the codec has steps=2"):
        BF16Arithmetic("float8_e5m2", steps=2).decode(frame)
