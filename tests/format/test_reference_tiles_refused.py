"""Tiles: what the format forbids is refused by both decoders."""

from __future__ import annotations

from dataclasses import replace

from both_decoders import both_agree, both_decode, both_refuse, changed_bits
from looping import for_each
from makers import frames as build
from makers.grids import REFUSED_GRIDS, write_rows
from makers.lanes import n_unused_bits, pack_payload, pack_states
from makers.scale import Numbers, scale_payload, write_model
from makers.tiles import (
    NO_CHANGES,
    Intervals,
    TileNumbers,
    code_tiles,
    tiles_payload,
    write_tile_model,
)
from reference_grid import SECTION
from reference_planes import CONSTANT, JOINED, LOWEST_STATE, SCALE, STORED, TILES
from reference_tiles import TilesPayload
from tiers import by_tier
from tile_frames import (
    evenly_among,
    expected_of,
    middle_of,
    model_frame,
    sizes_up_to,
    tile_frame,
    tile_keys,
)

N = 203
KEYS = tile_keys(N)
SIZES = sizes_up_to(3, 128, 240)
PLAIN = TileNumbers(base=middle_of(0), lo=128, hi=240, escape=50, tables=[evenly_among(SIZES, 50)])
MODEL = write_tile_model([PLAIN])
PARTS = code_tiles(KEYS, PLAIN.section(0))
PAYLOAD = pack_payload(PARTS, 2)


def frame_of(payload: bytes = PAYLOAD, n: int = N, model: bytes | None = MODEL, **options) -> bytes:
    return model_frame(TILES, payload, n, model, **options)


def changed(parts: TilesPayload = PARTS, **fields) -> bytes:
    """Return a frame of a payload with other fields."""
    return frame_of(pack_payload(replace(parts, **fields), 2))


def test_the_frame_that_the_others_damage():
    assert both_decode(frame_of()) == expected_of(KEYS, 0)
    assert len(PARTS.escapes) > 2
    assert len(PARTS.words) > 2


# --- models --------------------------------------------------------------------------------------


def with_table(lo: int, escape: int, intervals: Intervals) -> TileNumbers:
    hi = lo + sum(1 << n for n, _ in intervals)
    return replace(PLAIN, lo=lo, hi=hi, escape=escape, tables=[intervals])


GRIDS = [
    *(replace(PLAIN, **numbers) for numbers in REFUSED_GRIDS),
    replace(PLAIN, period=(0, N + 1), columns=[0] * (N + 1)),
    replace(PLAIN, period=(0, 16), change=1, columns=[0] * 16),
    replace(PLAIN, period=(0, 16), change=2, columns=[0] * 16),
    replace(PLAIN, period=(0, 16), change=-1, columns=[0] * 16),
]

TABLES = {
    "form 4": replace(PLAIN, form=4),
    "form 5": replace(PLAIN, form=5, tables=PLAIN.tables * 4),
    "form 2 below 0": replace(PLAIN, form=-2),
    "form 1 below 0": replace(PLAIN, form=-1, changes=[NO_CHANGES] * 4),
    "form 2^19": replace(PLAIN, form=1 << 19),
    "symbol 0": with_table(0, 96, [(4, 4000)]),
    "symbols below 0": with_table(-16, 96, [(4, 4000)]),
    "no symbols": replace(PLAIN, hi=PLAIN.lo, tables=[[]]),
    "no symbols, the escape alone": replace(PLAIN, hi=PLAIN.lo, escape=4096, tables=[[]]),
    "fewer than no symbols": replace(PLAIN, hi=PLAIN.lo - 16, tables=[[]]),
    "symbol 256": with_table(256, 96, [(0, 4000)]),
    "up to 256": with_table(252, 96, [(2, 4000 - 7), (0, 7)]),
    "far too many": replace(PLAIN, hi=1 << 19),
    "no escape": with_table(192, 0, [(4, 4096)]),
    "escape below 0": with_table(192, -4, [(4, 4000), (4, 100)]),
    "nothing but the escape": with_table(192, 4096, [(4, 0)]),
    "escape above 4096": with_table(192, 4100, [(4, 4), (4, -8)]),
    "32 intervals": with_table(190, 128, [(0, 124)] * 32),
    "33 intervals": with_table(190, 128, [(0, 124)] * 32 + [(0, 0)]),
    "128 intervals": with_table(128, 256, [(0, 30)] * 128),
    "a sum of 4095": with_table(192, 96, [(4, 3999)]),
    "a sum of 4097": with_table(192, 96, [(4, 4001)]),
    "a sum of 4094": with_table(192, 96, [(5, 3998)]),
    "a sum of 4098": with_table(192, 96, [(5, 4002)]),
    "a sum of 4096 modulo 2^16": with_table(
        1, 1, [(n, f) for n, f in enumerate([4095, 4095, 4095, 15, 1])] + [(5, 8190)] * 7
    ),
    "frequency 0": with_table(192, 96, [(3, 3000), (3, 0), (4, 1000)]),
    "frequency 0 at the end": with_table(192, 96, [(4, 4000), (4, 0)]),
    "frequency 0 of 32 symbols": with_table(160, 96, [(5, 4000), (5, 0)]),
    "frequency below 0": with_table(192, 96, [(4, 4001), (4, -1)]),
    "half of 4096": with_table(192, 1, [(4, 4096), (4, -1)]),
    "half of 4096, 32 symbols": with_table(192, 2, [(5, 8192), (4, -4098)]),
    "far above": with_table(192, 96, [(4, 1_000_000), (4, 1)]),
}


