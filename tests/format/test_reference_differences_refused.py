"""Differences: what the format forbids is refused."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

import reference_decoder as reference
import reference_encoder as build
from bf16codecs import _core
from both_decoders import (
    both_agree_to_base,
    both_decode_to_base,
    both_refuse_base,
    both_refuse_to_base,
    changed_bits,
)
from contents import lcg_bytes, weights
from difference_frames import base_of, near_to, numbers_for, plain_numbers
from reference_difference_model import CLASSES, ESCAPE, PLAIN
from reference_differences import digest_of_base
from reference_differences_encoder import (
    FALLING,
    base_field,
    code_block,
    code_differences,
    difference_block,
    frame_of_versions,
    frame_to_base,
    items_from,
    low_planes,
    model_of_versions,
    pack_payload,
    same_block,
    sums_of,
    whole_block,
    write_difference_model,
)
from reference_grid import SECTION
from reference_grid_encoder import REFUSED_GRIDS, write_rows
from reference_planes import (
    CONSTANT,
    DIFFERENCE,
    JOINED,
    LOWEST_STATE,
    SAME,
    SCALE,
    STORED,
    TILES,
    FormatError,
    TruncatedFrame,
)
from reference_tiles_encoder import TileNumbers, n_unused_bits, write_tile_model

N = 203
BASE = base_of(N)
RAW = near_to(BASE)
NUMBERS = numbers_for(run=(0, 100))
ROWS = write_rows(-2, [1, 2, -1])
MODEL = write_difference_model([NUMBERS])
PARTS, _ = code_differences(items_from(RAW, 2), items_from(BASE, 2), NUMBERS.section(0), rows=ROWS)
PAYLOAD = pack_payload(PARTS, 2)


def frame_of(payload: bytes = PAYLOAD, model: bytes | None = MODEL, **options) -> bytes:
    block = build.block((DIFFERENCE, payload), (JOINED, b""))
    return frame_to_base(RAW, BASE, [block], model=model, **options)


def refused(frame: bytes, match: str | None = None) -> None:
    both_refuse_to_base(frame, BASE, match)


def test_the_frame_that_the_others_damage():
    assert both_decode_to_base(frame_of(), BASE) == RAW
    assert both_decode_to_base(frame_of(sums=False), BASE) == RAW
    assert len(PARTS.escapes) > 2
    assert len(PARTS.words) > 2


# --- heads and base fields -----------------------------------------------------------------------

DIGEST = digest_of_base(BASE, 512, 2)


def test_differences_where_there_are_none():
    refused(frame_of(version=1), "bit 5")
    refused(frame_of(layout=16), "by byte")
    refused(frame_of(layout=16, model=None), "by byte")
    stored = frame_to_base(RAW, BASE, [whole_block(RAW, 2)])
    assert both_decode_to_base(stored, BASE) == RAW
    refused(frame_to_base(RAW, BASE, [whole_block(RAW, 2)], version=1), "bit 5")


def test_base_fields():
    assert both_decode_to_base(frame_of(base=base_field(1, DIGEST)), BASE) == RAW
    refused(frame_of(base=base_field(0, DIGEST)), "no versions")
    refused(frame_of(base=base_field(0)), "no versions")
    refused(frame_of(base=base_field(1, DIGEST, zero=1)), "not zero")
    refused(frame_of(base=base_field(1, DIGEST, zero=1 << 15)), "not zero")
    for bit in range(0, 128, 7):
        field = bytearray(base_field(1, DIGEST))
        field[bit // 8] ^= 1 << bit % 8
        refused(frame_of(base=bytes(field)), "checksum of the base")


def test_other_bases():
    frame = frame_of()
    both_refuse_base(frame)
    for base in (b"", BASE[:-1], BASE[:-2], BASE + b"\0", BASE + bytes(2), RAW, BASE[::-1]):
        both_refuse_base(frame, base)
    for at in (0, 100, 2 * N - 1):
        changed = bytearray(BASE)
        changed[at] ^= 1
        both_refuse_base(frame, bytes(changed))
    both_refuse_base(frame_of(base=base_field(1, DIGEST ^ 1)), BASE)
    both_refuse_base(frame_of(base=base_field(1, DIGEST ^ 1 << 63)), BASE)
    both_refuse_base(frame_to_base(RAW, BASE, [whole_block(RAW, 2)]), RAW)
    both_refuse_base(frame_to_base(b"", b"", []))
    assert both_decode_to_base(frame_to_base(b"", b"", []), b"") == b""


def test_bases_with_another_tail():
    base = BASE + b"\1"
    frame = frame_to_base(base, base, [same_block(2)])
    assert both_decode_to_base(frame, base) == base
    for other in (BASE, BASE + b"\2", BASE + b"\1\1"):
        both_refuse_base(frame, other)


def test_other_blocks_of_a_base():
    """Blocks of a base have checksums whether those of the frame have or not."""
    blocks = [whole_block(RAW, 2)]
    wrong = [sums_of(BASE, 0, 8)[0] ^ 1]
    for sums in (True, False):
        assert both_decode_to_base(frame_to_base(RAW, BASE, blocks, sums=sums), BASE) == RAW
        frame = frame_to_base(RAW, BASE, blocks, sums=sums, base_sums=wrong)
        head = reference.read_head(frame)
        with pytest.raises(FormatError, match="another block"):
            reference.decode_block(frame, head, 0, BASE)


def test_checksums_of_decoded_blocks():
    wrong = [sums_of(RAW, 0, 8)[0] ^ 1]
    block = build.block((DIFFERENCE, PAYLOAD), (JOINED, b""))
    refused(frame_to_base(RAW, BASE, [block], sums=wrong, model=MODEL), "checksum of a block")
    refused(frame_to_base(RAW, BASE, [same_block(2)]))
    both_refuse_to_base(
        frame_to_base(BASE, BASE, [same_block(2)], sums=wrong), BASE, "checksum of a block"
    )


def test_every_length_of_a_frame_that_is_cut_off():
    frame = frame_of()
    for length in range(4, len(frame)):
        with pytest.raises(TruncatedFrame):
            reference.decode(frame[:length], BASE)
        both_agree_to_base(frame[:length], BASE)
    refused(frame + b"\0", "longer")


# --- versions ------------------------------------------------------------------------------------

SECOND = near_to(RAW, seed=9)
OWN = numbers_for()
FIRST_BLOCK = whole_block(RAW, 2)
SECOND_BLOCK = code_block(SECOND, RAW, OWN.section(0))
OWN_MODEL = write_difference_model([OWN])


def versions(
    blocks=(FIRST_BLOCK, SECOND_BLOCK), parents=(None, 0), models=(b"", OWN_MODEL), sizes=None,
    kinds=None, **options,
) -> bytes:  # fmt: skip
    """Return a frame of two versions."""
    options = {"model": model_of_versions(parents, models, sizes, kinds), **options}
    return frame_of_versions([RAW, SECOND], [[block] for block in blocks], **options)


def test_the_versions_that_the_others_damage():
    assert both_decode_to_base(versions()) == RAW + SECOND


def test_versions_with_a_digest_or_a_tail():
    both_refuse_to_base(versions(base=base_field(2, 1)), match="digest of a base")
    both_refuse_to_base(versions(base=base_field(2, zero=1)), match="not zero")
    options = {"layout": 0, "version": 2, "model": versions_model(3), "base": base_field(3)}
    for size, n_blocks in ((4, 3), (5, 3), (7, 3), (8, 3), (1, 0)):
        frame = build.frame(size, [whole_block(b"ab", 2)] * n_blocks, tail=b"", **options)
        both_refuse_to_base(frame, match="versions with a tail")
    frame = build.frame(6, [whole_block(b"ab", 2)] * 3, **options)
    assert both_decode_to_base(frame) == b"ab" * 3


def versions_model(n: int) -> bytes:
    return model_of_versions([None] * n, [b""] * n)


def test_versions_without_a_model():
    frame = versions(blocks=[FIRST_BLOCK, whole_block(SECOND, 2)], model=None)
    both_refuse_to_base(frame, match="without a model")


def test_parents_that_do_not_come_before():
    for parents in ((0, 0), (1, 0), (None, 1), (None, 2), (None, 65534), (65534, 0)):
        both_refuse_to_base(versions(parents=parents), match="parent")


def test_kinds_of_models():
    tiles = write_tile_model([TileNumbers()])
    for kind in (3, 4, 128, 255):
        refused(frame_of(kind=kind), "unknown kind")
        both_refuse_to_base(versions(kinds=(0, kind)), match="unknown kind")
        both_refuse_to_base(versions(kinds=(kind, 1)), match="unknown kind")
    both_refuse_to_base(versions(kinds=(0, 0)), match="no kind")
    both_refuse_to_base(versions(kinds=(1, 1)), match="without a base")
    both_refuse_to_base(versions(kinds=(1, 1), models=(OWN_MODEL, OWN_MODEL)), match="a base")
    both_refuse_to_base(versions(kinds=(0, 2), models=(b"", tiles)), match="without a model")
    for model in (b"", MODEL):
        refused(frame_of(kind=0, model=model), "no kind")
    whole = [whole_block(RAW, 2)]
    refused(build.frame(2 * N, whole, version=2, model=b"", base=base_field(1, DIGEST),
                        base_sums=sums_of(BASE, 0, 8)))  # fmt: skip
    for kind, model in ((1, MODEL), (2, tiles)):
        frame = frame_to_base(RAW, BASE, whole, kind=kind, model=model)
        assert both_decode_to_base(frame, BASE) == RAW
    refused(frame_of(kind=2, model=tiles), "without a model")


def test_models_that_do_not_fill_the_model():
    size = len(OWN_MODEL)
    for sizes in ((0, size - 1), (0, size + 1), (1, size), (0, 0), (0, (1 << 32) - 1)):
        both_refuse_to_base(versions(sizes=sizes))
    whole = model_of_versions((None, 0), (b"", OWN_MODEL))
    both_refuse_to_base(versions(model=whole + b"\0"), match="do not fill")
    for length in range(len(whole)):
        both_refuse_to_base(versions(model=whole[:length]))


def test_versions_without_what_their_blocks_need():
    both_refuse_to_base(versions(blocks=[same_block(2), SECOND_BLOCK]), match="no base")
    first = build.block((DIFFERENCE, PAYLOAD), (JOINED, b""))
    both_refuse_to_base(versions(blocks=[first, SECOND_BLOCK]), match="no base")
    both_refuse_to_base(versions(parents=(None, None), models=(b"", b"")), match="no base")
    both_refuse_to_base(versions(models=(b"", b"")), match="without a model")


# --- modes of planes -----------------------------------------------------------------------------


def test_differences_in_frames_without_them():
    for version in (1, 2):
        for block in (same_block(2), build.block((DIFFERENCE, PAYLOAD), (JOINED, b""))):
            both_refuse_to_base(build.frame(2 * N, [block], version=version))
    model = _core.encode(weights(20_000), 3, 0, level=1)
    assert reference.read_head(model).version in (1, 2)


def test_a_difference_without_a_model():
    refused(frame_of(model=None), "without a model")


def wide_frame(*planes: tuple[int, bytes], low: int = 1) -> bytes:
    """Return a frame of float32 of the planes, in the place of a difference with low bytes."""
    base = base_of(64, 2)
    model = write_difference_model([plain_numbers(PLAIN, 2, low)])
    return frame_to_base(base, base, [build.block(*planes)], 2, model=model, sums=False)


def wide_payload(low: int) -> tuple[bytes, bytes]:
    base = items_from(base_of(64, 2), 4)
    parts, lows = code_differences(base, base, plain_numbers(PLAIN, 2, low).section(2))
    return pack_payload(parts, 4), b"".join(low_planes(lows, low))


@pytest.mark.parametrize("low", range(4))
def test_planes_that_are_joined_or_not(low):
    base = base_of(64, 2)
    payload, _ = wide_payload(low)
    for joined in range(4):
        planes = [(DIFFERENCE, payload), *[(JOINED, b"")] * joined]
        planes += [(STORED, bytes(64))] * (3 - joined)
        frame = wide_frame(*planes, low=low)
        if joined == 3 - low:
            assert both_decode_to_base(frame, base) == base
        else:
            both_refuse_to_base(frame, base, "joined")
        planes = [(SAME, b""), *planes[1:]]
        if joined == 3:
            assert both_decode_to_base(wide_frame(*planes, low=low), base) == base
        else:
            both_refuse_to_base(wide_frame(*planes, low=low), base, "joined")


def test_planes_in_the_wrong_order():
    base = base_of(64, 2)
    payload, low = wide_payload(1)
    own, stored, joined = (DIFFERENCE, payload), (STORED, low), (JOINED, b"")
    for planes in (
        (own, stored, joined, joined),
        (own, joined, stored, joined),
        (stored, joined, joined, stored),
        (joined, joined, joined, stored),
        (stored, stored, stored, joined),
    ):
        both_refuse_to_base(wide_frame(*planes), base, "joined")
    for mode in (SAME, DIFFERENCE, SCALE, TILES):
        for at in (1, 2, 3):
            planes = [stored, stored, stored, stored]
            planes[at] = (mode, b"" if mode == SAME else payload)
            both_refuse_to_base(wide_frame(*planes), base, "behind plane 0")
        both_refuse_to_base(wide_frame(own, joined, joined, (mode, b"")), base, "behind")


def test_modes_that_go_with_other_models():
    base = base_of(64, 2)
    payload, low = wide_payload(1)
    for mode in (SCALE, TILES):
        frame = wide_frame((mode, payload), (JOINED, b""), (STORED, low), (STORED, low))
        both_refuse_to_base(frame, base)
    frame = wide_frame((11, payload), (JOINED, b""), (JOINED, b""), (STORED, low))
    both_refuse_to_base(frame, base, "unknown mode")


def test_payloads_that_do_not_fill_the_block():
    for block in (same_block(2) + b"\0", build.block((DIFFERENCE, PAYLOAD), (JOINED, b"")) + b"\0"):
        refused(frame_to_base(RAW, BASE, [block], model=MODEL), "do not fill")
    payload, low = wide_payload(1)
    base = base_of(64, 2)
    joined = [(JOINED, b"")] * 2
    for plane in (low[:-1], low + b"\0"):
        frame = wide_frame((DIFFERENCE, payload), *joined, (STORED, plane))
        both_refuse_to_base(frame, base)
    frame = wide_frame((DIFFERENCE, payload), *joined, (CONSTANT, b"\0\0"))
    both_refuse_to_base(frame, base)


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
    "nothing but the escape": (replace(ONE, weights=[[0] * ESCAPE + [5]]), "largest"),
    "nothing left": (replace(ONE, raw=[8], weights=[[1] * 16]), "largest"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
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


@pytest.mark.parametrize("numbers", GRIDS)
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
    for after in (
        replace(own, relation=3),
        replace(own, change=1, period=(0, 16), columns=[0] * 16),
        replace(own, period=(0, 51), columns=[0] * 51),
    ):
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


@pytest.mark.parametrize("head", [3, 4, 7, 8, 16, 64, 128, 255])
def test_heads_of_payloads(head):
    refused(frame_of(pack_payload(PARTS, 2, head=head)), "log2 G")


def test_fields_that_exceed_the_payload():
    for size in (len(ROWS) + 1, len(PAYLOAD), 65535):
        refused(frame_of(pack_payload(PARTS, 2, row_size=size)))
    for length in range(len(PAYLOAD)):
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


@pytest.mark.parametrize("classes", [[2048, 0, 0], [0, -2048, 0], [0, 0, 1_000_000]])
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
        for at in range(5, 60):
            for value in (0, 1, frame[at] ^ 1, 255):
                damaged = bytearray(frame)
                damaged[at] = value
                both_agree_to_base(build.repaired(bytes(damaged)), base)


def test_the_decoders_agree_on_any_payload():
    for seed in range(30):
        noise = lcg_bytes(400, seed)
        payload = struct.pack("<HBI", 0, seed % 3, noise[0]) + noise
        both_agree_to_base(frame_of(payload, sums=False), BASE)
