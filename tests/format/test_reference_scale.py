"""The scale model: both decoders agree on decoded bytes and on refused frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import reference_decoder as reference
from both_decoders import both_agree, both_decode, both_refuse, changed_bits
from contents import lcg_bytes, lcg_words, matrix, weights, with_zeros
from looping import for_each
from makers import frames as build
from makers.grids import REFUSED_GRIDS, write_rows
from makers.scale import Numbers, scale_payload, write_model
from native_core import core
from reference_grid import KEY_BITS, SECTION, largest_scale
from reference_planes import CONSTANT, JOINED, SCALE, STORED
from tiers import by_tier
from tile_frames import expected_of, model_frame

ARITHMETIC, BEST = 3, 1


# --- frames of the native encoder -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", range(6))
def test_reference_decodes_what_the_encoder_writes(dtype):
    used = 0
    for rows, columns in ((60, 64), (33, 100), (9, 33)):
        raw = with_zeros(matrix(rows, columns, dtype), dtype) + b"abcdefg"
        for row in by_tier((0, columns), (0, columns, 16, 1 << 20)):
            for block, checksum in ((0, True), (256, False)):
                frame = core.encode(
                    raw, ARITHMETIC, dtype, level=BEST, block=block, checksum=checksum, row=row
                )
                assert both_decode(frame) == raw
                head = reference.read_head(frame)
                used += head.versions[0].scale is not None
    assert used > by_tier(2, 4)


@for_each(
    "raw",
    [
        b"",
        b"a",
        bytes(5000),
        lcg_bytes(5000),
        weights(8),
        weights(3000),
        weights(3000) + bytes(3000) + lcg_bytes(3000),
        np.arange(65536, dtype="<u2").tobytes(),
        b"\xc0\x7f" * 40 + weights(2000) + b"\x80\xff" * 40,
    ],
    ids=["empty", "a byte", "zeros", "random", "8", "weights", "mixed", "all values", "NaNs"],
)
def test_any_content_at_level_best(raw):
    for dtype in by_tier((0, 4), range(6)):
        for by_byte in (False, True):
            frame = core.encode(raw, ARITHMETIC, dtype, level=BEST, by_byte=by_byte, block=1024)
            assert both_decode(frame) == raw
            assert len(frame) <= core.bound(len(raw), ARITHMETIC, dtype, 1024)


# --- models by hand -------------------------------------------------------------------------------

PLAIN = Numbers()


def keys_of(n: int, dtype: int = 0) -> list[int]:
    """Return keys around the plain model's scale, and some that are far from it."""
    if KEY_BITS[dtype] == 8:
        return list(lcg_bytes(n))
    items = np.frombuffer(weights(n), "<u2").astype(np.uint32)
    keys = (items << 1 | items >> 15) & 0xFFFF
    keys[::50] = lcg_words(len(keys[::50])) >> 16
    keys[7::90] = 0
    return keys.tolist()


def scale_frame(
    keys: list[int], numbers: Numbers, rows: bytes | None = None, dtype: int = 0, **changes
) -> bytes:
    rows = write_rows() if rows is None else rows
    payload = scale_payload(keys, numbers.section(dtype), 0, rows)
    return frame_of(payload, len(keys), write_model([numbers]), dtype, **changes)


def frame_of(payload: bytes, n: int, model: bytes | None, dtype: int = 0, layout: int = 0) -> bytes:
    return model_frame(SCALE, payload, n, model, dtype, layout=dtype | layout, k=12)


def check(keys: list[int], numbers: Numbers, rows: bytes | None = None, dtype: int = 0) -> None:
    raw = both_decode(scale_frame(keys, numbers, rows, dtype))
    assert raw == expected_of(keys, dtype)


