"""Differences: the decoders read what the format allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from both_decoders import both_decode_to_base, both_refuse_to_base
from contents import lcg_bytes, weights
from difference_frames import (
    base_of,
    check,
    float_of,
    near_to,
    numbers_for,
    plain_numbers,
    signed_numbers,
)
from looping import for_each
from makers import frames as build
from makers.differences import (
    code_block,
    code_differences,
    difference_block,
    write_difference_model,
)
from makers.frames import frame_to_base, low_planes, whole_block
from makers.grids import write_rows
from makers.lanes import pack_payload
from reference_difference_model import (
    CLASSES,
    ESCAPE,
    EXCLUSIVE_OR,
    MORE,
    ORDERED,
    PLACES,
    PLAIN,
    RAW_LIMIT,
    WIDTHS,
    frequencies,
    item_of,
    order,
    units_of,
    unzigzag,
    zigzag,
)
from reference_differences import bytes_from, items_from
from reference_grid import SECTION, largest_scale
from reference_planes import CONSTANT, STORED, FormatError
from tiers import by_tier

RELATIONS = [ORDERED, PLAIN, EXCLUSIVE_OR]
DTYPES = range(6)


# --- numbers -------------------------------------------------------------------------------------


@for_each("bits", [8, 16, 32, 64])
def test_zigzag_and_order_are_one_to_one(bits):
    top = 1 << bits - 1
    for d in (0, 1, -1, 2, -2, top - 1, -top, 1 - top):
        assert unzigzag(zigzag(d, bits)) == d
        assert zigzag(d + 2 * top, bits) == zigzag(d, bits) < 2 * top
        assert order(order(d % (2 * top), bits), bits) == d % (2 * top)
    if bits == 8:
        assert {zigzag(d, 8) for d in range(256)} == set(range(256))
        places = [order(u, 8) for u in range(256)]
        assert places[:128] == list(range(128))
        assert places[128:] == list(range(255, 127, -1))  # -0 is the one below 0


@for_each("raw", range(RAW_LIMIT + 1))
def test_frequencies(raw):
    units = units_of(raw)
    for seed in range(40):
        noise = np.frombuffer(lcg_bytes(16, seed), np.uint8)
        g = (noise % (1 + 96 // (1 + seed % 5))).tolist()
        g[ESCAPE] = max(1, g[ESCAPE])
        g[0] = 96  # so that one has enough to give away
        if raw == 8:
            g[14] = 0
        f = frequencies(g, raw)
        assert sum(f) == 4096
        for own, unit, weight in zip(f, units, g, strict=True):
            assert own % unit == 0
            assert (own > 0) == (weight > 0)


def test_frequencies_of_the_document():
    assert frequencies([96, *[0] * 14, 1], 0) == (4095, *[0] * 14, 1)
    assert frequencies([1, *[0] * 14, 1], 0) == (2048, *[0] * 14, 2048)
    assert frequencies([1, 9, *[0] * 13, 1], 0) == (1024, 2048, *[0] * 13, 1024)


@for_each("raw", range(RAW_LIMIT + 1))
def test_any_weights(raw):
    """Both decoders have the same frequencies, or refuse the weights."""
    base = base_of(128)
    items, n_refused = near_to(base), 0
    stored = [whole_block(items, 2)]
    for seed in range(n_seeds := by_tier(8, 30)):
        noise = np.frombuffer(lcg_bytes(16, 100 * raw + seed), np.uint8)
        g = (noise % (2 + 95 * (seed % 4) // 3)).tolist()
        g[seed % 16] = 96 * (seed % 3 > 0)
        numbers = replace(plain_numbers(PLAIN, raw=raw), weights=[g])
        try:
            frequencies(g, raw)
            valid = g[ESCAPE] > 0
        except (FormatError, ZeroDivisionError):
            valid = False
        if valid:
            check(items, base, numbers)
        else:
            n_refused += 1
            model = write_difference_model([numbers])
            both_refuse_to_base(frame_to_base(items, base, stored, model=model), base)
    assert n_refused < n_seeds


# --- blocks --------------------------------------------------------------------------------------


@for_each("dtype", DTYPES)
@for_each("relation", RELATIONS)
def test_relations_with_any_low_bytes(relation, dtype):
    base = base_of(300, dtype) + b"abcdefg"[: WIDTHS[dtype] - 1]
    for low in range(WIDTHS[dtype]):
        raw = near_to(base[: 300 * WIDTHS[dtype]], dtype, shift=8 * low // 2) + b"ABCDEFG"
        raw = raw[: len(base)]
        for r in by_tier((3,), (0, 3, 8)):
            check(raw, base, plain_numbers(relation, dtype, low, r), dtype)
        check(raw, base, signed_numbers(dtype, low), dtype, sums=False)
        if relation == ORDERED:
            check(raw, base, numbers_for(dtype, low), dtype)


@for_each("log2_groups", [0, 1, 2])
def test_blocks_of_any_length(log2_groups):
    numbers = numbers_for()
    for n in (32, 33, 63, 64, 65, 95, 96, 127, 128, 129, 160, 191, 255, 256):
        if n >= 32 << log2_groups:
            for dtype in (0, 4):
                base = base_of(n, dtype)
                check(near_to(base, dtype), base, numbers_for(dtype), dtype,
                      log2_groups=log2_groups)  # fmt: skip
    base = base_of(3 * 256 + 140)
    check(near_to(base), base, numbers, log2_groups=log2_groups)


@for_each("size", [0, 1, 2, 3, 63, 64, 65, 511, 512, 513, 575, 577])
@for_each("sums", [False, True])
def test_raw_sizes(size, sums):
    """A few items have no differences, and neither has a tail."""
    base = weights(300)[:size]
    check(lcg_bytes(size), base, numbers_for(), sums=sums)


@for_each("step", by_tier((0, 2, 4), range(5)))
@for_each("n_classes", [1, 3, CLASSES])
def test_places_and_classes(n_classes, step):
    base = base_of(512)
    for near in range(0, n_classes + 1, max(1, n_classes // 3)):
        raw = [(3 * c + step) % 8 for c in range(near)]
        for origin in by_tier((-16383, 4 * n_classes), (-16383, -5, 4 * n_classes, 16383)):
            numbers = numbers_for(near=near, raw=raw, n_classes=n_classes, step=step, origin=origin)
            check(near_to(base)[:512], base[:512], numbers)


def test_as_many_places_as_can_be():
    begins = [place % 5 == 0 for place in range(PLACES - 1)]
    n_classes = 1 + sum(begins)
    numbers = numbers_for(
        begins=[int(bit) for bit in begins], origin=8, step=0, n_classes=n_classes, near=7,
        raw=[5, 5, 0, 8, 1, 2, 3],
    )  # fmt: skip
    base = base_of(700)
    check(near_to(base), base, numbers)


def test_a_grid_of_rows_and_columns():
    """Classes, and the magnitudes to compare signed numbers with, follow each item's scale."""
    for dtype in DTYPES:
        base = base_of(600, dtype)
        for near in (0, 1, 2):
            numbers = numbers_for(
                dtype, near=near, raw=[1, 2][:near], run=(0, 40), period=(0, 40), steps=(2, 1),
                columns=[7 * c % 23 - 11 for c in range(40)],
            )  # fmt: skip
            rows = [
                write_rows(-3, [5 - c for c in range(8)]),  # items 0 ... 255: runs 0 ... 6
                write_rows(9, [c * c - 8 for c in range(7)]),
                write_rows(largest_scale(dtype), [-2047, 2047, 3]),
            ]
            check(near_to(base, dtype), base, numbers, dtype, rows=rows)


