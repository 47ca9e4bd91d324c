"""Differences: models and payloads that the format forbids are refused."""

from __future__ import annotations

import struct
from dataclasses import replace

from both_decoders import both_agree_to_base, both_decode_to_base, both_refuse_to_base, changed_bits
from contents import lcg_bytes
from difference_frames import near_to, plain_numbers
from difference_samples import (
    BASE,
    MODEL,
    OWN,
    OWN_MODEL,
    PARTS,
    PAYLOAD,
    RAW,
    ROWS,
    N,
    frame_of,
    refused,
    versions,
)
from looping import for_each
from makers import frames as build
from makers.differences import (
    FALLING,
    code_block,
    code_differences,
    difference_block,
    write_difference_model,
)
from makers.frames import frame_to_base, model_of_versions
from makers.grids import REFUSED_GRIDS, write_rows
from makers.lanes import n_unused_bits, pack_payload
from reference_difference_model import CLASSES, ESCAPE, PLAIN
from reference_differences import items_from
from reference_grid import SECTION
from reference_planes import CONSTANT, LOWEST_STATE
from tiers import by_tier


def test_the_frame_that_the_others_damage():
    assert both_decode_to_base(frame_of(), BASE) == RAW
    assert both_decode_to_base(frame_of(sums=False), BASE) == RAW
    assert len(PARTS.escapes) > 2
    assert len(PARTS.words) > 2


# --- models --------------------------------------------------------------------------------------

ONE = plain_numbers(PLAIN)

REFUSED: dict[str, tuple] = {
    "relation 3": (replace(ONE, relation=3), "relation"),
    "relation -1": (replace(ONE, relation=-1), "relation"),
    "low -1": (replace(ONE, low=-1), "low"),
    "low 2": (replace(ONE, low=2), "low"),
    "step 5": (replace(ONE, step=5), "step"),
    "step -1": (replace(ONE, step=-1), "step"),
    "origin 16384": (replace(ONE, origin=16384), "origin"),
    "origin -16384": (replace(ONE, origin=-16384), "origin"),
    "65 places": (replace(ONE, begins=[0] * 64), "number of places"),
    "17 classes": (
        replace(ONE, begins=[1] * CLASSES, near=17, raw=[0] * 17, weights=[FALLING] * 17),
        "classes",
    ),
    "near above the classes": (replace(ONE, relation=0, near=2), "near"),
    "near below 0": (replace(ONE, relation=0, near=-1), "near"),
    "near 0 of differences": (replace(ONE, near=0), "near"),
    "near 0 of exclusive or": (replace(ONE, relation=2, near=0), "near"),
    "9 raw bits": (replace(ONE, raw=[9]), "raw bits"),
    "-1 raw bits": (replace(ONE, raw=[-1]), "raw bits"),
    "weight 97": (replace(ONE, weights=[[97, *FALLING[1:]]]), "weight"),
    "weight -1": (replace(ONE, weights=[[-1, *FALLING[1:]]]), "weight"),
    "weight 97 of the escape": (replace(ONE, weights=[[*FALLING[:ESCAPE], 97]]), "weight"),
    "no escape": (replace(ONE, weights=[[*FALLING[:ESCAPE], 0]]), "escape"),
    "nothing but the escape": (replace(ONE, weights=[[0] * ESCAPE + [5]]), "no entry"),
    "nothing left": (replace(ONE, raw=[8], weights=[[1] * 16]), "largest"),
}  # fmt: skip


@for_each("name", REFUSED)
def test_models_with_numbers_out_of_range(name):
    numbers, match = REFUSED[name]
    refused(frame_of(model=write_difference_model([numbers])), match)


GRIDS = [
    *REFUSED_GRIDS,
    {"period": (0, N + 1), "columns": [0] * (N + 1)},
    {"period": (0, 16), "change": 1, "columns": [0] * 16},
    {"period": (0, 16), "change": 2, "columns": [0] * 16},
    {"period": (0, 16), "change": -1, "columns": [0] * 16},
]


@for_each("numbers", GRIDS)
def test_grids_with_numbers_out_of_range(numbers):
    refused(frame_of(model=write_difference_model([replace(ONE, **numbers)])))


def test_numbers_at_their_limits():
    for numbers in (
        replace(ONE, origin=16383, step=4),
        replace(ONE, origin=-16383, begins=[0] * 63),
        replace(ONE, raw=[8], weights=[[96, *[0] * 14, 96]]),
        replace(ONE, relation=0, near=0, raw=[]),
    ):
        block = code_block(RAW, BASE, numbers.section(0))
        frame = frame_to_base(RAW, BASE, [block], model=write_difference_model([numbers]))
        assert both_decode_to_base(frame, BASE) == RAW


def test_the_second_section_is_checked():
    blocks = [build.block((CONSTANT, b"\1")), build.block((CONSTANT, b"\2"))]
    raw, own = b"\1" * SECTION + b"\2" * 50, plain_numbers(PLAIN, 4)
    others = (
        replace(own, relation=3),
        replace(own, change=1, period=(0, 16), columns=[0] * 16),
        replace(own, period=(0, 51), columns=[0] * 51),
    )
    for after in by_tier(others[:1], others):
        model = write_difference_model([own, after])
        frame = frame_to_base(raw, raw, blocks, 4, k=22, sums=False, model=model)
        both_refuse_to_base(frame, raw)


