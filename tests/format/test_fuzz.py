"""Damaged frames by the thousand: errors of this package, or bytes; nothing touched outside.

The seed of the run (`--seed`) says which; a failure names the number of its frame.
"""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

import reference_decoder as reference
import tiers
from bf16codecs.errors import CodecError
from contents import choose, lcg_bytes, matrix, weights, with_zeros
from guarded import Arena, needs_guards
from looping import for_each
from makers import frames as build
from makers.planes import pairs_payload, wide_payload, zstandard_runs
from native_core import core
from reference_planes import CONSTANT, RANS_PAIRS, RANS_WIDE, STORED, ZSTANDARD, FormatError
from tiers import by_tier
from tile_frames import random_numbers, tile_frame, tile_keys

ITERATIONS = by_tier(3000, 24_000)
BATCHES = by_tier(1, 8)
# The reference decoder takes milliseconds, so it checks only some of the frames.
REFERENCE_EVERY = 40

LARGEST = 1 << 23


def encoded_frames() -> list[bytes]:
    frames = []
    for checksum in (False, True):
        for codec in (1, 2, 3, 4):
            for dtype, raw in ((0, weights(700)), (4, weights(900)), (2, weights(600) + b"abc")):
                level = 3 if codec == 4 else 0
                for block in (0, 256):
                    frames.append(
                        core.encode(raw, codec, dtype, block=block, level=level, checksum=checksum)
                    )
    # Enough for several Huffman streams, and for the wide loads of rANS.
    frames += [core.encode(weights(6000), codec, 0, checksum=False) for codec in (2, 3)]
    for dtype in range(6):
        for block, checksum in ((0, False), (1024, False), (1024, True)):
            raw = matrix(60, 64, dtype)
            for content in (raw, with_zeros(raw, dtype)):  # in tiles, and in the scale mode
                frames.append(
                    core.encode(content, 3, dtype, level=1, row=64, block=block, checksum=checksum)
                )
    return frames


def built_frames() -> list[bytes]:
    """Return frames of tables and numbers of groups that an encoder would not choose."""
    n = 1200
    few = choose(n, [3, 4, 5, 6], [100, 60, 30, 3]).astype(np.uint8).tobytes()
    frames = []
    for log2_groups in (0, 1, 2):
        escaped = pairs_payload(
            few, [130, 80, 40, 6], [3, 4, 5, 0], log2_groups=log2_groups, escape=True
        )
        pairs = pairs_payload(few, [130, 80, 40, 6], [3, 4, 5, 6], log2_groups=log2_groups)
        wide = wide_payload(few, {3: 2000, 4: 1200, 5: 800, 6: 96}, log2_groups=log2_groups)
        zstandard = zstandard_runs(n, (1, n))
        for high in ((RANS_PAIRS, escaped), (RANS_PAIRS, pairs), (RANS_WIDE, wide)):
            for low in ((STORED, lcg_bytes(n)), (CONSTANT, b"\7"), high, (ZSTANDARD, zstandard)):
                frames.append(build.one_block(build.block(high, low), n, k=11))
        for seed in range(4):
            frames.append(tile_frame(tile_keys(n), random_numbers(seed), log2_groups=log2_groups))
    return frames


@cache
def corpus() -> list[bytes]:
    return [*encoded_frames(), *built_frames()]


INTERESTING = [0, 1, 2, 15, 16, 31, 32, 63, 64, 127, 128, 129, 254, 255]
INTERESTING_32 = [0, 1, 0xFFFF, 0x10000, 0x10001, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]


def place(rng: random.Random, data: bytearray) -> int:
    """Choose a byte, most often in the tables at the beginnings of blocks."""
    if rng.random() < 0.6:
        return min(len(data) - 1, rng.choice([24, 28, 32, 40]) + int(rng.expovariate(1 / 40)))
    return rng.randrange(len(data))


def flip_bits(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.randint(1, 6)):
        data[place(rng, data)] ^= 1 << rng.randrange(8)


def set_byte(rng: random.Random, data: bytearray) -> None:
    data[place(rng, data)] = rng.choice(INTERESTING)


def set_word(rng: random.Random, data: bytearray) -> None:
    at = place(rng, data)
    value = rng.choice([*INTERESTING_32, len(data), rng.randrange(len(data))])
    data[at : at + 4] = value.to_bytes(4, "little")


def move_one(rng: random.Random, data: bytearray) -> None:
    """Move one from a byte to another, so that frequencies still have the right sum."""
    first, second = place(rng, data), place(rng, data)
    if data[first] > 0 and data[second] < 255:
        data[first] -= 1
        data[second] += 1


def swap(rng: random.Random, data: bytearray) -> None:
    first, second = place(rng, data), place(rng, data)
    data[first], data[second] = data[second], data[first]


def remove(rng: random.Random, data: bytearray) -> None:
    at = place(rng, data)
    del data[at : at + rng.choice([1, 2, 4, 32, 500])]


