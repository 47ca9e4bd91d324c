"""Damaged frames with differences: errors of this package, or bytes; nothing touched outside.

The seed of the run (`--seed`) says which; a failure names the number of its frame.
"""

from __future__ import annotations

import copy
import random
from functools import cache

import numpy as np
import pytest

import tiers
from bf16codecs.errors import BaseMismatchError, CodecError
from difference_pairs import CODECS, PAIRS, WIDTHS, moved
from guarded import Arena, needs_guards
from looping import for_each
from makers.frames import ENTRY, MODEL, Parts
from native_core import core
from reference_differences import NO_PARENT
from tiers import by_tier

ITERATIONS = by_tier(2000, 12_000)
BATCHES = by_tier(1, 4)
LARGEST = 1 << 20


class Case:
    """A frame, what it holds, and the base that it needs."""

    def __init__(self, raw: bytes, dtype: int, codec: str, base: bytes = b"", **options) -> None:
        number, level = CODECS[codec]
        options |= {"level": level, "base": base} if base else {"level": level}
        self.base, self.raw = base, raw
        self.parts = Parts.of(core.encode(raw, number, dtype, **options))


@cache
def corpus() -> list[Case]:
    rng = np.random.default_rng(11)
    cases = []
    for dtype in range(6):
        for make in PAIRS:
            base, raw = make(rng, int(rng.integers(64, 900)), dtype)
            for checksum in (True, False):
                codec = str(rng.choice(list(CODECS)))
                options = {"row": 32, "block": int(rng.choice([0, 256])), "checksum": checksum}
                cases.append(Case(raw, dtype, codec, base, **options))
        near, far = moved(700, dtype), moved(700, dtype, seed=99)
        several = b"".join((*near, far[1], near[0]))
        for codec in ("arithmetic", "best"):
            for checksum in (True, False):
                options = {"steps": 4, "block": 256, "row": 25, "checksum": checksum}
                cases.append(Case(several, dtype, codec, **options))
        cases.append(Case(near[1] + b"abc"[: WIDTHS[dtype] - 1], dtype, "arithmetic",
                          near[0] + b"xyz"[: WIDTHS[dtype] - 1]))  # fmt: skip
    return cases


def change(rng: random.Random, data: bytes) -> bytes:
    """Change a few bytes, most often near the front, where tables and sizes are."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 6])):
        at = rng.randrange(len(found) + 1)
        if found and rng.random() < 0.6:
            at = min(len(found) - 1, int(rng.expovariate(1 / 30)))
        kind = rng.randrange(8)
        if kind == 0:
            del found[at : at + rng.choice([1, 2, 4, 40])]
        elif kind == 1:
            found[at:at] = rng.randbytes(rng.choice([1, 2, 4, 40]))
        elif at < len(found):
            values = [found[at] ^ 1 << rng.randrange(8), rng.choice([0, 1, 2, 7, 9, 10, 127, 255])]
            found[at] = values[kind % 2]
    return bytes(found)


def change_block(rng: random.Random, parts: Parts) -> None:
    b = rng.randrange(len(parts.blocks))
    parts.blocks[b] = change(rng, parts.blocks[b])


def exchange_blocks(rng: random.Random, parts: Parts) -> None:
    a, b = (rng.randrange(len(parts.blocks)) for _ in range(2))
    parts.blocks[a] = parts.blocks[b]


def other_block(rng: random.Random, parts: Parts) -> None:
    parts.blocks[rng.randrange(len(parts.blocks))] = rng.choice(rng.choice(corpus()).parts.blocks)


def change_model(rng: random.Random, parts: Parts) -> None:
    if rng.random() < 0.3:
        parts.model, parts.flags = rng.choice(corpus()).parts.model, parts.flags | MODEL
    parts.model = change(rng, parts.model)


def change_table(rng: random.Random, parts: Parts) -> None:
    if parts.n_versions < 2 or len(parts.model) < ENTRY.size * parts.n_versions:
        return change_model(rng, parts)
    table = parts.table()
    v = rng.randrange(len(table))
    parent, kind, model = table[v]
    choice = rng.randrange(4)
    if choice == 0:
        parent = rng.choice([0, 1, 2, 3, 4, NO_PARENT, NO_PARENT - 1])
    elif choice == 1:
        kind = rng.randrange(4)
    elif choice == 2:
        model = rng.choice(table)[2]
    else:
        model = change(rng, model)
    table[v] = (parent, kind, model)
    return parts.set_table(table)


def change_head(rng: random.Random, parts: Parts) -> None:
    name = rng.choice(["version", "codec", "layout", "flags", "raw_size", "n_versions", "zero"])
    value = getattr(parts, name)
    changed = rng.choice([value ^ 1 << rng.randrange(8), value + 1, max(value - 1, 0), 2 * value])
    setattr(parts, name, changed % (1 << 64 if name == "raw_size" else 256))


DAMAGES = [
    change_block, change_block, change_block, change_block, exchange_blocks, other_block,
    change_model, change_model, change_table, change_head,
]  # fmt: skip


def damaged(number: int) -> tuple[Case, Parts]:
    rng = tiers.rng("a damaged frame with differences", number)
    case = rng.choice(corpus())
    parts = copy.deepcopy(case.parts)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        rng.choice(DAMAGES)(rng, parts)
    return case, parts


def is_for(parts: Parts, case: Case) -> bool:
    """Return whether the checksums of decoded blocks are still the case's."""
    names = ("version", "layout", "flags", "raw_size", "n_versions", "sums", "tail")
    return parts.sums is not None and all(
        getattr(parts, name) == getattr(case.parts, name) for name in names
    )