@for_each("base", [0, 1, largest_scale(0)])
@for_each("offset", [-(1 << 20) + 1, 0, (1 << 20) - 1])
def test_scales_at_their_limits(base, offset):
    below = weights(256)
    for numbers in (numbers_for(base=base), signed_numbers(base=base)):
        check(near_to(below), below, numbers, rows=[write_rows(offset)])


def test_sections_go_on_from_one_to_the_next():
    """Sections of many items are made of constant blocks here, to be quick."""
    first = numbers_for(4, period=(0, 16), columns=list(range(16)))
    base_end = base_of(150, 4)
    base, raw_end = bytes(SECTION) + base_end, near_to(base_end, 4)
    others = (
        replace(first, change=1, columns=[1, -1] * 8),
        plain_numbers(PLAIN, 4, raw=2),
        replace(first, columns=[5] * 16),
        replace(first, raw=[3]),
    )
    for after in by_tier(others[:1], others):
        section = after.section(4, first.section(4))
        blocks = [
            build.block((CONSTANT, b"\2")),
            code_block(raw_end, base_end, section, SECTION),
        ]
        model = write_difference_model([first, after])
        raw = b"\1" * SECTION + raw_end
        frame = frame_to_base(raw, base, blocks, 4, k=22, model=model)
        assert both_decode_to_base(frame, base) == raw


# --- items ---------------------------------------------------------------------------------------

ALL = np.arange(0, 65536, by_tier(7, 1), dtype="<u2")


@for_each(
    "numbers",
    [plain_numbers(relation, raw=4) for relation in RELATIONS] + [signed_numbers()],
    ids=["ordered", "plain", "exclusive or", "signed"],
)
def test_all_bfloat16_on_either_side(numbers):
    check(ALL.tobytes(), (ALL * np.uint16(40503)).tobytes(), numbers, k=16, log2_groups=2)


