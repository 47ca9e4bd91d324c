"""Gaussian tables of tiles: both decoders agree on what changes make of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from both_decoders import both_agree, both_decode, both_refuse, changed_bits
from checkout import ROOT
from looping import for_each
from makers import frames as build
from makers.tiles import NO_CHANGES, TileNumbers, code_tiles, tiles_payload, write_tile_model
from reference_grid import SECTION
from reference_planes import CONSTANT, JOINED, TILES, FormatError
from reference_tile_tables import (
    CHANGE_LIMIT,
    ESCAPE,
    GAUSSIAN_HI,
    GAUSSIAN_LO,
    POWERS,
    TOTAL,
    alias_slots,
)
from tiers import by_tier
from tile_frames import (
    check_tiles,
    evenly_among,
    expected_of,
    middle_of,
    model_frame,
    random_changes,
    sizes_up_to,
    tile_keys,
)

ONE = TileNumbers(base=middle_of(0), form=0, escape=60)
FOUR = replace(
    ONE, form=1, changes=[NO_CHANGES] * 4, steps=(1, 0), period=(0, 48),
    columns=[7 * c % 23 - 11 for c in range(48)],
)  # fmt: skip
FORMS = for_each("numbers", [ONE, FOUR], ids=["one class", "four"])
N = 203
KEYS = tile_keys(N)


def changed(numbers: TileNumbers, changes: list[int], **fields) -> TileNumbers:
    """Return numbers with these changes in every table."""
    return replace(numbers, changes=[changes] * len(numbers.changes), **fields)


def frame_of(numbers: TileNumbers) -> bytes:
    """Return a frame of a model that need not be valid."""
    payload = tiles_payload(KEYS, ONE.section(0))
    return model_frame(TILES, payload, N, write_tile_model([numbers]))


def is_valid(numbers: TileNumbers) -> bool:
    """Tell whether the largest frequency is left something."""
    try:
        numbers.section(0)
    except FormatError:
        return False
    return True


# --- the document --------------------------------------------------------------------------------


def page() -> str:
    return (ROOT / "docs" / "format_tiles.md").read_text("utf-8")


def chapter() -> str:
    return page().partition("\n## Gaussian tables\n")[2].partition("\n## ")[0]


def numbers_after(start: str, text: str) -> list[int]:
    """Return the numbers that follow a phrase in the document's text, across lines."""
    found = re.search(re.escape(start) + r"((?:\d+,? ?)+)", " ".join(text.split()))
    assert found, start
    return [int(number) for number in found[1].replace(",", "").split()]


def test_gaussian_tables_are_those_of_the_document():
    """With an escape of frequency 1 the frequencies are the numbers that they are made of.

    The tests below compare the core's tables with these.
    """
    names = ["C = 1", "C = 4, table class 0", *(f"table class {c}" for c in (1, 2, 3))]
    rows = re.findall(r"^\| ([^|]*\d) \| ([\d: ]+) \|$", chapter(), re.MULTILINE)
    assert [name for name, _ in rows] == names
    tables = [t for numbers in (ONE, FOUR) for t in replace(numbers, escape=1).section(0).tables]
    for (_, row), table in zip(rows, tables, strict=True):
        intervals = [tuple(map(int, interval.split(":"))) for interval in row.split()]
        assert list(zip(table.n, table.f, strict=True))[:ESCAPE] == intervals


def test_numbers_of_gaussian_tables_are_those_of_the_document():
    assert numbers_after("T = ", chapter()) == POWERS
    assert numbers_after("lo = ", chapter()) == [GAUSSIAN_LO]
    assert numbers_after("hi = ", chapter()) == [GAUSSIAN_HI]
    assert numbers_after("a change outside +-", page()) == [CHANGE_LIMIT]


# --- without changes -----------------------------------------------------------------------------


@FORMS
@for_each("log2_groups", [0, 1, 2])
@for_each("dtype", range(6))
def test_gaussian_tables_of_any_data_type(dtype, log2_groups, numbers):
    numbers = replace(numbers, base=middle_of(dtype))
    for n in by_tier((128, 1003), (128, 1003, 9000)):
        check_tiles(tile_keys(n, dtype), numbers, dtype=dtype, log2_groups=log2_groups)


