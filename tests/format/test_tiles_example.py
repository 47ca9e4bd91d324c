"""The example of docs/format_tiles.md, whose numbers are read from the document."""

from __future__ import annotations

import re
from functools import cache

import pytest

from checkout import ROOT
from contents import lcg_words
from makers.grids import write_rows
from makers.tiles import Intervals, TileNumbers, code_symbols, symbol_of
from reference_grid import column_terms, row_terms
from reference_planes import LOWEST_STATE
from reference_tile_tables import alias_slots
from reference_tiles import (
    LANES,
    TilesPayload,
    class_of,
    key_of,
    raw_bits,
    run_lanes,
    tile_scales,
)
from tile_frames import check_tiles

BFLOAT16 = 0
ROW = 16


@cache
def example() -> str:
    page = (ROOT / "docs" / "format_tiles.md").read_text("utf-8")
    return page.partition("## Example\n")[2]


def table(first: str) -> list[dict[str, str]]:
    """Return the rows of the table whose first column has a name."""
    (found,) = re.findall(rf"^\| {first} \|.*\n(?:\|.*\n)+", example(), re.MULTILINE)
    header, _, *rows = [
        [cell.strip() for cell in row[2:-2].split("|")] for row in found.split("\n")[:-1]
    ]
    return [dict(zip(header, row, strict=True)) for row in rows]


def number(name: str) -> int:
    return int(re.findall(rf"\b{name} = (-?\d+)", example())[0])


def numbers_after(text: str) -> list[int]:
    """Return the numbers that follow a text, with commas between them."""
    found = re.search(rf"{text} ((?:-?\d+, )*-?\d+)".replace(" ", r"\s"), example())
    return [int(n) for n in found[1].split(", ")]


@pytest.fixture
def numbers() -> TileNumbers:
    """Return the section's; the other table classes have another table."""
    *entries, last = table("entry")
    escape = int(last["f"])
    intervals: Intervals = [(int(entry["n"]), int(entry["f"])) for entry in entries]
    (large, f), (small, other) = intervals
    others: Intervals = [(large, f - 2), (small, other + 2)]
    columns = numbers_after("column classes begin with")
    return TileNumbers(
        run=(0, number("run")),
        period=(0, number("period")),
        base=number("base"),
        steps=(number("row_step"), number("column_step")),
        columns=columns + [2] * (number("period") - len(columns)),
        form=number("form"),
        lo=number("lo"),
        hi=number("hi"),
        escape=escape,
        tables=[others, others, others, intervals],
    )


@pytest.fixture
def rows() -> bytes:
    classes = numbers_after("row classes that begin with")
    return write_rows(number("offset"), [*classes, 1, 0])


def key_from(bits: int) -> int:
    return (bits << 1 | bits >> 15) & 0xFFFF


def test_items(numbers: TileNumbers, rows: bytes) -> None:
    section = numbers.section(BFLOAT16)
    scales = tile_scales(rows, section, 0, 4 * ROW)
    row, column = row_terms(rows, section, 0, 4 * ROW), column_terms(section, 0, 4 * ROW)
    for shown in table("item"):
        i, key = int(shown["item"]), key_from(int(shown["bits"], 16))
        v = (key >> raw_bits(BFLOAT16)) - 8 * (scales[i] // 16) + 208
        symbol, raw = symbol_of(key, scales[i], section, wraps=False), key % 32
        assert [int(n) for n in list(shown.values())[2:]] == [
            *(row[i], column[i], scales[i], scales[i] // 16, class_of(scales[i], section)),
            *(key, v, symbol, raw),
        ]
        assert key_of(v, raw, scales[i], BFLOAT16) == key
    ordered = sorted(table("item"), key=lambda shown: int(shown["table class"]))
    assert [int(shown["item"]) for shown in ordered] == numbers_after("the four are ordered")


def test_both_decoders_read_a_block_of_them(numbers: TileNumbers, rows: bytes) -> None:
    keys = [key_from(0x3C80 + int(word) % 64) for word in lcg_words(4 * ROW)]
    for shown in table("item"):
        keys[int(shown["item"])] = int(shown["key"])
    check_tiles(keys, numbers, rows=rows)


def test_buckets(numbers: TileNumbers) -> None:
    slots = alias_slots(numbers.section(BFLOAT16).tables[3].f)
    buckets = set()
    for shown in table("bucket"):
        first, _, last = shown["bucket"].partition(" ... ")
        for b in range(int(first), int(last or first) + 1):
            threshold, alias = int(shown["threshold"]), int(shown["alias"])
            start, _, factor = shown["shift"].partition(" - ")
            shift = int(start) - (int(factor.removesuffix(" x bucket")) * b if factor else 0)
            expected = [(b, p) if p < threshold else (alias, p + shift) for p in range(128)]
            assert slots[b::32] == expected
            buckets.add(b)
    assert buckets == set(range(32))


def test_a_lane(numbers: TileNumbers) -> None:
    section = numbers.section(BFLOAT16)
    of_class_3 = section.base // 16 * 16 + 15
    coder, slots = section.tables[3], alias_slots(section.tables[3].f)
    for shown in table("x"):
        x, word = int(shown["x"]), shown["word"]
        entry, rank = slots[x % 4096]
        state = coder.f[entry] * (x // 4096) + rank
        assert [int(n) for n in list(shown.values())[1:8]] == [
            *(x % 32, x // 32 % 128, entry, rank, state),
            *(coder.base[entry] + state % (1 << coder.n[entry]), state >> coder.n[entry]),
        ]
        # The other lanes are where no symbol takes them below 2^16.
        words = [] if word == "none" else [int(word)]
        lanes = [x] + [1 << 27] * (LANES - 1)
        parts = TilesPayload(b"", 1, lanes, b"", [], [], words)
        symbols, last = run_lanes(parts, [of_class_3] * LANES, section)
        assert (symbols[0], last[0]) == (int(shown["symbol"]), int(shown["x after it"]))
        assert min(last) >= LOWEST_STATE
        assert code_symbols(symbols, [of_class_3] * LANES, section, last) == words
        assert last == lanes
    steps = table("x")
    assert [step["x after it"] for step in steps[:-1]] == [step["x"] for step in steps[1:]]
    assert [step["symbol"] for step in steps] == [item["symbol"] for item in table("item")[1:3]]