@for_each("numbers", GRIDS)
def test_grids_with_numbers_out_of_range(numbers):
    both_refuse(frame_of(model=write_tile_model([numbers])))


@for_each("name", TABLES)
def test_tables_with_numbers_out_of_range(name):
    both_refuse(frame_of(model=write_tile_model([TABLES[name]])))


@for_each("c", range(4))
def test_every_table_of_a_section_has_to_be_valid(c):
    good = [(3, 2000), (3, 2000)]
    for table in (
        [(4, 4000)], [(4, 3999)], [(4, 4001)], [(3, 4000), (3, 0)], [(3, 4001), (3, -1)],
    ):  # fmt: skip
        tables = [good] * 4
        tables[c] = table
        numbers = replace(PLAIN, form=3, lo=192, hi=208, escape=96, tables=tables)
        if table == [(4, 4000)]:
            assert both_decode(tile_frame(KEYS, numbers)) == expected_of(KEYS, 0)
        else:
            both_refuse(frame_of(model=write_tile_model([numbers])))


def second_section(before: TileNumbers, after: TileNumbers) -> bytes:
    """Return a frame of a constant section and N items of the next."""
    keys = tile_keys(N, 4)
    payload = tiles_payload(keys, replace(PLAIN, base=80).section(4), SECTION)
    blocks = [build.block((CONSTANT, b"\1")), build.block((TILES, payload))]
    model = write_tile_model([before, after])
    return build.frame(SECTION + N, blocks, layout=4, k=22, model=model, version=2)


def test_second_sections_out_of_range():
    good = replace(PLAIN, base=80, period=(0, 16), columns=[0] * 16)
    assert len(both_decode(second_section(good, replace(good, change=1)))) == SECTION + N
    both_refuse(second_section(replace(PLAIN, base=80), replace(good, change=1)))
    other = replace(good, period=(0, 17), columns=[0] * 17)
    both_refuse(second_section(other, replace(good, change=1)))
    both_refuse(second_section(good, replace(good, period=(0, N + 1), columns=[0] * (N + 1))))
    largest = replace(good, columns=[2047] * 16)
    both_refuse(second_section(largest, replace(good, change=1, columns=[1] * 16)))
    for name in ("form 4", "symbol 0", "no escape", "a sum of 4095"):
        both_refuse(second_section(good, replace(TABLES[name], base=80)))


# --- frames --------------------------------------------------------------------------------------


def test_modes_of_the_other_version():
    scale = Numbers()
    coded = scale_payload(KEYS, scale.section(0), 0, write_rows())
    scale_model = write_model([scale])
    both_decode(model_frame(SCALE, coded, N, scale_model, version=1))
    both_refuse(model_frame(SCALE, coded, N, scale_model, version=2))
    both_refuse(model_frame(SCALE, coded, N, MODEL, version=2))
    both_refuse(model_frame(SCALE, coded, N, None, version=2))
    both_refuse(frame_of(version=1))
    both_refuse(frame_of(model=scale_model, version=1))
    both_refuse(frame_of(model=None, version=1))