def test_gaussian_tables_have_all_slots():
    for numbers in (replace(ONE, escape=1), replace(FOUR, escape=1)):
        for table in numbers.section(0).tables:
            assert sum(table.f) == TOTAL
            assert table.base[0] == 96
            assert table.base[ESCAPE - 1] + (1 << table.n[ESCAPE - 1]) == 240
            for j in range(ESCAPE):
                assert table.base[j] % (1 << table.n[j]) == 0
            assert Counter(alias_slots(table.f)) == Counter(
                (j, rank) for j, f in enumerate(table.f) for rank in range(f)
            )


@FORMS
@for_each("escape", [1, 2, 3, 4, 5, 63, 64, 127, 128, 129, 130, 1000, 2001, 4000])
def test_escapes_of_any_frequency(escape, numbers):
    check_tiles(KEYS, replace(numbers, escape=escape))


@for_each("lowest", range(16))
def test_items_of_one_class_of_four(lowest):
    check_tiles(KEYS, replace(FOUR, base=16 * 128 + lowest, period=(0, 0), columns=[]))


@for_each("numbers", [ONE, FOUR], ids=["one class", "four"])
def test_symbols_at_the_ends_of_gaussian_tables(numbers):
    """Symbols are 96 to 239, and the keys of others are escapes."""
    numbers = replace(numbers, period=(0, 0), columns=[])
    first = 8 * (numbers.base // 16) - 208
    keys = [first + v << 5 for v in (94, 95, 96, 97, 238, 239, 240, 241) for _ in range(16)]
    assert len(code_tiles(keys, numbers.section(0)).escapes) == 4 * 16
    check_tiles(keys, numbers)


# --- changes -------------------------------------------------------------------------------------

LARGE_CHANGES = [-64, -63, -57, -56, 56, 57, 63, 64]


@FORMS
@for_each("d", by_tier([-64, -17, -1, 0, 1, 8, 63], [*range(-17, 18), *LARGE_CHANGES]))
def test_changes_of_one_interval(d, numbers):
    for j in (0, 9, *by_tier([], [1, 16]), ESCAPE - 1):
        changes = [d if at == j else 0 for at in range(ESCAPE)]
        check_tiles(KEYS, changed(numbers, changes))
        check_tiles(KEYS, changed(numbers, [-change for change in changes], escape=777))


@FORMS
@for_each("d", [-64, -9, -1, 1, 5, 64])
def test_the_same_change_of_all_intervals(d, numbers):
    check_tiles(KEYS, changed(numbers, [d] * ESCAPE))


@FORMS
def test_changes_at_their_limits(numbers):
    for changes in (
        [64, -64] * 15 + [64],
        [-64, 64] * 15 + [-64],
        [-64] * 30 + [64],
        [64] + [-64] * 30,
        [0] * 30 + [64],
        [-64] * 15 + [64] * 16,
    ):
        check_tiles(KEYS, changed(numbers, changes))


@for_each("form", [0, 1])
@for_each("seed", range(0, 60, by_tier(7, 1)))
def test_random_changes(seed, form):
    numbers = FOUR if form else ONE
    changes = [
        random_changes(10 * seed + c, [2, 9, 30, 64][seed % 4]) for c in range(len(numbers.changes))
    ]
    numbers = replace(numbers, changes=changes, escape=1 + 37 * seed)
    check_tiles(tile_keys(500 + 7 * seed, seed=seed), numbers, log2_groups=seed % 3)


def test_changes_of_each_table_for_itself():
    """Changes are differences in a table, independent of the table before it."""
    changes = [[9] * 31, [-20] * 15 + [3] * 16, NO_CHANGES, [*range(-15, 16)]]
    for at in range(4):
        check_tiles(tile_keys(3000), replace(FOUR, changes=changes[at:] + changes[:at]))


def test_sections_of_every_form_after_each_other():
    base = middle_of(4)
    sizes = sizes_up_to(3, 128, 240)
    explicit = TileNumbers(
        base=base, form=2, lo=128, hi=240, escape=50, tables=[evenly_among(sizes, 50)]
    )
    forms = [
        changed(ONE, random_changes(1, 9), base=base),
        replace(FOUR, base=base, changes=[random_changes(c, 20) for c in range(4)]),
        explicit,
        replace(explicit, form=3, tables=explicit.tables * 4, period=(0, 16), columns=[3] * 16),
    ]
    keys = tile_keys(150, 4)
    for before in forms[:: by_tier(2, 1)]:
        for after in forms:
            payload = tiles_payload(keys, after.section(4), SECTION)
            blocks = [build.block((CONSTANT, b"\1")), build.block((TILES, payload))]
            model = write_tile_model([before, after])
            frame = build.frame(SECTION + 150, blocks, layout=4, k=22, model=model, version=2)
            assert both_decode(frame)[SECTION:] == expected_of(keys, 4)


# --- refused -------------------------------------------------------------------------------------


@for_each("j", [0, 1, 17, ESCAPE - 1])
@for_each("d", [65, -65, *by_tier([], [66, 128, -128, 500]), 1 << 18, 1 - (1 << 18)])
def test_changes_out_of_range(d, j):
    changes = [d if at == j else 0 for at in range(ESCAPE)]
    both_refuse(frame_of(replace(ONE, changes=[changes])))
    for c in range(4):
        tables = [NO_CHANGES] * 4
        tables[c] = changes
        both_refuse(frame_of(replace(FOUR, changes=tables)))


def test_changes_that_grow_out_of_range():
    both_refuse(frame_of(replace(ONE, changes=[[3 * j for j in range(ESCAPE)]])))
    both_refuse(frame_of(replace(ONE, changes=[[-3 * j for j in range(ESCAPE)]])))
    both_refuse(frame_of(replace(ONE, changes=[[64] * 30 + [65]])))
    both_refuse(frame_of(replace(ONE, changes=[[-64] * 30 + [-65]])))


@FORMS
@for_each("escape", [0, -1, 4096, 4097, 1 << 18])
def test_frequencies_of_the_escape_out_of_range(escape, numbers):
    both_refuse(frame_of(replace(numbers, escape=escape)))


ROUNDED_UP = {
    "no changes": NO_CHANGES,
    "all to the first": [64, *[-64] * 30],
    "all to the last": [*[-64] * 30, 64],
    "to and fro": [*[64, -64] * 15, 64],
    "random": random_changes(4),
}


@FORMS
@for_each("name", by_tier(["all to the first"], ROUNDED_UP))
def test_changes_that_leave_nothing_to_the_largest(name, numbers):
    """All other frequencies are rounded up to 1 or 2, which may exceed the sum."""
    numbers = changed(numbers, ROUNDED_UP[name])
    n_valid = 0
    lowest = next(e for e in range(1, TOTAL) if not is_valid(replace(numbers, escape=e)))
    more = by_tier(6, 40)
    for escape in {*range(lowest - 3, lowest + more), *range(TOTAL - 6 - more, TOTAL)}:
        if 0 < escape < TOTAL:
            frame = frame_of(replace(numbers, escape=escape))
            if is_valid(replace(numbers, escape=escape)):
                check_tiles(KEYS, replace(numbers, escape=escape))
                n_valid += 1
            else:
                both_refuse(frame)
    assert n_valid > 2
    both_refuse(frame_of(replace(numbers, escape=TOTAL - 1)))


def test_one_table_of_four_that_leaves_nothing_to_the_largest():
    for c in range(4):
        changes = [NO_CHANGES] * 4
        changes[c] = [64, *[-64] * 30]
        both_refuse(frame_of(replace(FOUR, escape=3600, changes=changes)))
    check_tiles(KEYS, replace(FOUR, escape=3600))


@FORMS
def test_the_decoders_agree_on_changed_bits_of_models(numbers):
    numbers = replace(numbers, changes=[random_changes(c, 4) for c in range(len(numbers.changes))])
    payload, model = tiles_payload(KEYS, numbers.section(0)), write_tile_model([numbers])
    for damaged in changed_bits(model):
        both_agree(model_frame(TILES, payload, N, damaged))
    for length in range(len(model)):
        both_agree(model_frame(TILES, payload, N, model[:length]))


def test_blocks_of_gaussian_tables_beside_each_other():
    keys = tile_keys(700)
    section = FOUR.section(0)
    blocks = [
        build.block((TILES, tiles_payload(keys[at : at + 256], section, at)), (JOINED, b""))
        for at in (0, 256, 512)
    ]
    frame = build.frame(1400, blocks, model=write_tile_model([FOUR]), version=2)
    assert both_decode(frame) == expected_of(keys, 0)