@for_each("dtype", range(6))
@for_each("n", [8, 9, 11, 12, 13, 100, 1003])
def test_blocks_of_any_length(n, dtype):
    check(keys_of(n, dtype), replace(PLAIN, base=largest_scale(dtype) // 2), dtype=dtype)


@for_each(
    "numbers",
    [
        replace(PLAIN, base=0),
        replace(PLAIN, base=largest_scale(0)),
        replace(PLAIN, zero=4031, escape_less_1=0),
        replace(PLAIN, zero=0, escape_less_1=4031),
        replace(PLAIN, zero=2000, escape_less_1=2000),
        replace(PLAIN, differences=[255, -510, 510, -510, *[0] * 40]),
        replace(PLAIN, differences=[-255, *[0] * 20, 300, -290, *[0] * 21]),
        replace(PLAIN, period=(0, 16), steps=(0, 3), columns=[2047, -2047, *range(-7, 7)]),
        replace(PLAIN, period=(0, 400), steps=(3, 1), columns=[c % 23 - 11 for c in range(400)]),
        replace(PLAIN, period=(0, 1003), steps=(0, 0), columns=[c % 9 for c in range(1003)]),
    ],
    ids=[
        "lowest base", "highest base", "zeros", "escapes", "both", "steep curve", "curve",
        "steep columns", "columns", "as many columns as items",
    ],
)  # fmt: skip
def test_any_valid_model(numbers):
    check(keys_of(1003), numbers)


@for_each("step", range(4))
@for_each("run", by_tier([16, 333, 5000], [16, 17, 333, 1003, 5000]))
def test_rows_of_any_length(run, step):
    numbers = replace(PLAIN, run=(0, run), steps=(step, 0))
    classes = [(7 * c) % 31 - 15 for c in range(-(-1003 // run))]
    check(keys_of(1003), numbers, write_rows(-9, classes))
    classes[0], classes[-1] = 2047, -2047
    check(keys_of(1003), numbers, write_rows(70_000, classes))


def test_runs_and_columns_go_on_from_block_to_block():
    numbers = replace(
        PLAIN, run=(0, 100), period=(0, 48), steps=(2, 1), columns=[c % 5 for c in range(48)]
    )
    section, keys = numbers.section(0), keys_of(700)
    blocks = []
    for first in (0, 256, 512):
        part = keys[first : first + 256]
        n_runs = (first + len(part) - 1) // 100 - first // 100 + 1
        rows = write_rows(first // 100, [3 - c for c in range(n_runs)])
        blocks.append(
            build.block((SCALE, scale_payload(part, section, first, rows)), (JOINED, b""))
        )
    frame = build.frame(1400, blocks, model=write_model([numbers]))
    assert both_decode(frame) == expected_of(keys, 0)


def second_section(before: Numbers, after: Numbers, model: bytes | None = None) -> bytes:
    """Return a frame of a constant section and 50 items of the next."""
    keys = keys_of(50, 4)
    one = before.section(4)
    payload = scale_payload(keys, after.section(4, one), SECTION, write_rows())
    blocks = [build.block((CONSTANT, b"\1")), build.block((SCALE, payload))]
    model = write_model([before, after]) if model is None else model
    return build.frame(SECTION + 50, blocks, layout=4, k=22, model=model)


SMALL = replace(PLAIN, base=80, period=(0, 16), columns=list(range(16)))


def test_columns_of_a_section_may_be_changes():
    keys = keys_of(50, 4)
    changed = replace(SMALL, change=1, columns=[1, -1] * 8)
    for after in (PLAIN, SMALL, replace(SMALL, columns=[5] * 16), changed):
        raw = both_decode(second_section(SMALL, replace(after, base=80)))
        assert raw[SECTION:] == expected_of(keys, 4)


def test_changes_need_columns_of_the_same_period():
    changed = replace(SMALL, change=1)
    for numbers in ([changed], [replace(SMALL, change=2)], [replace(SMALL, change=-1)]):
        both_refuse(build.frame(50, [b"\1\1"], layout=4, model=write_model(numbers)))
    good = second_section(SMALL, replace(SMALL, change=1))
    assert len(both_decode(good)) == SECTION + 50
    for before in (replace(PLAIN, base=80), replace(SMALL, period=(0, 17), columns=[0] * 17)):
        both_refuse(second_section(SMALL, changed, write_model([before, changed])))


# --- invalid models and payloads ------------------------------------------------------------------

KEYS = keys_of(203)
PAYLOAD = scale_payload(KEYS, PLAIN.section(0), 0, write_rows())
MODEL = write_model([PLAIN])


@for_each(
    "numbers",
    [
        *(replace(PLAIN, **numbers) for numbers in REFUSED_GRIDS),
        replace(PLAIN, zero=-1),
        replace(PLAIN, escape_less_1=-1),
        replace(PLAIN, zero=4000, escape_less_1=32),
        replace(PLAIN, zero=0, escape_less_1=4032),
        replace(PLAIN, zero=4032, escape_less_1=0),
        replace(PLAIN, zero=100_000, escape_less_1=-99_000),
        replace(PLAIN, differences=[256, *[0] * 43]),
        replace(PLAIN, differences=[-256, *[0] * 43]),
        replace(PLAIN, differences=[*[0] * 43, 511]),
        replace(PLAIN, differences=[255, -511, *[0] * 42]),
    ],
)
def test_models_with_numbers_out_of_range(numbers):
    """A long period without columns does not fit into the model's size."""
    assert len(both_decode(frame_of(PAYLOAD, 203, MODEL))) == 406
    both_refuse(frame_of(PAYLOAD, 203, write_model([numbers])))


def test_a_section_has_no_more_columns_than_items():
    """The last section is short, and the model's size would allow for more."""
    small = replace(PLAIN, base=80)
    for period in (16, 49, 50):
        columns = [c % 9 for c in range(period)]
        after = replace(small, period=(0, period), columns=columns)
        assert len(both_decode(second_section(small, after))) == SECTION + 50
    for period in (51, 203, *by_tier([], [40_000])):
        columns = [c % 9 for c in range(period)]
        after = replace(small, period=divmod(period, 1 << 15), columns=columns)
        model = write_model([small, after])
        both_refuse(second_section(small, small, model))
    for period in (204, 4096, *by_tier([], [32_771])):
        columns = [c % 9 for c in range(period)]
        numbers = replace(PLAIN, period=divmod(period, 1 << 15), columns=columns)
        both_refuse(frame_of(PAYLOAD, 203, write_model([numbers])))


def test_models_only_where_they_may_be():
    for dtype in range(6):
        frame = build.frame(0, [], layout=dtype, model=b"")
        assert both_decode(frame) == b""
        both_refuse(build.frame(0, [], layout=dtype | 16, model=b""))
    both_refuse(frame_of(PAYLOAD, 203, MODEL, layout=16))
    both_refuse(frame_of(PAYLOAD, 203, None))


@for_each(
    "modes",
    [
        [SCALE, STORED, STORED, STORED],
        [SCALE, CONSTANT, STORED, STORED],
        [SCALE, SCALE, STORED, STORED],
        [STORED, JOINED, STORED, STORED],
        [JOINED, JOINED, STORED, STORED],
        [JOINED, STORED, STORED, STORED],
        [SCALE, JOINED, JOINED, STORED],
        [SCALE, JOINED, SCALE, JOINED],
        [STORED, SCALE, JOINED, STORED],
    ],
)
def test_modes_out_of_place(modes):
    parts = {SCALE: PAYLOAD, STORED: bytes(203), JOINED: b"", CONSTANT: b"\0"}
    for width, layout in ((4, 2), (2, 0)):
        planes = [(mode, parts[mode]) for mode in modes[:width]]
        if [mode for mode, _ in planes] == [SCALE, JOINED]:
            continue
        block = build.block(*planes)
        both_refuse(build.frame(203 * width, [block], layout=layout, model=MODEL))
    one_byte = build.block((modes[0], parts[modes[0]]))
    if modes[0] == JOINED:
        both_refuse(build.frame(203, [one_byte], layout=4, model=MODEL))


def test_blocks_too_short_for_the_mode():
    for n in range(1, 8):
        both_refuse(frame_of(PAYLOAD, n, MODEL))
        both_refuse(frame_of(b"\0\0" + bytes(32) + bytes(2 * (n % 4)), n, MODEL))


def with_states(states: list[int]) -> bytes:
    at = 2 + int.from_bytes(PAYLOAD[:2], "little")
    packed = b"".join(state.to_bytes(8, "little") for state in states)
    return PAYLOAD[:at] + packed + PAYLOAD[at + 32 :]


def test_broken_payloads():
    for length in range(len(PAYLOAD)):
        both_refuse(frame_of(PAYLOAD[:length], 203, MODEL))
    for more in (b"\0", b"\0\0", b"\0\0\0\0", bytes(8)):
        both_refuse(frame_of(PAYLOAD + more, 203, MODEL))
    for size in (len(PAYLOAD), 65535):
        both_refuse(frame_of(size.to_bytes(2, "little") + PAYLOAD[2:], 203, MODEL))
    for wrong in (0, 1, (1 << 31) - 1, 1 << 63, (1 << 64) - 1):
        for lane in range(4):
            states = [1 << 40] * 4
            states[lane] = wrong
            both_refuse(frame_of(with_states(states), 203, MODEL))


def test_classes_of_rows_out_of_range():
    numbers = replace(PLAIN, run=(0, 100))
    section, model = numbers.section(0), write_model([numbers])
    payload = scale_payload(KEYS, section, 0, write_rows(0, [1, 2, 3]))
    assert both_decode(frame_of(payload, 203, model)) == expected_of(KEYS, 0)
    body = payload[2 + int.from_bytes(payload[:2], "little") :]
    for classes in ([2048, 0, 0], [0, -2048, 0], [0, 0, 1_000_000]):
        rows = write_rows(0, classes)
        broken = len(rows).to_bytes(2, "little") + rows + body
        both_refuse(frame_of(broken, 203, model))


def test_the_decoders_agree_on_changed_bits():
    for changed in changed_bits(PAYLOAD):
        both_agree(frame_of(changed, 203, MODEL))
    for changed in changed_bits(MODEL):
        both_agree(frame_of(PAYLOAD, 203, changed))
    for length in range(len(MODEL)):
        both_agree(frame_of(PAYLOAD, 203, MODEL[:length]))
