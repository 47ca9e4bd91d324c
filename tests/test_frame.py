"""Frames that are cut, damaged, or lie: always the right error, and before memory is taken."""

from __future__ import annotations

import contextlib
import gzip
import sys

import numcodecs
import numpy as np
import pytest

import bf16codecs
import reference_encoder as build
from bf16codecs import _core
from bf16codecs.errors import (
    CodecError,
    CorruptDataError,
    TruncatedDataError,
    UnsupportedVersionError,
)
from contents import weights
from reference_planes import CONSTANT, STORED

HEADER = 24
SPLIT, HUFFMAN, ARITHMETIC, ZSTD = 1, 2, 3, 4
BFLOAT16, FLOAT32, FLOAT8 = 0, 2, 4

FRAMES = {
    "split": (SPLIT, BFLOAT16, weights(400) + b"t", {}),
    "huffman": (HUFFMAN, BFLOAT16, weights(600), {}),
    "arithmetic": (ARITHMETIC, BFLOAT16, weights(700) + b"t", {}),
    "arithmetic, blocks": (ARITHMETIC, BFLOAT16, weights(1000) + b"t", {"block": 256}),
    "arithmetic, wide": (ARITHMETIC, FLOAT8, weights(1500), {}),
    "zstd": (ZSTD, BFLOAT16, weights(600), {"level": 3}),
    "constant": (ARITHMETIC, FLOAT32, bytes(4003), {"block": 256}),
    "tail alone": (HUFFMAN, FLOAT32, b"abc", {}),
    "empty": (HUFFMAN, FLOAT32, b"", {}),
}


def make(name: str, **more) -> tuple[bytes, bytes]:
    codec, dtype, raw, options = FRAMES[name]
    return _core.encode(raw, codec, dtype, **{**options, **more}), raw


def flips(frame: bytes, first: int, last: int):
    """Yield a frame with each bit of bytes [first, last) flipped."""
    for bit in range(8 * first, 8 * last):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def refuse(frame: bytes, error: type[CodecError]) -> None:
    """Check that everything that takes a frame raises exactly `error`."""
    out = np.empty(64, np.uint8)
    for call in (
        lambda: bf16codecs.decode(frame),
        lambda: bf16codecs.inspect(frame),
        lambda: _core.decode(frame),
        lambda: _core.decode_into(frame, out),
        lambda: _core.decode_blocks(frame, 0, 1, out),
    ):
        with pytest.raises(CodecError) as caught:
            call()
        assert caught.type is error


def refuse_head(frame: bytes, error: type[CodecError]) -> None:
    """Check that no part of the head is believed, either."""
    refuse(frame, error)
    with pytest.raises(CodecError) as caught:
        _core.Index(frame)
    assert caught.type is error


# --- truncation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("name", FRAMES)
def test_every_truncation_is_told_as_one(name, checksum):
    frame, raw = make(name, checksum=checksum)
    assert bf16codecs.decode(frame) == raw
    for length in range(len(frame)):
        refuse(frame[:length], TruncatedDataError)


@pytest.mark.parametrize("name", FRAMES)
def test_truncated_heads(name):
    frame, _ = make(name)
    head = _core.Index(frame).header_size
    for length in range(head):
        with pytest.raises(TruncatedDataError):
            _core.Index(frame[:length])
    for length in range(HEADER):
        with pytest.raises(TruncatedDataError):
            _core.header_size(frame[:length])
    assert _core.header_size(frame[:HEADER]) == head
    index = _core.Index(frame[:head])
    assert index.frame_size == len(frame)
    assert index.header_size == head


@pytest.mark.parametrize("name", FRAMES)
def test_longer_frames_are_corrupt(name):
    frame, _ = make(name)
    for more in (b"\0", b"\xff" * 100, frame):
        refuse(frame + more, CorruptDataError)


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("name", FRAMES)
def test_every_bit_of_the_head_is_guarded(name, checksum):
    frame, _ = make(name, checksum=checksum)
    for flipped in flips(frame, 0, 4):
        refuse_head(flipped, CorruptDataError)
    for flipped in flips(frame, 4, 5):
        refuse_head(flipped, UnsupportedVersionError)
    for flipped in flips(frame, 5, _core.Index(frame).header_size):
        refuse_head(flipped, CorruptDataError)


