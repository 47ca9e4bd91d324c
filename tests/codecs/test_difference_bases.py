"""Bases that are not the frame's, or that share memory with the output."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import bf16codecs
from bf16codecs.errors import BaseMismatchError, CodecError, CorruptDataError
from difference_pairs import CODECS, moved
from looping import for_each
from makers import frames as build
from makers.frames import CHECKSUMS, Parts, same_block
from native_core import core

BASE, RAW = (np.frombuffer(data, np.uint8) for data in moved(1000))
MARK = 0xA5


def encode(raw=RAW, base=BASE, codec: str = "arithmetic", dtype: int = 0, **options) -> bytes:
    number, level = CODECS[codec]
    return core.encode(raw, number, dtype, level=level, base=base, **options)


def refuse(frame: bytes, base, match: str | None = None) -> None:
    """Check that a base is refused before anything is written."""
    out = np.full(core.Index(frame).raw_size, MARK, np.uint8)
    for call in (
        lambda: bf16codecs.decode(frame, base=base),
        lambda: bf16codecs.decode(frame, out=out, base=base),
        lambda: core.decode_into(frame, out, base),
    ):
        with pytest.raises(BaseMismatchError, match=match):
            call()
    assert (out == MARK).all()


@for_each("checksum", [True, False])
@for_each("codec", CODECS)
def test_no_base(codec, checksum):
    frame = encode(codec=codec, checksum=checksum)
    assert bf16codecs.decode(frame, base=BASE) == RAW.tobytes()
    refuse(frame, None, "there is none")
    with pytest.raises(CodecError):
        bf16codecs.BF16Huffman().decode(frame)


def test_inspect_names_the_base():
    frame = encode()
    facts = bf16codecs.inspect(frame)
    assert facts["base"] == f"{Parts.of(frame).digest:016x}"
    assert (facts["steps"], facts["parents"]) == (1, [])
    assert facts["blocks"][0]["planes"][0]["mode"] == "difference"
    assert "base" not in bf16codecs.inspect(bf16codecs.BF16Huffman().encode(RAW))
    assert facts["base"] != bf16codecs.inspect(encode(BASE, RAW))["base"]


@for_each("size", [0, 1, 1999, 2001, 4000])
def test_bases_of_another_size(size):
    refuse(encode(), np.resize(BASE, size), "the base has")


def test_a_base_for_no_bytes():
    frame = encode(b"", b"")
    assert bf16codecs.decode(frame, base=b"") == b""
    refuse(frame, None, "there is none")
    refuse(frame, b"a", "the base has")


@for_each("checksum", [True, False])
@for_each("block", [0, 256])
def test_one_flipped_bit_anywhere(block, checksum):
    base = np.append(BASE[:1200], 7).astype(np.uint8)
    frame = encode(np.append(RAW[:1200], 9).astype(np.uint8), base, block=block, checksum=checksum)
    for bit in range(0, 8 * base.size, 7):
        flipped = base.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BaseMismatchError, match="digest"):
            core.decode(frame, flipped)
    flipped = base.copy()
    flipped[-1] ^= 128  # in the tail
    refuse(frame, flipped, "digest")


def test_exchanged_blocks_of_the_base():
    frame = encode(block=256)
    refuse(frame, np.concatenate([BASE[512:1024], BASE[:512], BASE[1024:]]), "digest")


@pytest.mark.parametrize("what", ["digest", "base_sums"])
def test_the_frame_lies_about_its_base(what):
    parts = Parts.of(encode(block=256))
    if what == "digest":
        parts.digest ^= 1 << 40
    else:
        parts.base_sums[-1] ^= 1
    refuse(parts.joined(), BASE, "digest")


def test_blocks_alone_need_their_part_of_the_base():
    frame = encode(block=256)
    index, other = core.Index(frame), BASE.copy()
    other[0] ^= 1  # in block 0 alone
    assert index.needs_base
    for first, last in ((1, 2), (1, index.n_blocks), (2, 3)):
        part = slice(512 * first, min(512 * last, RAW.size))
        out = np.full(RAW[part].size, MARK, np.uint8)
        payload = frame[index.offsets[first] : index.offsets[last]]
        for wrong in (None, b"", BASE[part][:-1], other[:512]):
            with pytest.raises(BaseMismatchError):
                index.decode_block_range(payload, first, last, out, wrong)
            with pytest.raises(BaseMismatchError):
                core.decode_blocks(frame, first, last, out, wrong)
        assert (out == MARK).all()
        index.decode_block_range(payload, first, last, out, other[part])
        assert np.array_equal(out, RAW[part])
    with pytest.raises(BaseMismatchError, match="block 0 of 4"):
        core.decode_blocks(frame, 0, 1, np.empty(512, np.uint8), other[:512])


def test_a_base_of_another_size_costs_no_memory():
    """The frame's claimed size is allocated only for a base of that size."""
    block = 1 << 22
    parts = Parts(layout=4, raw_size=block << 14, base_sums=[0] * (1 << 14))
    parts.flags = parts.flags & ~31 | 22
    parts.blocks = [same_block(1)] * (1 << 14)
    frame = parts.joined()  # of 64 GiB
    for base in (None, b"", BASE):
        with pytest.raises(BaseMismatchError):
            bf16codecs.decode(frame, base=base)


