"""The native core and the reference decoder agree on decoded bytes and on refused frames."""

from __future__ import annotations

import re

import numpy as np
import pytest

import reference_decoder as reference
from both_decoders import (
    FLOAT8,
    PLANE,
    N,
    both_agree,
    both_decode,
    both_refuse,
    changed_bits,
    evenly,
    plane_frame,
    refused,
)
from contents import lcg_bytes, weights
from looping import for_each
from makers import frames as build
from makers.planes import pairs_payload, pairs_table, wide_payload, wide_table, zstandard_runs
from native_core import core
from reference_planes import (
    CONSTANT,
    DECODERS,
    RANS_PAIRS,
    RANS_WIDE,
    STORED,
    ZSTANDARD,
)
from tiers import by_tier

DTYPES = range(6)
CODECS = {"split": 1, "huffman": 2, "arithmetic": 3, "zstd": 4}


# --- frames of the native encoder ----------------------------------------------------------------


def test_example_of_the_document(root):
    path = root / "docs" / "format.md"
    if not path.exists():
        pytest.skip("the tests are here without the documents")
    document = path.read_text("utf-8")
    example = document[document.index("## Example") :]
    (raw,) = re.findall(r"^The five bytes `(.*?)`", example, re.MULTILINE)
    frame = bytes.fromhex(" ".join(re.findall(r"^\| `(.*?)` \|", example, re.MULTILINE)))
    assert both_decode(frame) == bytes.fromhex(raw)
    assert core.encode(bytes.fromhex(raw), CODECS["arithmetic"], 0) == frame


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", CODECS)
def test_reference_decodes_what_the_encoder_writes(codec, dtype):
    raw = weights(1500)
    for by_byte in (False, True):
        for size in (0, 1, 7, 8, 513, 2999):
            for block, checksum in ((0, True), (256, False), (256, True)):
                frame = core.encode(
                    raw[:size],
                    CODECS[codec],
                    dtype,
                    by_byte=by_byte,
                    checksum=checksum,
                    block=block,
                )
                assert reference.decode(frame) == raw[:size]


@for_each("n", [40_000, 140_001])
@for_each("codec", CODECS)
def test_reference_decodes_large_blocks(codec, n):
    raw = weights(n)
    assert reference.decode(core.encode(raw, CODECS[codec], 0)) == raw


def test_checksum():
    for size in (0, 1, 127, 128, 129, 5000):
        data = lcg_bytes(size, seed=size)
        assert core.checksum(data) == reference.checksum(data)


# --- valid frames that this package's encoders do not write --------------------------------------


PAIRS_TABLES = {
    "two entries": ([255, 1], [3, 200], False),
    "one entry and the escape": ([1, 255], [3, 0], True),
    "symbol 0 beside the escape": ([128, 128], [0, 0], True),
    "sixteen entries": ([16] * 16, list(range(100, 116)), False),
    "fifteen entries and the escape": ([16] * 16, [*range(100, 115), 0], True),
    "every bucket cut": ([15, *[16] * 14, 17], list(range(16)), False),
    "many in the last bucket": ([244, *[1] * 12], list(range(13)), False),
}


@for_each("table", PAIRS_TABLES)
@for_each("log2_groups", [0, 1, 2])
def test_pairs_of_any_valid_table(table, log2_groups):
    frequencies, symbols, escape = PAIRS_TABLES[table]
    alphabet = [*symbols[:-1], 250, 251, 0] if escape else symbols
    for n in (0, 1, 63, 64, 64 << log2_groups, 1000, 1024, 3001):
        if n == 0:
            continue
        plane = evenly(n, alphabet)
        payload = pairs_payload(plane, frequencies, symbols, log2_groups=log2_groups, escape=escape)
        assert both_decode(plane_frame(RANS_PAIRS, payload, n)) == plane


@for_each("log2_groups", [0, 1, 2])
@for_each(
    "frequencies",
    [
        {0: 4095, 255: 1},
        {7: 2048, 8: 2048},
        dict.fromkeys(range(256), 16),
        {1: 128, 2: 129, 3: 3839},
    ],
    ids=["most unequal", "equal", "all symbols", "widths of frequencies"],
)
def test_wide_of_any_valid_table(frequencies, log2_groups):
    for n in (1, 31, 32 << log2_groups, 1000, 3001):
        plane = evenly(n, list(frequencies))
        payload = wide_payload(plane, frequencies, log2_groups=log2_groups)
        assert both_decode(plane_frame(RANS_WIDE, payload, n)) == plane