# --- payloads ------------------------------------------------------------------------------------


def test_blocks_too_short_for_their_lanes():
    section = OWN.section(0)
    for log2_groups in range(3):
        n = (32 << log2_groups) - 1
        raw, base = RAW[: 2 * n], BASE[: 2 * n]
        parts, _ = code_differences(
            items_from(raw, 2), items_from(base, 2), section, log2_groups=log2_groups
        )
        assert not parts.words
        block = difference_block(pack_payload(parts, 2), [], 2)
        both_refuse_to_base(frame_to_base(raw, base, [block], model=OWN_MODEL), base, "too short")


@for_each("head", [3, 4, 7, 8, 16, 64, 128, 255])
def test_heads_of_payloads(head):
    refused(frame_of(pack_payload(PARTS, 2, head=head)), "log2 G")


def test_fields_that_exceed_the_payload():
    for size in (len(ROWS) + 1, len(PAYLOAD), 65535):
        refused(frame_of(pack_payload(PARTS, 2, row_size=size)))
    for length in range(0, len(PAYLOAD), by_tier(5, 1)):
        refused(frame_of(PAYLOAD[:length]))
    for n_escapes in (1 << 31, (1 << 32) - 1, len(PAYLOAD)):
        refused(frame_of(pack_payload(PARTS, 2, n_escapes=n_escapes)), "more escapes")


def test_escapes_and_words_that_do_not_agree():
    escapes, words = PARTS.escapes, PARTS.words
    for parts in (
        replace(PARTS, escapes=[*escapes, 5]),
        replace(PARTS, escapes=escapes[:-1]),
    ):
        refused(frame_of(pack_payload(parts, 2)), "number of escapes")
    refused(frame_of(pack_payload(replace(PARTS, words=words[:-1]), 2)), "words end")
    refused(frame_of(pack_payload(replace(PARTS, words=[]), 2)), "words end")
    refused(frame_of(pack_payload(replace(PARTS, words=[*words, 0]), 2)), "left over")
    refused(frame_of(pack_payload(PARTS, 2, more=b"\0")), "odd number")


def test_unused_bits_of_the_first_states():
    found = 0
    for seed in range(8):
        raw = near_to(BASE, seed=seed)
        parts, _ = code_differences(items_from(raw, 2), items_from(BASE, 2), OWN.section(0))
        n_unused = n_unused_bits(parts.states)
        for bit in range(n_unused):
            block = difference_block(pack_payload(parts, 2, unused=1 << bit), [], 2)
            frame = frame_to_base(raw, BASE, [block], model=OWN_MODEL)
            both_refuse_to_base(frame, BASE, "unused bit")
        found += n_unused
    assert found > 8


def test_last_states():
    """A state that is 1 too high at first is so at the end, or another item is decoded."""
    one = [96, *[0] * 14, 1]
    numbers = replace(ONE, weights=[one])
    base = bytes(64)
    section = numbers.section(0)
    parts, _ = code_differences([0] * 32, [0] * 32, section)
    good = difference_block(pack_payload(parts, 2), [], 2)
    model = write_difference_model([numbers])
    assert both_decode_to_base(frame_to_base(base, base, [good], model=model), base) == base
    for lane in range(0, 32, 5):
        states = list(parts.states)
        states[lane] += 1
        assert states[lane] > LOWEST_STATE
        bad = difference_block(pack_payload(replace(parts, states=states), 2), [], 2)
        both_refuse_to_base(frame_to_base(base, base, [bad], model=model), base, "last state")


@for_each("classes", [[2048, 0, 0], [0, -2048, 0], [0, 0, 1_000_000]])
def test_row_classes_out_of_range(classes):
    rows = write_rows(0, classes)
    refused(frame_of(pack_payload(replace(PARTS, rows=rows), 2)), "row's class")


# --- damage --------------------------------------------------------------------------------------


def test_the_decoders_agree_on_changed_bits():
    for damaged in changed_bits(PAYLOAD):
        both_agree_to_base(frame_of(damaged, sums=False), BASE)
    for damaged in changed_bits(MODEL):
        both_agree_to_base(frame_of(model=damaged, sums=False), BASE)
    whole = model_of_versions((None, 0), (b"", OWN_MODEL))
    for damaged in changed_bits(whole):
        both_agree_to_base(versions(model=damaged, sums=False))
    for length in range(len(MODEL)):
        both_agree_to_base(frame_of(model=MODEL[:length], sums=False), BASE)


def test_the_decoders_agree_on_repaired_heads():
    for frame, base in ((frame_of(), BASE), (versions(), None)):
        assert build.repaired(frame) == frame
        for at in range(5, 60, by_tier(3, 1)):
            for value in (0, 1, frame[at] ^ 1, 255):
                damaged = bytearray(frame)
                damaged[at] = value
                both_agree_to_base(build.repaired(bytes(damaged)), base)


def test_the_decoders_agree_on_any_payload():
    for seed in range(30):
        noise = lcg_bytes(400, seed)
        payload = struct.pack("<HBI", 0, seed % 3, noise[0]) + noise
        both_agree_to_base(frame_of(payload, sums=False), BASE)