def test_a_base_is_not_read_where_there_is_none():
    """A base that is given for a frame without differences may be of any size."""
    frame = build.frame(512, [same_block(2)], version=2)
    for base in (None, b"", bytes(512), bytes(4096)):
        with pytest.raises(CorruptDataError, match="without a base"):
            core.decode_blocks(frame, 0, 1, bytearray(512), base)
        with pytest.raises(CorruptDataError, match="without a base"):
            bf16codecs.decode(frame, base=base)
    sound = bf16codecs.BF16Huffman().encode(RAW)
    assert bf16codecs.decode(sound, base=b"any") == RAW.tobytes()


# --- contents -------------------------------------------------------------------------------------


def test_sizes_and_data_types_that_do_not_agree():
    codec = bf16codecs.BF16Arithmetic("float32")
    numbers = np.arange(8, dtype="f4")
    for base in (numbers[:7], b"", np.arange(9, dtype="f4")):
        with pytest.raises(ValueError, match="the base has"):
            bf16codecs.encode_delta(codec, numbers, base)
    for other in ("i4", "u4"):  # no floating-point numbers: bytes
        assert bf16codecs.encode_delta(codec, numbers, numbers.astype(other))
    with pytest.raises(ValueError, match="the base has the data type float16"):
        bf16codecs.encode_delta(codec, numbers, np.zeros(16, "f2"))
    with pytest.raises(ValueError, match="the base has the data type bfloat16"):
        bf16codecs.encode_delta(codec, np.zeros(16, "f2"), np.zeros(16, ml_dtypes.bfloat16))
    assert bf16codecs.encode_delta(codec, numbers, bytes(32))
    with pytest.raises(TypeError, match="must be a codec"):
        bf16codecs.encode_delta("huffman", numbers, numbers)


def test_planes_by_byte_have_no_differences():
    with pytest.raises(ValueError, match="by byte"):
        bf16codecs.encode_delta(bf16codecs.BF16Split("float32", by="byte"), RAW, BASE)
    for codec, _ in CODECS.values():
        for how in ({"base": BASE}, {"steps": 2}):
            with pytest.raises(ValueError, match="by byte"):
                core.encode(RAW, codec, 2, by_byte=True, **how)


def test_buffers_that_are_not_contiguous():
    numbers = np.arange(64, dtype="f4").reshape(8, 8)
    codec = bf16codecs.BF16Arithmetic("float32")
    frame = bf16codecs.encode_delta(codec, numbers, numbers + 1)
    with pytest.raises(ValueError, match="contiguous"):
        bf16codecs.encode_delta(codec, numbers, np.zeros((8, 16), "f4")[:, ::2])
    with pytest.raises(ValueError, match="contiguous"):
        bf16codecs.decode(frame, base=np.zeros((8, 16), "f4")[:, ::2])
    with pytest.raises(ValueError, match="contiguous"):
        bf16codecs.decode(frame, out=np.zeros((8, 16), "f4")[:, ::2], base=numbers + 1)
    base = np.asfortranarray(numbers + 1)  # its memory is another
    with pytest.raises(BaseMismatchError):
        bf16codecs.decode(frame, base=base)


# --- shared memory --------------------------------------------------------------------------------


def test_out_that_cannot_be_written():
    frame, out = encode(), RAW.copy()
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        bf16codecs.decode(frame, out=out, base=BASE)
    for size in (0, RAW.size - 1, RAW.size + 1):
        with pytest.raises(ValueError, match="out has"):
            bf16codecs.decode(frame, out=np.empty(size, np.uint8), base=BASE)


@for_each("block", [0, 256])
@for_each("codec", CODECS)
@for_each("dtype", range(6))
def test_in_place(dtype, codec, block):
    base, raw = moved(5000, dtype)
    frame = encode(raw, base, codec, dtype, block=block)
    memory = bytearray(base)
    assert bf16codecs.decode(frame, out=memory, base=memory) is memory
    assert memory == raw
    with pytest.raises(BaseMismatchError):  # it is no longer the base
        bf16codecs.decode(frame, out=memory, base=memory)
    assert memory == raw


@for_each("shift", [1, 2, 63, 512, -1, -2, -640])
@for_each("codec", ["arithmetic", "huffman"])
def test_a_base_that_overlaps_what_is_decoded(codec, shift):
    base, raw = (np.frombuffer(data, np.uint8) for data in moved(6000))
    raw = raw.copy()
    raw[2000:5000] = base[2000:5000]  # identical blocks as well
    frame = encode(raw, base, codec, block=256)
    memory = np.zeros(base.size + abs(shift), np.uint8)
    first, second = memory[max(shift, 0) :][: base.size], memory[max(-shift, 0) :][: base.size]
    first[:] = base
    bf16codecs.decode(frame, out=second, base=first)
    assert np.array_equal(second, raw)


def test_damage_in_place_is_an_error():
    frame = bytearray(encode(block=256))
    frame[-1] ^= 1
    memory = BASE.copy()
    with pytest.raises(CorruptDataError, match="block 3 of 4"):
        bf16codecs.decode(frame, out=memory, base=memory)


def test_no_checksum_of_blocks_is_needed():
    frame = encode(block=256, checksum=False)
    assert not frame[7] & CHECKSUMS
    refuse(frame, RAW, "digest")
    with pytest.raises(BaseMismatchError, match="block 1"):
        core.decode_blocks(frame, 1, 2, bytearray(512), BASE[:512])