@needs_guards
@pytest.mark.parametrize("batch", range(BATCHES))
def test_damaged_frames(batch):
    source, target, below = Arena(1 << 17), Arena(LARGEST), Arena(1 << 17)
    decoded = wrong = 0
    for number in range(batch, ITERATIONS, BATCHES):
        case, parts = damaged(number)
        at_end = number // BATCHES % 4 != 0
        frame = source.holding(parts.joined(), at_end)
        base = below.holding(case.base, at_end)
        try:
            size = core.Index(frame).raw_size
            if size > LARGEST:
                continue
            out = target.room(size, at_end)
            core.decode_into(frame, out, base)
        except BaseMismatchError:
            assert case.base == b"" or size != len(case.raw) or parts.n_versions == 1
            continue
        except CodecError:
            wrong += 1
            continue
        decoded += 1
        if is_for(parts, case):
            assert out == case.raw, f"frame {number}"
        if len(base) == len(out):
            before = bytes(out)
            base[:] = case.base
            core.decode_into(frame, base, base)
            assert base == before, f"frame {number}, in place"
    # Frames that are all refused at the first check would test little.
    assert decoded > ITERATIONS // BATCHES // 50
    assert wrong > ITERATIONS // BATCHES // 3


SIZES = [*range(1, 9), 63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 4097, 33_000]


@needs_guards
@pytest.mark.parametrize("codec", CODECS)
@for_each("dtype", range(6))
@for_each("at_end", [True, False])
def test_intact_data_are_not_left_either(dtype, codec, at_end):
    raws, bases, frames, target = (Arena(1 << 19) for _ in range(4))
    number, level = CODECS[codec]
    for n in by_tier(SIZES[dtype::6], SIZES):
        pair = moved(n, dtype)
        base, raw = bases.holding(pair[0], at_end), raws.holding(pair[1], at_end)
        for block in (0, 256):
            options = {"level": level, "block": block}
            frame = core.encode(raw, number, dtype, base=base, **options)
            out = target.room(len(raw), at_end)
            core.decode_into(frames.holding(frame, at_end), out, base)
            assert out == raw, (n, block)
            if n % 2 == 0:
                frame = core.encode(raw, number, dtype, steps=2, **options)
                core.decode_into(frames.holding(frame, at_end), out)
                assert out == raw, (n, block)
