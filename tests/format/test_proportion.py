"""The cost of reading a frame is in proportion to its size and its decoded size."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from bf16codecs.errors import CorruptDataError
from makers import frames as build
from makers.grids import GridNumbers, write_rows
from makers.scale import Numbers, long_period_model, scale_payload, write_model
from makers.tiles import TileNumbers, tiles_payload, write_tile_model
from native_core import core
from reference_grid import SECTION
from reference_planes import CONSTANT, JOINED, SCALE, TILES
from tiers import by_tier

BFLOAT16, FLOAT8 = 0, 4

LIMITED = """
import resource, sys
from bf16codecs import _core
from bf16codecs.errors import CorruptDataError
_core.set_num_threads(1)
frame = open(sys.argv[1], "rb").read()
block, items = (int(number) for number in sys.argv[4:]) if len(sys.argv) > 4 else (None, 0)
_core.decode(_core.encode(bytes(100_000), 3, 0))
with open("/proc/self/statm") as statm:
    now = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (int(sys.argv[2]) << 20), resource.RLIM_INFINITY))
seconds = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
try:
    if block is None:
        print(len(_core.decode(frame)))
    else:
        out = bytearray(items)
        _core.decode_blocks(frame, block, block + 1, out)
        print(out.hex())
except CorruptDataError as e:
    print(e)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory and time")


@pytest.fixture
def decode_limited(run_python, tmp_path):
    """Return a function that decodes a frame in a child with little memory and time.

    The child prints how many bytes it has, or, given a block and its size, that block's.
    """

    def decode(frame: bytes, mebibytes: int, seconds: int, *block: int) -> str:
        (tmp_path / "frame").write_bytes(frame)
        mebibytes += 64 * ("ASAN_OPTIONS" in os.environ)  # a sanitizer keeps freed memory
        numbers = (str(number) for number in (mebibytes, seconds, *block))
        return run_python(LIMITED, "frame", *numbers).stdout.strip()

    return decode


def block_of(mode: int, payload: bytes) -> bytes:
    return build.block((mode, payload), (JOINED, b""))


# A block of 256 items by version, with the model in which all numbers but a period are 0.
KEYS = [1] * 256
OF_SCALE = Numbers(base=0, escape_less_1=0)
OF_TILES = TileNumbers(form=0, base=0)
BLOCKS = {
    1: block_of(SCALE, scale_payload(KEYS, OF_SCALE.section(BFLOAT16), 0, write_rows())),
    2: block_of(TILES, tiles_payload(KEYS, OF_TILES.section(BFLOAT16))),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("size", [13_600, 990_000])
def test_columns_that_a_model_claims_beyond_its_items(decode_limited, size, version):
    """It took 107 MB for a frame of 14 kB, and 4.1 GB and 47 s for one of 990 kB."""
    model = long_period_model(1024 * size, size)
    frame = build.frame(1024, [BLOCKS[version]] * 2, model=model, version=version)
    assert "more columns than items" in decode_limited(frame, mebibytes=16, seconds=5)


@pytest.mark.parametrize("version", [1, 2])
def test_short_blocks_of_a_section_of_many_columns(decode_limited, version):
    """Each block copied 4 million columns for its 256 items: 35 s, where it takes 0.3 s now."""
    n = SECTION // 256
    model = long_period_model(SECTION, SECTION // 1000)
    frame = build.frame(2 * SECTION, [BLOCKS[version]] * n, model=model, version=version)
    assert decode_limited(frame, mebibytes=512, seconds=12) == str(2 * SECTION)


GRID = {"base": 80, "period": (0, 16), "columns": list(range(16))}
MODELS = {
    1: write_model([Numbers(**GRID), Numbers(base=-1)]),
    2: write_tile_model([TileNumbers(**GRID), TileNumbers(base=-1)]),
}


@pytest.mark.parametrize("version", MODELS)
def test_sections_after_the_wanted_blocks_are_not_read(version):
    """Reading a block of the first section stops there, with any model after it."""
    frame = build.frame(
        2 * SECTION,
        [build.block((CONSTANT, b"\2"))] * 2,
        layout=FLOAT8,
        k=22,
        model=MODELS[version],
        version=version,
    )
    out = bytearray(SECTION)
    core.decode_blocks(frame, 0, 1, out)
    assert out == b"\1" * SECTION
    for blocks in ((1, 2), (0, 2)):
        with pytest.raises(CorruptDataError, match="out of range"):
            core.decode_blocks(frame, *blocks, bytearray(SECTION * (blocks[1] - blocks[0])))


@pytest.mark.parametrize("version", [1, 2])
def test_columns_that_are_changes_are_read_in_any_section(version):
    """Columns of earlier sections are kept until the next section has been read."""
    kind, write = (Numbers, write_model) if version == 1 else (TileNumbers, write_tile_model)
    first, change = kind(**GRID), kind(**{**GRID, "change": 1, "columns": [1] * 16})
    third = change.section(FLOAT8, change.section(FLOAT8, first.section(FLOAT8)))
    keys = list(range(50, 120))
    if version == 1:
        last = (SCALE, scale_payload(keys, third, 2 * SECTION, write_rows()))
    else:
        last = (TILES, tiles_payload(keys, third, 2 * SECTION))
    frame = build.frame(
        2 * SECTION + 70,
        [build.block((CONSTANT, b"\1"))] * 2 + [build.block(last)],
        layout=FLOAT8,
        k=22,
        model=write([first, change, change]),
        version=version,
    )
    out = bytearray(70)
    core.decode_blocks(frame, 2, 3, out)
    assert out == core.decode(frame)[2 * SECTION :]
    assert out == bytes(key >> 1 | (key & 1) << 7 for key in keys)


# --- one late block of a frame of many sections ---------------------------------------------------


def late_block(version: int, numbers: GridNumbers, n_before: int, model: bytes) -> bytes:
    """Return a frame of so many sections, a constant block each, and a block of KEYS after them."""
    section, first = numbers.section(FLOAT8), n_before * SECTION
    if version == 1:
        last = (SCALE, scale_payload(KEYS, section, first, write_rows()))
    else:
        last = (TILES, tiles_payload(KEYS, section, first))
    blocks = [build.block((CONSTANT, b"\2"))] * n_before + [build.block(last)]
    size = first + len(KEYS)
    return build.frame(size, blocks, layout=FLOAT8, k=22, model=model, version=version)


ITEMS = bytes(key >> 1 | (key & 1) << 7 for key in KEYS).hex()


@pytest.mark.parametrize("version", [1, 2])
def test_tables_of_sections_before_a_late_block(decode_limited, version):
    """Tables of all sections would take 1.7 GB; their other numbers, in version 1, took 20 MB."""
    n_before = 100_000
    numbers = OF_SCALE if version == 1 else OF_TILES
    frame = late_block(version, numbers, n_before, model=bytes(4))  # all numbers are 0
    assert decode_limited(frame, 8, 5, n_before, len(KEYS)) == ITEMS


@pytest.mark.parametrize("version", [1, 2])
def test_columns_of_sections_before_a_late_block(decode_limited, version):
    """Those of all sections would take 128 kB each."""
    n_before, of_one = by_tier(10, 24), 1 << 16
    numbers = OF_SCALE if version == 1 else OF_TILES
    many = replace(numbers, period=(of_one >> 15, 0), columns=[0] * of_one)
    last = replace(numbers, period=(0, 16), columns=[0] * 16)
    write = write_model if version == 1 else write_tile_model
    frame = late_block(version, last, n_before, write([many] * n_before + [last]))
    assert decode_limited(frame, 1, 5, n_before, len(KEYS)) == ITEMS