def insert(rng: random.Random, data: bytearray) -> None:
    at = place(rng, data)
    data[at:at] = rng.randbytes(rng.choice([1, 2, 4, 32]))


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def splice(rng: random.Random, data: bytearray) -> None:
    other = rng.choice(corpus())
    at, start = place(rng, data), rng.randrange(len(other))
    length = rng.choice([4, 50, len(other)])
    data[at : at + rng.choice([0, length])] = other[start : start + length]


def shuffle(rng: random.Random, data: bytearray) -> None:
    at = place(rng, data)
    part = list(data[at : at + 16])
    rng.shuffle(part)
    data[at : at + 16] = part


DAMAGES = [
    flip_bits, flip_bits, set_byte, set_byte, set_word, move_one, swap, remove, insert, truncate,
    splice, shuffle,
]  # fmt: skip


def refitted(data: bytearray) -> bytes:
    """Let the last block end where the frame ends, so that its payload is decoded."""
    table, entry, n_blocks, head = build.head_sizes(data)
    if n_blocks == 0 or head > len(data):
        return bytes(data)
    at = [table + b * entry for b in range(n_blocks)]
    before = sum(int.from_bytes(data[a : a + 4], "little") for a in at[:-1])
    left = max(len(data) - head - before, 0)
    data[at[-1] : at[-1] + 4] = left.to_bytes(4, "little")
    return bytes(data)


def damaged(number: int) -> bytes:
    rng = tiers.rng("a damaged frame", number)
    data = bytearray(rng.choice(corpus()))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if len(data) > 30:
            rng.choice(DAMAGES)(rng, data)
    if len(data) > 30 and rng.random() < 0.8:
        data = bytearray(refitted(data))
    return build.repaired(bytes(data)) if rng.random() < 0.95 else bytes(data)


def outcome(frame: memoryview, arena: Arena, at_end: bool) -> bytes | None:
    """Decode into guarded memory; None means an error of this package."""
    try:
        size = core.Index(frame).raw_size
        if size > LARGEST:  # blocks of a few bytes may decode to 4 MiB each
            return None
        out = arena.room(size, at_end)
        assert core.decode_into(frame, out) == size
        return bytes(out)
    except CodecError:
        return None


@needs_guards
@pytest.mark.parametrize("batch", range(BATCHES))
def test_damaged_frames(batch):
    source, target = Arena(1 << 17), Arena(LARGEST)
    decoded = 0
    for number in range(batch, ITERATIONS, BATCHES):
        frame = damaged(number)
        at_end = number // BATCHES % 4 != 0
        raw = outcome(source.holding(frame, at_end), target, at_end)
        decoded += raw is not None
        if number // BATCHES % REFERENCE_EVERY == 0 and len(frame) < 4000:
            try:
                expected = reference.decode(frame)
            except FormatError:
                expected = None
            assert raw == expected, f"frame {number}"
    # Frames that are all refused at the first check would test little.
    assert decoded > ITERATIONS // BATCHES // 100


@needs_guards
def test_inspecting_damaged_frames():
    source, inspected = Arena(1 << 17), 0
    for number in range(ITERATIONS // 8):
        frame = source.holding(damaged(ITERATIONS + number), at_end=True)
        try:
            assert core.inspect(frame)["encoded_size"] == len(frame)
        except CodecError:
            continue
        inspected += 1
    assert inspected > ITERATIONS // 8 // 100


SIZES = [*range(1, 20), 127, 128, 129, 1000, 4095, 4096, 4097, 9001, 140_002]


@needs_guards
@pytest.mark.parametrize(("codec", "level"), [(1, 0), (2, 0), (3, 0), (3, 1), (4, 3)])
@for_each("dtype", range(6))
@for_each("at_end", [True, False])
def test_intact_data_are_not_left_either(codec, level, dtype, at_end):
    raws, frames, target = Arena(1 << 19), Arena(1 << 19), Arena(1 << 19)
    for size in by_tier(SIZES[dtype::6], SIZES):
        raw = weights(size // 2 + 1)[:size]
        if size % 2:
            raw = choose(size, list(range(40)), [1000, *[3] * 39]).astype(np.uint8).tobytes()
        for block in (0, 256):
            for checksum in (True, False):
                frame = core.encode(
                    raws.holding(raw, at_end), codec, dtype, level=level, block=block,
                    checksum=checksum,
                )  # fmt: skip
                out = target.room(size, at_end)
                core.decode_into(frames.holding(frame, at_end), out)
                assert out == raw, (size, block, checksum)


@needs_guards
def test_payloads_of_blocks_alone_are_not_left():
    payloads, target = Arena(1 << 18), Arena(1 << 18)
    for codec, level in ((1, 0), (2, 0), (3, 0), (3, 1)):
        raw = weights(20_000) + b"x"
        frame = core.encode(raw, codec, 0, level=level, block=1024)
        index = core.Index(frame)
        for first in range(index.n_blocks):
            part = raw[2048 * first : 2048 * (first + 1) + (first + 1 == index.n_blocks)]
            payload = frame[index.offsets[first] : index.offsets[first + 1]]
            out = target.room(len(part), at_end=True)
            index.decode_block_range(payloads.holding(payload, True), first, first + 1, out)
            assert out == part