@pytest.mark.parametrize("name", FRAMES)
def test_every_bit_of_blocks_with_checksums_is_guarded(name):
    frame, raw = make(name)
    out = bytearray(len(raw))
    for flipped in flips(frame, _core.Index(frame).header_size, len(frame)):
        try:
            _core.decode_into(flipped, out)
        except CorruptDataError:
            continue
        # Zstandard frames have bits that mean nothing, as that of the window's size here.
        assert name == "zstd"
        assert out == raw


@pytest.mark.parametrize("name", FRAMES)
def test_blocks_without_checksums_never_decode_to_another_length(name):
    frame, raw = make(name, checksum=False)
    for flipped in flips(frame, _core.Index(frame).header_size, len(frame)):
        with contextlib.suppress(CorruptDataError):
            assert len(_core.decode(flipped)) == len(raw)


def test_two_blocks_exchanged_are_found():
    frame = _core.encode(weights(512), SPLIT, BFLOAT16, block=256)
    a, b, end = _core.Index(frame).offsets
    with pytest.raises(CorruptDataError, match="block 0 of 2"):
        _core.decode(frame[:a] + frame[b:end] + frame[a:b])


def test_errors_tell_what_and_where():
    frame, _ = make("arithmetic, blocks")
    offsets = _core.Index(frame).offsets
    damaged = bytearray(frame)
    damaged[offsets[2] + 20] ^= 1
    with pytest.raises(CorruptDataError, match=f"block 2 of 4, at byte {offsets[2]}: "):
        _core.decode(damaged)
    with pytest.raises(UnsupportedVersionError, match=r"version 9.*upgrade"):
        _core.decode(frame[:4] + b"\x09" + frame[5:])
    with pytest.raises(TruncatedDataError, match=f"{len(frame) - 1} bytes of {len(frame)}"):
        _core.decode(frame[:-1])


def test_an_unknown_version_is_told_before_anything_else_is_looked_at():
    for version in {*range(256)} - {_core.FORMAT_VERSION}:
        refuse_head(build.MAGIC + bytes([version]), UnsupportedVersionError)
        refuse_head(build.MAGIC + bytes([version]) + bytes(100), UnsupportedVersionError)


@pytest.mark.parametrize(
    "data",
    [
        numcodecs.Zstd().encode(weights(1000)),
        numcodecs.Blosc().encode(weights(1000)),
        numcodecs.LZ4().encode(weights(1000)),
        gzip.compress(weights(1000)),
        b"\x89HDF\r\n\x1a\n" + bytes(1000),
        b"PK\x03\x04" + bytes(1000),
        b"certainly no frame of this package, but a line of text\n" * 5,
        bytes(1000),
        b"\xff" * 1000,
        weights(1000),
    ],
    ids=["zstd", "blosc", "lz4", "gzip", "hdf5", "zip", "text", "zeros", "ones", "weights"],
)
def test_other_data_are_no_frame(data):
    for length in (1, 2, 3, 4, 5, 24, 100, len(data)):
        refuse_head(data[:length], CorruptDataError)


# --- heads that lie, with checksums that agree ---------------------------------------------------

ONE = build.block((STORED, bytes(256)), (STORED, bytes(256)))


def test_a_frame_by_hand_is_taken():
    assert _core.decode(build.frame(512, [ONE])) == bytes(512)
    with_sum = build.frame(512, [ONE], sums=[_core.checksum(bytes(512))])
    assert _core.decode(with_sum) == bytes(512)


@pytest.mark.parametrize("codec", [0, 5, 6, 127, 128, 255])
def test_unknown_codecs(codec):
    refuse_head(build.frame(512, [ONE], codec=codec), CorruptDataError)