def test_modes_mix_freely_in_a_block():
    n = 1000
    plane = evenly(n, [9, 10, 11])
    wide = wide_payload(plane, {9: 1000, 10: 2000, 11: 1096})
    pairs = pairs_payload(plane, [100, 100, 56], [9, 10, 11])
    zstandard = zstandard_runs(n, (5, 600), (6, 400))
    kinds = [(STORED, plane), (CONSTANT, b"\x81"), (RANS_WIDE, wide), (RANS_PAIRS, pairs)]
    kinds.append((ZSTANDARD, zstandard))
    for first in kinds:
        for second in kinds:
            for by_byte in (0, 16):
                block = build.block(first, second)
                assert len(both_decode(build.one_block(block, n, layout=by_byte, k=10))) == 2 * n


def test_escapes_in_the_middle_of_16_bit_items():
    n = 5000
    high = evenly(n, [120, 121, 122, 3, 120, 121, 255])
    low = lcg_bytes(n, 5)
    payload = pairs_payload(high, [90, 80, 60, 26], [120, 121, 122, 0], escape=True)
    raw = both_decode(build.one_block(build.block((RANS_PAIRS, payload), (STORED, low)), n, k=13))
    items = np.frombuffer(high, np.uint8).astype("<u2") << 8 | np.frombuffer(low, np.uint8)
    assert raw == (items >> 1 | items << 15).tobytes()


# --- invalid frames ------------------------------------------------------------------------------


@for_each(
    "frequencies, symbols, escape",
    [
        ([256 - 256], [1], False),
        ([255], [1], False),
        ([255], [0], True),
        ([128, 0, 128], [1, 2, 3], False),
        ([128, 127], [1, 2], False),
        ([128, 129], [1, 2], False),
        ([250, 250], [1, 2], False),
        ([128, 64, 64], [1, 2, 1], False),
        ([128, 64, 64], [0, 0, 0], True),
        ([128, 64, 64], [1, 2, 3], True),
        ([3, 3, 250], [1, 2, 3], False),
        ([226, 2, 2, 26], [1, 2, 3, 4], False),
    ],
    ids=[
        "one entry of frequency 0",
        "one entry",
        "the escape alone",
        "frequency 0",
        "sum 255",
        "sum 257",
        "sum 500",
        "a symbol twice",
        "a symbol twice beside the escape",
        "an escape with a symbol",
        "two begin in the first bucket",
        "two begin in the last bucket but one",
    ],
)
def test_broken_pairs_tables_are_refused(frequencies, symbols, escape):
    body = pairs_payload(PLANE, [128, 64, 64], [1, 2, 3])[7:]
    refused(RANS_PAIRS, pairs_table(frequencies, symbols, escape=escape) + body)


def broken_bodies(payload: bytes, at: int):
    """Yield payloads of G = 1 that break one rule each; `at` is where the number of words is."""
    n_words = int.from_bytes(payload[at : at + 4], "little")
    states, words = at + 4, at + 4 + 128
    assert n_words > 1

    def with_words(number: int) -> bytes:
        return payload[:at] + number.to_bytes(4, "little") + payload[states:]

    yield b""
    yield payload[: at - 1]
    yield payload[:at]
    yield payload[: at + 3]
    yield payload[: words - 1]
    yield payload[: words + 1]
    yield payload[:-2]
    yield payload[:-1]
    yield payload + b"\0"
    yield payload + b"\0\0"
    yield with_words(n_words + 1) + b"\0\0"
    yield with_words(n_words - 1)
    yield with_words(n_words + 1)
    yield with_words(2**32 - 1)
    yield with_words(2**31)
    yield payload[:states] + b"\xff\xff\0\0" + payload[states + 4 :]
    yield payload[: words - 4] + bytes(4) + payload[words:]


@for_each("groups_bits", [0x30, 0x80])
def test_broken_pairs_payloads_are_refused(groups_bits):
    payload = pairs_payload(PLANE, [128, 64, 64], [1, 2, 3])
    assert both_decode(plane_frame(RANS_PAIRS, payload, N)) == PLANE
    refused(RANS_PAIRS, bytes([payload[0] | groups_bits]) + payload[1:])
    for broken in broken_bodies(payload, 7):
        refused(RANS_PAIRS, broken)
    for changed in changed_bits(payload):
        both_agree(plane_frame(RANS_PAIRS, changed, N))


def test_pairs_need_exactly_their_escapes():
    payload = pairs_payload(PLANE + b"\7", [128, 64, 64], [1, 2, 0], escape=True)
    assert both_decode(plane_frame(RANS_PAIRS, payload, N + 1)) == PLANE + b"\7"
    refused(RANS_PAIRS, payload + b"\0", N + 1)
    refused(RANS_PAIRS, payload[:-1], N + 1)
    refused(RANS_PAIRS, payload[:-100], N + 1)