def test_all_bfloat16_next_to_themselves():
    raw, base = (ALL + np.uint16(3)).tobytes(), ALL.tobytes()
    for numbers in (numbers_for(near=1, raw=[0]), numbers_for(low=1, near=1, raw=[0])):
        check(raw, base, numbers, k=16, log2_groups=1)


@for_each("dtype", DTYPES)
@for_each("relation", RELATIONS)
def test_items_of_every_kind_on_either_side(relation, dtype):
    kinds = [
        float_of(dtype, exponent, fraction, sign)
        for exponent in (0, 1, 5, -2, -1)  # the first has zeros and subnormals, the last NaNs
        for fraction in (0, 1, 2, -1)
        for sign in (0, 1)
    ]
    items = [x for x in kinds for _ in kinds]
    below = [b for _ in kinds for b in kinds]
    raw, base = bytes_from(items, WIDTHS[dtype]), bytes_from(below, WIDTHS[dtype])
    for low in by_tier({WIDTHS[dtype] // 2}, {0, WIDTHS[dtype] - 1, WIDTHS[dtype] // 2}):
        check(raw, base, plain_numbers(relation, dtype, low, raw=2), dtype, k=11)
        if relation == ORDERED:
            check(raw, base, signed_numbers(dtype, low), dtype, k=11)
            check(raw, base, signed_numbers(dtype, low, base=0), dtype, k=11)
            check(raw, base, signed_numbers(dtype, low, base=largest_scale(dtype)), dtype, k=11)


# --- escapes and numbers that no encoder chooses -------------------------------------------------


def test_escapes_that_have_an_entry():
    base = base_of(256)
    for log2_groups in (0, 1, 2):
        for low in (0, 1):
            for escaped in (range(0, 256, 3), range(256)):
                check(near_to(base), base, numbers_for(low=low), log2_groups=log2_groups,
                      escaped=escaped)  # fmt: skip


def test_entries_without_a_frequency_are_escapes():
    base = base_of(256)
    for j in range(ESCAPE):
        own = [96 if i == j else 0 for i in range(ESCAPE)] + [1]
        for raw in (0, 2):
            check(near_to(base), base, replace(plain_numbers(PLAIN, raw=raw), weights=[own]))


def test_low_bytes_of_escapes_and_of_the_last_items_are_noise():
    base = base_of(250)
    raw, numbers = near_to(base, shift=4), numbers_for(low=1)
    section = numbers.section(0)
    parts, lows = code_differences(
        items_from(raw, 2), items_from(base, 2), section, escaped=range(0, 224, 5)
    )
    assert len(parts.rest) == 250 - 224
    noisy = [5 if i % 5 == 0 or i >= 224 else low for i, low in enumerate(lows)]
    block = difference_block(pack_payload(parts, 2), [(STORED, bytes(noisy))], 2)
    frame = frame_to_base(raw, base, [block], model=write_difference_model([numbers]))
    assert both_decode_to_base(frame, base) == raw


@for_each("dtype", DTYPES)
def test_numbers_that_go_around(dtype):
    """Any coded number is valid: its value is taken modulo the item's bits."""
    width, n = WIDTHS[dtype], 128
    base = near_to(base_of(n, dtype), dtype)
    below = items_from(base, width)
    for numbers in (
        *(plain_numbers(relation, dtype, width - 1, 8) for relation in RELATIONS),
        *(signed_numbers(dtype, low) for low in {0, width - 1}),
    ):
        section = numbers.section(dtype)
        (own,) = section.classes
        top = 64 if own.f[14] else 32
        forced = {i: ((top + 37 * i % top) << own.raw) + 3 * i % (1 << own.raw) for i in range(n)}
        parts, lows = code_differences(below, below, section, forced=forced)
        assert parts.escapes == []
        items = [
            item_of(forced[i], lows[i], below[i], numbers.base, own, section) for i in range(n)
        ]
        raw = bytes_from(items, width)
        planes = [(STORED, plane) for plane in low_planes(lows, section.low)]
        block = difference_block(pack_payload(parts, width), planes, width)
        model = write_difference_model([numbers])
        frame = frame_to_base(raw, base, [block], dtype, model=model)
        assert both_decode_to_base(frame, base) == raw


def test_many_words():
    """The entries of most raw bits, at their least frequency, take a word each."""
    n = 256
    weights_of = [90, *[0] * 11, 1, 1, 1, 1]
    numbers = replace(plain_numbers(EXCLUSIVE_OR, raw=8), weights=[weights_of])
    base = weights(n)
    raw = bytes_from([b ^ 64 << 8 | i for i, b in enumerate(items_from(base, 2))], 2)
    parts, _ = code_differences(items_from(raw, 2), items_from(base, 2), numbers.section(0))
    assert parts.escapes == []
    assert MORE[14] + 8 == 14
    assert len(parts.words) >= n
    check(raw, base, numbers)