def test_models_only_where_they_may_be():
    for dtype in range(6):
        both_refuse(build.frame(0, [], layout=dtype | 16, model=b"", version=2))
    both_refuse(frame_of(layout=16))
    both_refuse(frame_of(model=None))


@for_each(
    "modes",
    [
        [TILES, STORED, STORED, STORED],
        [TILES, CONSTANT, STORED, STORED],
        [TILES, TILES, STORED, STORED],
        [STORED, JOINED, STORED, STORED],
        [JOINED, JOINED, STORED, STORED],
        [STORED, TILES, STORED, STORED],
        [TILES, JOINED, JOINED, STORED],
        [TILES, JOINED, TILES, JOINED],
        [TILES, JOINED, STORED, TILES],
        [TILES, JOINED, SCALE, STORED],
        [STORED, TILES, JOINED, STORED],
        [TILES, JOINED, STORED, 9],
        [9, JOINED, STORED, STORED],
    ],
)
def test_modes_out_of_place(modes):
    parts = {TILES: PAYLOAD, STORED: bytes(N), JOINED: b"", CONSTANT: b"\0"}
    for width, layout in ((4, 2), (2, 0)):
        planes = [(mode, parts.get(mode, PAYLOAD)) for mode in modes[:width]]
        if modes[:width] == [TILES, JOINED]:
            continue
        block = build.block(*planes)
        both_refuse(build.frame(N * width, [block], layout=layout, model=MODEL, version=2))


# --- payloads ------------------------------------------------------------------------------------


def without_lanes(n: int, log2_groups: int, dtype: int) -> bytes:
    """Return what the payload of a block were whose keys are all stored."""
    groups = 1 << log2_groups
    states = [LOWEST_STATE] * (32 * groups)
    rows = write_rows()
    return pack_payload(
        TilesPayload(rows, groups, states, b"", [], [1] * n, []), 2 if dtype == 0 else 1
    )


@for_each("dtype", [0, 4])
@for_each("log2_groups", [0, 1, 2])
def test_blocks_too_short_for_their_lanes(log2_groups, dtype):
    model = write_tile_model([replace(PLAIN, base=middle_of(dtype))])
    for n in {*range(1, max(64, 32 << log2_groups), 7), 63, [63, 63, 127][log2_groups]}:
        payload = without_lanes(n, log2_groups, dtype)
        both_refuse(model_frame(TILES, payload, n, model, dtype))