def test_pairs_without_escapes_must_not_have_any():
    payload = pairs_payload(PLANE, [128, 64, 64], [1, 2, 3])
    refused(RANS_PAIRS, payload + b"\0")


def test_broken_wide_payloads_are_refused():
    payload = wide_payload(PLANE, {1: 2000, 2: 1000, 3: 1096})
    assert both_decode(plane_frame(RANS_WIDE, payload, N)) == PLANE
    for head in (3, 4, 0x80, 0xFC):
        refused(RANS_WIDE, bytes([head]) + payload[1:])
    for broken in broken_bodies(payload, 39):
        refused(RANS_WIDE, broken)
    for changed in changed_bits(payload):
        both_agree(plane_frame(RANS_WIDE, changed, N))


@for_each(
    "table",
    [
        wide_table({}),
        wide_table({1: 4096}),
        wide_table({1: 2000, 2: 2000}),
        wide_table({1: 2000, 2: 1000, 3: 1097}),
        wide_table({1: 2000, 2: 1000, 3: 32768}),
        wide_table(dict.fromkeys(range(256), 17)),
        wide_table({1: 4000, 2: 1})[:-1] + b"\xdf\x00",
        wide_table({1: 4000, 2: 96})[:-1],
    ],
    ids=[
        "no symbols",
        "one symbol",
        "sum 4000",
        "sum 4097",
        "far above 4096",
        "all above 4096",
        "two bytes where one would do",
        "a frequency missing",
    ],
)
def test_broken_wide_tables_are_refused(table):
    body = wide_payload(PLANE, {1: 2000, 2: 1000, 3: 1096})[39:]
    refused(RANS_WIDE, table + body)
    refused(RANS_WIDE, table)


ZSTD = zstandard_runs(N, (1, 600), (2, 40))
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"


@for_each(
    "payload",
    [
        b"",
        ZSTD[:3],
        ZSTD[:4],
        ZSTD[:9],
        ZSTD[:-1],
        ZSTD + b"\0",
        ZSTD + ZSTD,
        ZSTD + zstandard_runs(0, (0, 0)),
        ZSTD + SKIPPABLE,
        SKIPPABLE + ZSTD,
        SKIPPABLE,
        zstandard_runs(None, (1, N)),
        zstandard_runs(N + 1, (1, N)),
        zstandard_runs(N + 1, (1, N + 1)),
        zstandard_runs(N - 1, (1, N)),
        zstandard_runs(N - 1, (1, N - 1)),
        zstandard_runs(N, (1, N - 1)),
        zstandard_runs(N, (1, N + 1)),
        zstandard_runs(0, (1, N)),
        zstandard_runs(1 << 40, (1, N)),
        zstandard_runs(2**64 - 1, (1, N)),
        zstandard_runs(2**64 - 2, (1, N)),
        zstandard_runs(N, *[(1, 1 << 17)] * 5000),
        bytes(N),
    ],
)
def test_other_than_one_zstandard_frame_is_refused(payload):
    assert len(both_decode(plane_frame(ZSTANDARD, ZSTD, N))) == N
    refused(ZSTANDARD, payload)


@for_each("mode", [m for m in range(256) if m not in DECODERS])
def test_unknown_modes_are_refused(mode):
    both_refuse(build.one_block(build.block((mode, PLANE)), N, layout=FLOAT8, k=10))
    both_refuse(build.one_block(bytes([mode]) + PLANE, N, layout=FLOAT8, k=10))
    both_refuse(build.one_block(bytes([STORED, mode]) + 2 * PLANE, N, k=10))


def test_planes_must_fill_their_block():
    stored = build.block((STORED, PLANE), (STORED, PLANE))
    assert both_decode(build.one_block(stored, N, k=10))
    constant = build.block((CONSTANT, b"\1"), (CONSTANT, b"\2"))
    assert both_decode(build.one_block(constant, N, k=10))
    pairs = pairs_payload(PLANE, [128, 64, 64], [1, 2, 3])
    coded = build.block((RANS_PAIRS, pairs), (STORED, PLANE))
    assert both_decode(build.one_block(coded, N, k=10))
    for block in (stored, constant, coded):
        both_refuse(build.one_block(block + b"\0", N, k=10))
        for length in range(1, len(block), by_tier(5, 1)):
            both_refuse(build.one_block(block[:length], N, k=10))
    for size in (0, len(pairs) - 1, len(pairs) + 1, N + len(pairs), 2**31, 2**32 - 1):
        both_refuse(build.one_block(coded[:2] + size.to_bytes(4, "little") + coded[6:], N, k=10))