@pytest.mark.parametrize("layout", [*range(6, 16), *range(22, 32), 32, 64, 128, 255])
def test_unknown_layouts(layout):
    frame = build.frame(512, [ONE])
    refuse_head(build.repaired(frame[:6] + bytes([layout]) + frame[7:]), CorruptDataError)


@pytest.mark.parametrize("flags", [0, 0x20, 0x60, 0x80])
def test_block_sizes_out_of_range(flags):
    for layout, width in enumerate((2, 2, 4, 8, 1, 1)):
        largest = (1 << 22) // width
        for k in range(32):
            taken = flags in (0, 0x80) and k >= 8 and 1 << k <= largest
            frame = build.frame(0, [], layout=layout, k=k | flags)
            if taken:
                assert _core.decode(frame) == b""
            else:
                refuse_head(frame, CorruptDataError)


def test_empty_blocks():
    refuse_head(build.frame(512, [b""]), CorruptDataError)
    refuse_head(build.frame(1536, [ONE, b"", ONE]), CorruptDataError)
    refuse_head(build.frame(512, [b""], sums=[0]), CorruptDataError)


def test_sizes_of_blocks_that_do_not_agree_with_the_frame():
    for size in (1, len(ONE) - 1):
        refuse(build.frame(512, [ONE], sizes=[size]), CorruptDataError)
    for size in (len(ONE) + 1, 2**31, 2**32 - 1):
        refuse(build.frame(512, [ONE], sizes=[size]), TruncatedDataError)
    both = [ONE, ONE]
    refuse(build.frame(1024, both, sizes=[2**32 - 1, 2**32 - 1]), TruncatedDataError)
    for first in (1, len(ONE) - 1, len(ONE) + 1):
        frame = build.frame(1024, both, sizes=[first, 2 * len(ONE) - first])
        with pytest.raises(CorruptDataError):
            _core.decode(frame)


def test_raw_sizes_that_do_not_agree_with_the_blocks():
    for raw_size in (0, 1, 2, 500, 510, 511):
        tail = bytes(raw_size % 2)
        for call in (_core.decode, _core.inspect):
            with pytest.raises(CorruptDataError):
                call(build.frame(raw_size, [ONE], tail=tail))
    for raw_size in (513, 514, 1024):
        refuse_head(build.frame(raw_size, [ONE]), CorruptDataError)


def test_one_block_too_many_for_the_raw_size():
    refuse(build.frame(512, [ONE, ONE]), CorruptDataError)


