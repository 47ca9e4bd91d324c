"""False heads with valid checksums are refused before memory is allocated."""

from __future__ import annotations

import sys

import pytest

import bf16codecs
from bf16codecs.errors import (
    CodecError,
    CorruptDataError,
    TruncatedDataError,
)
from frames import (
    refuse,
    refuse_head,
)
from looping import for_each
from makers import frames as build
from native_core import core
from reference_planes import STORED

ONE = build.block((STORED, bytes(256)), (STORED, bytes(256)))


def test_a_frame_by_hand_is_taken():
    assert core.decode(build.frame(512, [ONE])) == bytes(512)
    with_sum = build.frame(512, [ONE], sums=[core.checksum(bytes(512))])
    assert core.decode(with_sum) == bytes(512)


@for_each("codec", [0, 5, 6, 127, 128, 255])
def test_unknown_codecs(codec):
    refuse_head(build.frame(512, [ONE], codec=codec), CorruptDataError)


@for_each("layout", [*range(6, 16), *range(22, 32), 32, 64, 128, 255])
def test_unknown_layouts(layout):
    frame = build.frame(512, [ONE])
    refuse_head(build.repaired(frame[:6] + bytes([layout]) + frame[7:]), CorruptDataError)


@for_each("flags", [0, 0x20, 0x60, 0x80])
def test_block_sizes_out_of_range(flags):
    for layout, width in enumerate((2, 2, 4, 8, 1, 1)):
        largest = (1 << 22) // width
        for k in range(32):
            taken = flags in (0, 0x80) and k >= 8 and 1 << k <= largest
            frame = build.frame(0, [], layout=layout, k=k | flags)
            if taken:
                assert core.decode(frame) == b""
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
            core.decode(frame)


def test_raw_sizes_that_do_not_agree_with_the_blocks():
    for raw_size in (0, 1, 2, 500, 510, 511):
        tail = bytes(raw_size % 2)
        for call in (core.decode, core.inspect):
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


@for_each("lie", LIES)
@for_each("layout", [0, 3, 4])
def test_raw_sizes_that_no_frame_of_this_size_can_have(lie, layout):
    for sums in (None, [0]):
        for k in (8, 19):
            frame = build.frame(512, [ONE], layout=layout, k=k, sums=sums)
            frame = build.repaired(frame[:8] + LIES[lie].to_bytes(8, "little") + frame[16:])
            with pytest.raises(CodecError):
                core.decode(frame)
            with pytest.raises(CodecError):
                bf16codecs.decode(frame)
            with pytest.raises(CodecError):
                bf16codecs.inspect(frame)


LIAR = """
import resource, sys, tracemalloc
import bf16codecs
import bf16codecs.codecs
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
