"""What a frame costs to read is in proportion to it and to what it decodes to."""

from __future__ import annotations

import sys

import pytest

import reference_encoder as build
from bf16codecs import _core
from bf16codecs.errors import CorruptDataError
from reference_grid import SECTION
from reference_grid_encoder import write_rows
from reference_model_encoder import (
    Numbers,
    long_period_model,
    scale_payload,
    write_model,
)
from reference_planes import CONSTANT, JOINED, SCALE

BFLOAT16, FLOAT8 = 0, 4

LIMITED = """
import resource, sys
from bf16codecs import _core
from bf16codecs.errors import CorruptDataError
_core.set_num_threads(1)
frame = open(sys.argv[1], "rb").read()
_core.decode(_core.encode(bytes(100_000), 3, 0))
with open("/proc/self/statm") as statm:
    now = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (int(sys.argv[2]) << 20), resource.RLIM_INFINITY))
seconds = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
try:
    print(len(_core.decode(frame)))
except CorruptDataError as e:
    print(e)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory and time")


@pytest.fixture
def decode_limited(run_python, tmp_path):
    """Return a function that decodes a frame in a child with little memory and time."""

    def decode(frame: bytes, mebibytes: int, seconds: int) -> str:
        (tmp_path / "frame").write_bytes(frame)
        return run_python(LIMITED, "frame", str(mebibytes), str(seconds)).stdout.strip()

    return decode


def scale_block(numbers: Numbers) -> bytes:
    payload = scale_payload([1] * 256, numbers.section(BFLOAT16), 0, write_rows())
    return build.block((SCALE, payload), (JOINED, b""))


ZEROS = scale_block(Numbers(base=0, escape_less_1=0))


@pytest.mark.parametrize("size", [13_600, 990_000])
def test_columns_that_a_model_claims_beyond_its_items(decode_limited, size):
    """It took 107 MB for a frame of 14 kB, and 4.1 GB and 47 s for one of 990 kB."""
    model = long_period_model(1024 * size, size)
    frame = build.frame(1024, [ZEROS] * 2, layout=BFLOAT16, model=model)
    assert "more columns than items" in decode_limited(frame, mebibytes=16, seconds=5)


def test_short_blocks_of_a_section_of_many_columns(decode_limited):
    """Each block copied 4 million columns for its 256 items: 35 s, where it takes 0.3 s now."""
    n = SECTION // 256
    model = long_period_model(SECTION, SECTION // 1000)
    frame = build.frame(2 * SECTION, [ZEROS] * n, layout=BFLOAT16, model=model)
    assert decode_limited(frame, mebibytes=512, seconds=12) == str(2 * SECTION)


def test_sections_after_the_wanted_blocks_are_not_read():
    """Reading a block of the first section stops there, whatever the model has after it."""
    first = Numbers(base=80, period=(0, 16), columns=[0] * 16)
    frame = build.frame(
        2 * SECTION,
        [build.block((CONSTANT, b"\2"))] * 2,
        layout=FLOAT8,
        k=22,
        model=write_model([first, Numbers(base=-1)]),
    )
    out = bytearray(SECTION)
    _core.decode_blocks(frame, 0, 1, out)
    assert out == b"\1" * SECTION
    for blocks in ((1, 2), (0, 2)):
        with pytest.raises(CorruptDataError, match="out of range"):
            _core.decode_blocks(frame, *blocks, bytearray(SECTION * (blocks[1] - blocks[0])))


def test_columns_that_are_changes_are_read_in_any_section():
    """The columns of sections before are dropped when the next has been read, not earlier."""
    first = Numbers(base=80, period=(0, 16), columns=list(range(16)))
    change = Numbers(base=80, period=(0, 16), change=1, columns=[1] * 16)
    one = first.section(FLOAT8)
    third = change.section(FLOAT8, change.section(FLOAT8, one))
    keys = list(range(60, 110))
    payload = scale_payload(keys, third, 2 * SECTION, write_rows())
    blocks = [build.block((CONSTANT, b"\1"))] * 2 + [build.block((SCALE, payload))]
    model = write_model([first, change, change])
    frame = build.frame(2 * SECTION + 50, blocks, layout=FLOAT8, k=22, model=model)
    out = bytearray(50)
    _core.decode_blocks(frame, 2, 3, out)
    assert out == _core.decode(frame)[2 * SECTION :]
    assert out == bytes(key >> 1 | (key & 1) << 7 for key in keys)