LIES = {
    "1 TB": 10**12,
    "8 EB": 2**63,
    "all bits": 2**64 - 1,
    "all bits but the lowest": 2**64 - 2,
    "a block more than there is": 4096 * 512,
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("layout", [0, 3, 4])
def test_raw_sizes_that_no_frame_of_this_size_can_have(lie, layout):
    for sums in (None, [0]):
        for k in (8, 19):
            frame = build.frame(512, [ONE], layout=layout, k=k, sums=sums)
            frame = build.repaired(frame[:8] + LIES[lie].to_bytes(8, "little") + frame[16:])
            with pytest.raises(CodecError):
                _core.decode(frame)
            with pytest.raises(CodecError):
                bf16codecs.decode(frame)
            with pytest.raises(CodecError):
                bf16codecs.inspect(frame)


LIAR = """
import resource, sys, tracemalloc
import bf16codecs
from bf16codecs import _core
frames = [bytes.fromhex(line) for line in sys.argv[1].split()]
_core.decode(_core.encode(bytes(100_000), 3, 0))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open("/proc/self/statm") as statm:
    now = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), resource.RLIM_INFINITY))
tracemalloc.start()
for frame in frames:
    for call in (bf16codecs.decode, bf16codecs.inspect, _core.Index):
        try:
            call(frame)
        except bf16codecs.errors.CodecError:
            pass
        else:
            sys.exit("decoded")
assert tracemalloc.get_traced_memory()[1] < 1 << 20, tracemalloc.get_traced_memory()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
assert grown < 4 << 10, grown
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_lies_cost_no_memory(run_python):
    frames = []
    for raw_size in LIES.values():
        for layout in (0, 3, 4):
            frame = build.frame(512, [ONE], layout=layout)[:100]
            frames.append(build.repaired(frame[:8] + raw_size.to_bytes(8, "little") + frame[16:]))
    run_python(LIAR, "\n".join(frame.hex() for frame in frames))


# --- blocks alone --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("checksum", [True, False])
def test_every_range_of_blocks_is_the_slice(name, checksum):
    raw = FRAMES[name][2]
    frame, _ = make(name, checksum=checksum, block=256)
    index = _core.Index(frame)
    n, size = index.n_blocks, index.block_items * index.item_size
    assert index.raw_size == len(raw)
    assert index.offsets[-1] == index.frame_size == len(frame)
    assert len(index.offsets) == n + 1
    for first in range(n):
        for last in range(first + 1, n + 1):
            part = raw[first * size : None if last == n else last * size]
            out = bytearray(len(part))
            assert _core.decode_blocks(frame, first, last, out) == len(part)
            assert out == part
            out = np.empty(len(part), np.uint8)
            payload = frame[index.offsets[first] : index.offsets[last]]
            index.decode_block_range(payload, first, last, out)
            assert out.tobytes() == part


def test_wrong_ranges_and_sizes_of_blocks():
    frame, _ = make("arithmetic, blocks")
    index = _core.Index(frame)
    out = bytearray(512)
    payload = frame[index.offsets[0] : index.offsets[1]]
    for first, last in ((0, 0), (1, 1), (2, 1), (4, 4), (4, 5), (0, 5), (0, 2**40)):
        with pytest.raises(IndexError):
            _core.decode_blocks(frame, first, last, out)
        with pytest.raises(IndexError):
            index.decode_block_range(payload, first, last, out)
    for first, last in ((-1, 1), (0, -1), (0, 2**64), (0.0, 1)):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            _core.decode_blocks(frame, first, last, out)
    for size in (0, 1, 511, 513, 1024):
        with pytest.raises(ValueError, match="512"):
            _core.decode_blocks(frame, 0, 1, bytearray(size))
        with pytest.raises(ValueError, match="512"):
            index.decode_block_range(payload, 0, 1, bytearray(size))
    index.decode_block_range(payload, 0, 1, out)
    for length in range(len(payload)):
        with pytest.raises(TruncatedDataError):
            index.decode_block_range(payload[:length], 0, 1, out)
    with pytest.raises(ValueError, match="longer"):
        index.decode_block_range(payload + b"\0", 0, 1, out)
    with pytest.raises(CodecError):
        index.decode_block_range(payload[::-1], 0, 1, out)
    for wrong in (bytes(512), "text", None, memoryview(bytes(512))):
        with pytest.raises((TypeError, BufferError, ValueError)):
            _core.decode_blocks(frame, 0, 1, wrong)


def test_damage_in_one_block_leaves_the_others_readable():
    frame, raw = make("arithmetic, blocks")
    index = _core.Index(frame)
    damaged = bytearray(frame)
    damaged[index.offsets[2] - 1] ^= 1
    out = bytearray(512)
    for b, good in enumerate((True, False, True)):
        if good:
            _core.decode_blocks(damaged, b, b + 1, out)
            assert out == raw[512 * b : 512 * (b + 1)]
        else:
            with pytest.raises(CorruptDataError, match=f"block {b} of 4"):
                _core.decode_blocks(damaged, b, b + 1, out)


def test_constant_blocks_are_bounded_by_the_block_size():
    """The smallest block gives 4 MiB at most, so what a frame can become is bounded by its size."""
    block = build.block((CONSTANT, b"\1"), (CONSTANT, b"\2"))
    frame = build.frame(1 << 23, [block, block], layout=16, k=21)
    assert _core.decode(frame) == b"\2\1" * (1 << 22)
