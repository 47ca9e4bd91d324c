"""Differences: the decoders read frames of several blocks, modes and versions."""

from __future__ import annotations

import pytest

import reference_decoder as reference
from both_decoders import both_decode_to_base
from contents import lcg_bytes, weights
from difference_frames import base_of, code_blocks, frame_of, near_to, numbers_for, plain_numbers
from looping import for_each
from makers import frames as build
from makers.differences import (
    code_block,
    code_differences,
    difference_block,
    write_difference_model,
)
from makers.frames import (
    frame_of_versions,
    frame_to_base,
    low_planes,
    model_of_versions,
    same_block,
    whole_block,
)
from makers.lanes import pack_payload
from makers.planes import huffman_payload, pairs_payload, wide_payload, zstandard_runs
from makers.tiles import NO_CHANGES, TileNumbers, tiles_payload, write_tile_model
from native_core import core
from reference_difference_model import PLAIN, WIDTHS, expected_magnitude, raw_of_signed
from reference_differences import bytes_from, items_from
from reference_planes import (
    CONSTANT,
    HUFFMAN,
    JOINED,
    RANS_PAIRS,
    RANS_WIDE,
    STORED,
    TILES,
    ZSTANDARD,
)
from tiers import by_tier
from tile_frames import expected_of, tile_keys

ARITHMETIC = 3

# --- frames of the native encoder ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", range(6))
def test_reference_decodes_what_the_encoder_writes(dtype):
    used = 0
    for n in (0, 5, 40, 700, *by_tier([], [3000])):
        base = base_of(n, dtype)
        versions = [base, near_to(base, dtype), near_to(base, dtype, seed=9), base]
        tail = b"abcdefg"[: WIDTHS[dtype] - 1]
        for level in (0, 1):
            options = {"level": level, "block": 256, "row": 40}
            raw, below = versions[1] + tail, base + tail
            frame = core.encode(raw, ARITHMETIC, dtype, base=below, **options)
            assert both_decode_to_base(frame, below) == raw
            used += frame[7] >> 5 & 1
            if n:
                raw = b"".join(versions)
                frame = core.encode(raw, ARITHMETIC, dtype, steps=len(versions), **options)
                assert both_decode_to_base(frame) == raw
                used += frame[7] >> 5 & 1
    assert used > by_tier(2, 4)


# --- modes ---------------------------------------------------------------------------------------


def test_low_planes_of_any_mode():
    base = base_of(256, 2)
    raw = near_to(base, 2, shift=9)
    numbers = numbers_for(2, low=3)
    section = numbers.section(2)
    parts, lows = code_differences(items_from(raw, 4), items_from(base, 4), section)
    planes = low_planes(lows, 3)
    own = dict.fromkeys(range(256), 16)
    lengths = dict.fromkeys(range(256), 8)
    coded = {
        STORED: lambda plane: plane,
        HUFFMAN: lambda plane: huffman_payload(plane, lengths),
        RANS_PAIRS: lambda plane: pairs_payload(plane, [*[16] * 16], [*range(15), 0], escape=True),
        RANS_WIDE: lambda plane: wide_payload(plane, own),
        ZSTANDARD: zstandard,
    }
    for mode, code in coded.items():
        block = difference_block(pack_payload(parts, 4), [(mode, code(p)) for p in planes], 4)
        frame = frame_to_base(raw, base, [block], 2, model=write_difference_model([numbers]))
        assert both_decode_to_base(frame, base) == raw
    mixed = [(ZSTANDARD, zstandard(planes[0])), (STORED, planes[1])]
    block = difference_block(pack_payload(parts, 4), [*mixed, (STORED, planes[2])], 4)
    frame = frame_to_base(raw, base, [block], 2, model=write_difference_model([numbers]))
    assert both_decode_to_base(frame, base) == raw


def zstandard(plane: bytes) -> bytes:
    return zstandard_runs(len(plane), *((byte, 1) for byte in plane))


def test_constant_low_planes():
    base = base_of(256)
    raw = bytes_from([(b + 256 * (i % 3)) % 65536 for i, b in enumerate(items_from(base, 2))], 2)
    numbers = plain_numbers(PLAIN, low=1)
    parts, lows = code_differences(items_from(raw, 2), items_from(base, 2), numbers.section(0))
    assert set(lows) == {0}
    block = difference_block(pack_payload(parts, 2), [(CONSTANT, b"\0")], 2)
    frame = frame_to_base(raw, base, [block], model=write_difference_model([numbers]))
    assert both_decode_to_base(frame, base) == raw


@for_each("dtype", range(6))
@for_each("sums", [False, True])
def test_blocks_of_different_modes(dtype, sums):
    width, numbers = WIDTHS[dtype], numbers_for(dtype)
    base = base_of(800, dtype)
    size = 256 * width
    raw = base[:size] + near_to(base, dtype)[size : 3 * size] + base[3 * size :]
    section = numbers.section(dtype)
    blocks = [
        same_block(width),
        code_block(raw[size : 2 * size], base[size : 2 * size], section, 256),
        whole_block(raw[2 * size : 3 * size], width),
        same_block(width),
    ]
    model = write_difference_model([numbers])
    frame = frame_to_base(raw, base, blocks, dtype, sums=sums, model=model)
    assert both_decode_to_base(frame, base) == raw


