"""Tiles: both decoders agree on every form that the format allows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import reference_decoder as reference
from both_decoders import both_decode
from contents import gaussian, lcg_bytes, matrix, weights
from looping import for_each
from makers import frames as build
from makers.grids import write_rows
from makers.lanes import n_unused_bits
from makers.tiles import Intervals, TileNumbers, code_tiles, tiles_payload, write_tile_model
from native_core import core
from reference_grid import KEY_BITS, SECTION, largest_scale
from reference_planes import CONSTANT, JOINED, TILES
from reference_tile_tables import alias_slots
from tiers import by_tier
from tile_frames import (
    check_tiles,
    evenly_among,
    expected_of,
    middle_of,
    random_numbers,
    sizes_up_to,
    tile_keys,
    with_rest,
)

ARITHMETIC, BEST = 3, 1


# --- frames of the native encoder ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", range(6))
def test_reference_decodes_what_the_encoder_writes(dtype):
    used = 0
    for rows, columns in ((60, 64), (33, 100), *by_tier([], [(150, 96)])):
        raw = matrix(rows, columns, dtype) + b"abcdefg"
        for row in by_tier((0, columns), (0, columns, 16, 1 << 20)):
            for block, checksum in ((0, True), (256, False)):
                frame = core.encode(
                    raw, ARITHMETIC, dtype, level=BEST, block=block, checksum=checksum, row=row
                )
                assert both_decode(frame) == raw
                used += reference.read_head(frame).version == 2
    assert used > by_tier(0, 4)


def with_lines(*fills: int) -> bytes:
    """Return a matrix of 100 columns with rows and columns that are all the same."""
    items = np.frombuffer(gaussian(90, 100), "<u2").reshape(90, 100).copy()
    for i, fill in enumerate(fills * (8 // len(fills))):
        items[11 * i % 90] = items[:, 13 * i % 100] = fill
    return items.tobytes()


CONTENTS = {
    "63": weights(63),
    "64": weights(64),
    "weights": weights(20_000),
    "mixed": weights(9000) + bytes(3000) + lcg_bytes(3000),
    "all values": np.arange(65536, dtype="<u2").tobytes(),
    "NaNs": b"\xc0\x7f" * 40 + weights(9000) + b"\x80\xff" * 40,
    "infinities and NaNs": b"\xc1\x7f\x80\xff" * 5000,
    "-0": b"\0\x80" * 9000,
    "equal rows": gaussian(1, 100) * 90,
    "lines of zeros": with_lines(0),
    "lines of -0": with_lines(0x8000),
    "lines of infinities and NaNs": with_lines(0x7F80, 0xFF80, 0x7FC1, 0xFFFF),
}


@for_each("content", CONTENTS)
def test_any_content_at_level_best(content):
    raw = CONTENTS[content]
    for dtype in by_tier((0, 4), range(6)):
        for block, row in ((8192, 100), *by_tier([], [(0, 0), (16384, 50)])):
            frame = core.encode(raw, ARITHMETIC, dtype, level=BEST, block=block, row=row)
            assert both_decode(frame) == raw
            assert len(frame) <= core.bound(len(raw), ARITHMETIC, dtype, block)


# --- blocks --------------------------------------------------------------------------------------

SIZES = sizes_up_to(4, 1, 128) + sizes_up_to(3, 128, 192) + sizes_up_to(2, 192, 216) + [3, 5]


def plain_table(peak: int) -> Intervals:
    """Return intervals of which one is the most frequent."""
    f = [2 * max(1, 200 - 40 * abs(j - peak)) for j in range(len(SIZES))]
    return with_rest(SIZES, f, 60)


PLAIN = TileNumbers(
    base=middle_of(0), form=2, lo=1, hi=256, escape=60, tables=[plain_table(len(SIZES) - 6)]
)
FOUR = replace(
    PLAIN, form=3, tables=[plain_table(len(SIZES) - c) for c in (9, 7, 5, 3)], steps=(1, 0),
    period=(0, 48), columns=[7 * c % 23 - 11 for c in range(48)],
)  # fmt: skip


LENGTHS = (64, 65, 127, 128, 129, 191, 192, 255, 256, 384, 448, 512, 1000, 1920, 2048, 2113)


@for_each("log2_groups", [0, 1, 2])
@for_each("dtype", range(6))
def test_blocks_of_any_length(dtype, log2_groups):
    """The last 64 G bytes of the records are in the last states where there are so many."""
    numbers = replace(FOUR, base=middle_of(dtype))
    for n in by_tier(LENGTHS[dtype::5], LENGTHS):
        if n >= 32 << log2_groups:
            check_tiles(tile_keys(n, dtype), numbers, dtype=dtype, log2_groups=log2_groups)


LONG = [8191, 8192, 8255, 12_287, 12_288, 12_415, 16_384, 20_000, 20_480]


@for_each("numbers", [PLAIN, FOUR], ids=["one class", "four"])
@for_each("log2_groups", [0, 1, 2])
@for_each("n", by_tier([8191, 12_288], LONG))
def test_blocks_of_any_number_of_tiles(n, log2_groups, numbers):
    check_tiles(tile_keys(n), numbers, log2_groups=log2_groups)


@for_each("dtype", range(6))
def test_tiles_of_any_data_type(dtype):
    numbers = replace(FOUR, base=middle_of(dtype))
    check_tiles(tile_keys(by_tier(9_000, 20_100), dtype), numbers, dtype=dtype, log2_groups=1)


def test_first_states_with_any_number_of_unused_bits():
    found = set()
    for seed in range(60):
        keys = tile_keys(64, seed=seed)
        found.add(n_unused_bits(code_tiles(keys, PLAIN.section(0)).states))
        check_tiles(keys, PLAIN)
    assert found == set(range(8))


@for_each("lowest", range(16))
def test_items_of_one_class_of_four(lowest):
    check_tiles(tile_keys(200), replace(FOUR, base=16 * 128 + lowest, period=(0, 0), columns=[]))


@for_each("border", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49])
def test_steps_on_the_border_of_two_classes(border):
    """The 17th of 32 symbols tells whose table they are coded with."""
    numbers = replace(FOUR, base=16 * 128, period=(0, 64), steps=(0, 0))
    for columns in ([0] * border + [4] * (64 - border), [12] * border + [3] * (64 - border)):
        check_tiles(tile_keys(64), replace(numbers, columns=columns))
        check_tiles(tile_keys(700), replace(numbers, columns=columns), log2_groups=1)


# --- tables --------------------------------------------------------------------------------------

MANY = [128] * 31


def numbers_of(intervals: Intervals, lo: int, escape: int) -> TileNumbers:
    return TileNumbers(
        base=middle_of(0),
        lo=lo,
        hi=lo + sum(1 << n for n, _ in intervals),
        escape=escape,
        tables=[intervals],
    )


TABLES = {
    "one symbol": numbers_of([(0, 4095)], 208, 1),
    "one interval": numbers_of([(5, 4094)], 192, 2),
    "one symbol, rare": numbers_of([(0, 1)], 208, 4095),
    "one interval, rare": numbers_of([(5, 2)], 192, 4094),
    "the lowest symbol": numbers_of([(0, 4000)], 1, 96),
    "the highest symbol": numbers_of([(0, 4000)], 255, 96),
    "all symbols": numbers_of(evenly_among(sizes_up_to(5, 1, 256), 50), 1, 50),
    "all frequencies 128": numbers_of([(0, f) for f in MANY], 190, 128),
    "one above 128": numbers_of([(0, 1)] * 15 + [(0, 4096 - 60)] + [(0, 1)] * 15, 190, 30),
    "the escape above 128": numbers_of([(0, 1)] * 31, 190, 4065),
    "129 and 127": numbers_of([(0, 129), (0, 127)] * 15 + [(0, 128)], 190, 128),
    "127 and 129": numbers_of([(0, 127), (0, 129)] * 15 + [(0, 128)], 190, 128),
    "a chain": numbers_of([(0, 1)] + [(0, 132)] * 30, 190, 135),
    "a chain at the end": numbers_of([(0, 132)] * 30 + [(0, 1)], 190, 135),
    "the first and the last": numbers_of([(0, 2000)] + [(0, 1)] * 29 + [(0, 2000)], 190, 67),
    "to 128 exactly": numbers_of([(0, 64), (0, 192)] * 15 + [(0, 128)], 190, 128),
    "large first": numbers_of([(0, 192), (0, 64)] * 15 + [(0, 128)], 190, 128),
}  # fmt: skip


@for_each("name", TABLES)
def test_any_table(name):
    numbers = TABLES[name]
    (table,) = numbers.section(0).tables
    assert Counter(alias_slots(table.f)) == Counter(
        (j, rank) for j, f in enumerate(table.f) for rank in range(f)
    )
    for log2_groups in (0, 1, 2):
        check_tiles(tile_keys(1003), numbers, log2_groups=log2_groups)
    check_tiles([tile_keys(1)[0]] * 128, numbers)


@for_each("n", range(6))
def test_intervals_of_any_size(n):
    for lo, hi in ((1, 256), (208 - (10 << n), 208 + (21 << n)), (192, 224), (177, 231), (1, 63)):
        sizes = sizes_up_to(n, max(lo, 1), min(hi, 256))
        if len(sizes) <= 31:
            check_tiles(tile_keys(700), numbers_of(evenly_among(sizes, 96), max(lo, 1), 96))


def test_intervals_split_differently_in_every_table():
    sizes = ([5], [4, 4], [4, 3, 3], [0, 0, 1, 2, 3, 3, 2, 1, 1])
    tables = [[(n, f) for n, f in evenly_among(part, 40)] for part in sizes]
    check_tiles(tile_keys(3000), replace(FOUR, lo=192, hi=224, escape=40, tables=tables))


@for_each("seed", range(0, 60, by_tier(7, 1)))
def test_random_tables(seed):
    numbers = random_numbers(seed, period=(0, 16), columns=[3 * c % 19 for c in range(16)])
    check_tiles(tile_keys(500 + 7 * seed, seed=seed), numbers, log2_groups=seed % 3)


def test_many_words():
    """Symbols of frequency 1 take 12 bits, so most steps read a word in most lanes."""
    numbers = TABLES["one symbol, rare"]
    keys = [8 * (numbers.base // 16) << 5] * 512  # symbol 208
    parts = code_tiles(keys, numbers.section(0))
    assert parts.escapes == []
    assert len(parts.words) > 512 * 12 // 16 - 32
    check_tiles(keys, numbers)


# --- symbols and escapes -------------------------------------------------------------------------


@for_each("dtype", range(6))
def test_all_items_are_escapes(dtype):
    numbers = TileNumbers(base=0, lo=1, hi=2, escape=4000, tables=[[(0, 96)]])
    keys = list(range((1 << KEY_BITS[dtype]) - 70, 1 << KEY_BITS[dtype])) * 10
    check_tiles(keys, numbers, dtype=dtype, log2_groups=1)
    check_tiles(keys, replace(numbers, escape=1, tables=[[(0, 4095)]]), dtype=dtype, log2_groups=1)


def test_no_item_is_an_escape():
    keys = [key for key in tile_keys(2000) if 800 <= key >> 5 < 1000][:1003]
    numbers = numbers_of(evenly_among(sizes_up_to(5, 1, 256), 2), 1, 2)
    assert code_tiles(keys, numbers.section(0)).escapes == []
    check_tiles(keys, numbers)


def test_escapes_that_have_a_symbol():
    """A decoder does not ask why an item is an escape, nor what its raw bits are."""
    keys = tile_keys(520)
    changes = {i: 1 + i % 31 for i in range(0, 512, 3)}
    for log2_groups in (0, 1, 2):
        check_tiles(keys, PLAIN, escaped=changes, log2_groups=log2_groups)
        check_tiles(keys, FOUR, escaped=range(512), log2_groups=log2_groups)
        check_tiles(keys, FOUR, escaped=changes, change_raw=changes, log2_groups=log2_groups)


@for_each("dtype", range(6))
def test_keys_go_around(dtype):
    """Symbols of the lowest and the highest scale stand for keys modulo 2^(key bits)."""
    bits = KEY_BITS[dtype]
    for base in (0, 16, largest_scale(dtype)):
        numbers = replace(PLAIN, base=base)
        keys = [(5 * i - 700) % (1 << bits) for i in range(640)]
        keys += [key * 257 % (1 << bits) for key in range(384)]
        for wraps in (False, True):
            check_tiles(keys, numbers, dtype=dtype, wraps=wraps)
    wrapped = code_tiles([0xFFFF] * 64, replace(PLAIN, base=0).section(0), wraps=True)
    assert wrapped.escapes == []


# --- scales --------------------------------------------------------------------------------------


@for_each("step", range(4))
@for_each("run", [16, 17, 333, 1003, 5000])
def test_rows_of_any_length(run, step):
    numbers = replace(FOUR, run=(0, run), steps=(step, 1))
    classes = [(7 * c) % 31 - 15 for c in range(-(-1003 // run))]
    check_tiles(tile_keys(1003), numbers, write_rows(-9, classes))
    classes[0], classes[-1] = 2047, -2047
    check_tiles(tile_keys(1003), numbers, write_rows(70_000, classes))


@for_each("step", by_tier((3,), range(4)))
@for_each("offset", [-(1 << 20) + 1, -3000, 0, 3000, (1 << 20) - 1])
@for_each("dtype", range(6))
def test_rows_are_limited_before_columns_are_added(dtype, offset, step):
    columns = [2047, -2047, 1, -1, *range(-30, 30, 3), 200, -200, 500, -500]
    numbers = replace(
        FOUR, base=middle_of(dtype), period=(0, len(columns)), columns=columns,
        run=(0, 100), steps=(3 - step, step),
    )  # fmt: skip
    rows = write_rows(offset, [2047, -2047, 0, 1, -1, 300, -300])
    check_tiles(tile_keys(640, dtype), numbers, rows, dtype=dtype)


@for_each("base", [0, 1, largest_scale(0) - 1, largest_scale(0)])
def test_lowest_and_highest_bases(base):
    check_tiles(tile_keys(640), replace(FOUR, base=base))


def test_runs_and_columns_go_on_from_block_to_block():
    numbers = replace(
        FOUR, run=(0, 100), period=(0, 48), steps=(2, 1), columns=[c % 5 for c in range(48)]
    )
    section, keys = numbers.section(0), tile_keys(700)
    blocks = []
    for first in (0, 256, 512):
        part = keys[first : first + 256]
        n_runs = (first + len(part) - 1) // 100 - first // 100 + 1
        rows = write_rows(first // 100, [3 - c for c in range(n_runs)])
        payload = tiles_payload(part, section, first, rows, log2_groups=first // 256)
        blocks.append(build.block((TILES, payload), (JOINED, b"")))
    frame = build.frame(1400, blocks, model=write_tile_model([numbers]), version=2)
    assert both_decode(frame) == expected_of(keys, 0)


def test_sections_have_tables_and_columns_of_their_own():
    """Those of columns may be changes of the columns of the section before."""
    base = middle_of(4)
    first = replace(FOUR, base=base, period=(0, 16), columns=list(range(16)))
    keys = tile_keys(150, 4)
    for after in (
        replace(PLAIN, base=base),
        replace(first, columns=[5] * 16),
        replace(first, change=1, columns=[1, -1] * 8),
        replace(TABLES["a chain"], base=base, run=(0, 32)),
    ):
        for before in (first, replace(PLAIN, base=base)):
            if after.change and before.period != after.period:
                continue
            rows = write_rows(5, [1, -2, 3, -4, 5] if after.run[1] else [])
            section = after.section(4, before.section(4))
            payload = tiles_payload(keys, section, SECTION, rows)
            blocks = [build.block((CONSTANT, b"\1")), build.block((TILES, payload))]
            model = write_tile_model([before, after])
            frame = build.frame(SECTION + 150, blocks, layout=4, k=22, model=model, version=2)
            assert both_decode(frame)[SECTION:] == expected_of(keys, 4)


# --- frames --------------------------------------------------------------------------------------


def test_frames_of_version_2_without_tiles():
    for dtype in range(6):
        assert both_decode(build.frame(0, [], layout=dtype, version=2)) == b""
        assert both_decode(build.frame(0, [], layout=dtype, model=b"", version=2)) == b""
    stored = build.block((0, b"\1" * 50), (1, b"\2"))
    for model in (None, write_tile_model([PLAIN])):
        frame = build.frame(100, [stored], model=model, version=2)
        assert both_decode(frame) == both_decode(build.frame(100, [stored]))


def test_tiles_beside_other_modes():
    keys = tile_keys(256)
    tiles = build.block((TILES, tiles_payload(keys, PLAIN.section(0))), (JOINED, b""))
    stored = build.block((0, b"\1" * 256), (1, b"\2"))
    model = write_tile_model([PLAIN])
    frame = build.frame(1024, [stored, tiles], model=model, version=2)
    assert both_decode(frame)[512:] == expected_of(keys, 0)