def test_heads_with_other_bits():
    for head in range(3, 256):
        both_refuse(frame_of(pack_payload(PARTS, 2, head=head)))
    for head in (1, 2):
        both_refuse(frame_of(pack_payload(PARTS, 2, head=head)))
    for groups in (2, 4):
        parts = code_tiles(KEYS, PLAIN.section(0), log2_groups=groups // 2)
        for bit in range(2, 8):
            payload = pack_payload(parts, 2, head=groups // 2 | 1 << bit)
            both_refuse(frame_of(payload))


def test_unused_bits_of_the_first_states():
    n_checked = 0
    for seed in range(4):
        parts = code_tiles(tile_keys(N, seed=seed), PLAIN.section(0))
        for bit in range(n_unused_bits(parts.states)):
            both_refuse(frame_of(pack_payload(parts, 2, unused=1 << bit)))
            n_checked += 1
    assert n_checked > 4


def test_payloads_of_another_size():
    for length in range(len(PAYLOAD)):
        both_refuse(frame_of(PAYLOAD[:length]))
    for more in (b"\0", b"\0\0", b"\0\0\0", bytes(64)):
        both_refuse(frame_of(PAYLOAD + more))
    for size in (len(PAYLOAD), 65535):
        both_refuse(frame_of(pack_payload(PARTS, 2, row_size=size)))


def test_words_run_out_or_are_left_over():
    both_refuse(changed(words=PARTS.words[:-1]))
    both_refuse(changed(words=[]))
    both_refuse(changed(words=[*PARTS.words, 0]))
    both_refuse(changed(words=[*PARTS.words, 1, 2]))


def test_more_or_fewer_escapes_than_symbols_of_escapes():
    assert len(both_decode(changed(escapes=[7] * len(PARTS.escapes)))) == 2 * N
    for escapes in ([], PARTS.escapes[:-1], [*PARTS.escapes, 7], PARTS.escapes * 2):
        both_refuse(changed(escapes=escapes))
    n = len(PARTS.escapes)
    for n_escapes in (0, n - 1, n + 1, 192, 193, 1 << 16, 1 << 31, (1 << 32) - 1):
        both_refuse(frame_of(pack_payload(PARTS, 2, n_escapes=n_escapes)))
    one_byte = replace(PLAIN, base=80)
    keys = tile_keys(N, 4)
    parts, model = code_tiles(keys, one_byte.section(4)), write_tile_model([one_byte])
    for escapes in (parts.escapes, parts.escapes[:-1], parts.escapes[:-2], [*parts.escapes, 1]):
        frame = frame_of(pack_payload(replace(parts, escapes=escapes), 1), model=model, dtype=4)
        if escapes is parts.escapes:
            assert both_decode(frame) == expected_of(keys, 4)
        else:
            both_refuse(frame)


@for_each("n", [64, 127, 128, N])
@for_each("log2_groups", [0, 1])
def test_last_states_other_than_described(n, log2_groups):
    """64 items have 40 bytes of records, too few for 32 lanes; 128 have 80, too few for 64."""
    section = PLAIN.section(0)
    are_full = 40 * (n // 64) >= 64 << log2_groups
    last = (32 << log2_groups) - 1
    for lane in by_tier((0, last), (0, 1, 15, 16, 31, last)):
        for bit in range(16, 32, by_tier(4, 1)):  # without bit 16 the last state is 2^17 at least
            change = 1 << bit if bit > 16 else 3 << 16
            payload = tiles_payload(
                KEYS[:n], section, log2_groups=log2_groups, change_last={lane: change}
            )
            both_refuse(frame_of(payload, n))
        for bit in range(0, 16, 5):
            frame = frame_of(
                tiles_payload(
                    KEYS[:n], section, log2_groups=log2_groups, change_last={lane: 1 << bit}
                ),
                n,
            )
            if are_full:
                assert both_decode(frame) != expected_of(KEYS[:n], 0)
            else:
                both_refuse(frame)


@for_each("dtype", [4, 5])
def test_last_states_where_keys_have_few_raw_bits(dtype):
    numbers = replace(PLAIN, base=middle_of(dtype))
    model = write_tile_model([numbers])
    for n, log2_groups in ((448, 0), (512, 0), (960, 1), (1024, 1), (2048, 2)):
        keys = tile_keys(n, dtype)
        for change in (1, 3 << 16):
            payload = tiles_payload(
                keys, numbers.section(dtype), log2_groups=log2_groups, change_last={5: change}
            )
            frame = frame_of(payload, n, model, dtype=dtype)
            if dtype == 4 and n >= 512 << log2_groups and change == 1:
                assert both_decode(frame) != expected_of(keys, dtype)
            else:
                both_refuse(frame)


def test_classes_of_rows_out_of_range():
    numbers = replace(PLAIN, run=(0, 100))
    section, model = numbers.section(0), write_tile_model([numbers])
    parts = code_tiles(KEYS, section, rows=write_rows(0, [1, 2, 3]))
    assert both_decode(frame_of(pack_payload(parts, 2), model=model)) == expected_of(KEYS, 0)
    for classes in ([2048, 0, 0], [0, -2048, 0], [0, 0, 1_000_000], [0, 0, 2048]):
        broken = replace(parts, rows=write_rows(0, classes))
        both_refuse(frame_of(pack_payload(broken, 2), model=model))


# --- damage --------------------------------------------------------------------------------------


def test_the_decoders_agree_on_changed_bits():
    for damaged in changed_bits(PAYLOAD):
        both_agree(frame_of(damaged))
    for damaged in changed_bits(MODEL):
        both_agree(frame_of(model=damaged))
    for length in range(len(MODEL)):
        both_agree(frame_of(model=MODEL[:length]))


def test_the_decoders_agree_on_any_first_states():
    for lane in range(32):
        for state in (LOWEST_STATE, (1 << 32) - 1, 1 << 31, 0x12345678):
            states = [*PARTS.states[:lane], state, *PARTS.states[lane + 1 :]]
            assert len(pack_states(states)) >= 80
            both_agree(changed(states=states))