def test_without_a_model():
    base = base_of(512)
    raw = base[:512] + lcg_bytes(512)
    frame = frame_to_base(raw, base, [same_block(2), whole_block(raw[512:], 2)])
    assert both_decode_to_base(frame, base) == raw


def test_a_base_that_is_not_needed():
    """A base given to a frame that needs none is ignored."""
    frame = core.encode(weights(500), 3, 0)
    assert both_decode_to_base(frame, b"any") == weights(500)


# --- versions ------------------------------------------------------------------------------------

V = 300  # items in a version


def versions_of(n: int, dtype: int, parents: list[int | None]) -> list[bytes]:
    found: list[bytes] = []
    for v, parent in enumerate(parents):
        below = base_of(n, dtype) if parent is None else found[parent]
        found.append(near_to(below, dtype, seed=v))
    return found


PARENTS = {
    "a chain": [None, 0, 1, 2],
    "a star": [None, 0, 0, 0, 0],
    "this package's": [None, 0, 0, 2, 0, 4, 4, 6],
    "all whole": [None, None, None],
    "two trees": [None, None, 1, 0, 3, 2],
}


@for_each("name", PARENTS)
@for_each("sums", [False, True])
def test_versions(name, sums):
    parents = PARENTS[name]
    for dtype in by_tier((0, 3), (0, 3, 5)):
        width, raws = WIDTHS[dtype], versions_of(V, dtype, parents)
        models, blocks = [], []
        for v, (raw, parent) in enumerate(zip(raws, parents, strict=True)):
            numbers = numbers_for(dtype, low=v % width)
            if parent is None:
                models.append(b"")
                blocks.append([whole_block(raw[: 256 * width], width),
                               whole_block(raw[256 * width :], width)])  # fmt: skip
            else:
                models.append(write_difference_model([numbers]))
                blocks.append(code_blocks(raw, raws[parent], numbers.section(dtype), 8))
        model = model_of_versions(parents, models)
        frame = frame_of_versions(raws, blocks, model, dtype, sums=sums)
        assert both_decode_to_base(frame) == b"".join(raws)
        assert both_decode_to_base(frame, b"not looked at") == b"".join(raws)


def test_versions_with_tiles_and_without_models():
    """A version without a parent may have tiles, one without a model may be the same."""
    keys = tile_keys(256)
    tiles = TileNumbers(base=16 * 128, form=0, escape=60, changes=[NO_CHANGES])
    first = expected_of(keys, 0)
    second, numbers = near_to(first), numbers_for()
    blocks = [
        [build.block((TILES, tiles_payload(keys, tiles.section(0))), (JOINED, b""))],
        [code_block(second, first, numbers.section(0))],
        [same_block(2)],
        [whole_block(second, 2)],
        [build.block((TILES, tiles_payload(keys, tiles.section(0))), (JOINED, b""))],
    ]
    models = [write_tile_model([tiles]), write_difference_model([numbers]), b"", b""]
    versions = [first, second, second, second, first]
    for last in (None, 3):  # with a base as well, a version may have tiles
        model = model_of_versions(
            [None, 0, 1, None, last], [*models, models[0]], kinds=[2, 1, 0, 0, 2]
        )
        frame = frame_of_versions(versions, blocks, model)
        assert both_decode_to_base(frame) == b"".join(versions)


def test_tiles_beside_a_base():
    keys = tile_keys(256)
    tiles = TileNumbers(base=16 * 128, form=0, escape=60, changes=[NO_CHANGES])
    raw = expected_of(keys, 0)
    base = near_to(raw) + raw
    blocks = [
        build.block((TILES, tiles_payload(keys, tiles.section(0))), (JOINED, b"")),
        same_block(2),
    ]
    model = write_tile_model([tiles])
    frame = frame_to_base(raw * 2, base, blocks, model=model, kind=2)
    assert both_decode_to_base(frame, base) == raw * 2


def test_many_versions():
    n, raw = by_tier(500, 2000), weights(1)
    blocks = [[whole_block(raw, 2)], *[[same_block(2)]] * (n - 1)]
    for parents in ([None, *range(n - 1)], [None, *[0] * (n - 1)]):
        model = model_of_versions(parents, [b""] * n)
        frame = frame_of_versions([raw] * n, blocks, model)
        assert both_decode_to_base(frame) == raw * n


@for_each("n", [2, 3, 1000])
def test_versions_of_nothing(n):
    model = model_of_versions([None] * n, [b""] * n)
    assert both_decode_to_base(frame_of_versions([b""] * n, [], model)) == b""


# --- blocks by themselves ------------------------------------------------------------------------


def test_a_block_needs_nothing_but_its_base():
    base = base_of(600)
    raw = near_to(base)
    frame = frame_of(raw, base, numbers_for())
    head = reference.read_head(frame)
    for b in range(3):
        own = slice(512 * b, 512 * b + 512)
        assert reference.decode_block(frame, head, b, base[own]) == raw[own]


def test_what_signed_numbers_are_compared_with():
    """It is the larger one of the base's magnitude and of the scale's power of two."""
    assert expected_magnitude(0x8000, 16 * 121 + 7, 0) == 121 << 7
    assert expected_magnitude(0xBF80, 16 * 121 + 7, 0) == 0x3F80
    assert [raw_of_signed(0, low) for low in range(2)] == [7, 0]
    assert [raw_of_signed(2, low) for low in range(4)] == [8, 8, 7, 0]
    assert raw_of_signed(4, 0) == 3
