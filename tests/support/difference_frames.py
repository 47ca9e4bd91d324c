"""Items, models and frames for tests of differences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from both_decoders import both_decode_to_base
from contents import SHAPES, falling, lcg_words, matrix
from makers.differences import FALLING, DifferenceNumbers, code_block, write_difference_model
from makers.frames import frame_to_base, whole_block
from reference_difference_model import (
    BELOW_EXPONENT,
    ORDERED,
    WIDTHS,
    DifferenceSection,
)
from reference_differences import LANES, blocks_of
from reference_grid import largest_scale


def numbers_for(
    dtype: int = 0,
    low: int = 0,
    near: int = 1,
    raw: Sequence[int] = (1,),
    n_classes: int = 2,
    **options,
) -> DifferenceNumbers:
    """Return numbers of a section whose classes begin every other place."""
    begins = [place % 2 for place in range(2 * n_classes - 1)]
    return DifferenceNumbers(
        **{
            "base": middle_of(dtype),
            "low": low,
            "step": 3,
            "origin": 4 * len(begins),
            "begins": begins,
            "near": near,
            "raw": list(raw),
            "weights": [FALLING] * n_classes,
            **options,
        }
    )


def plain_numbers(relation: int, dtype: int = 0, low: int = 0, raw: int = 0) -> DifferenceNumbers:
    """Return numbers of a section that has one class, which is near."""
    return DifferenceNumbers(relation=relation, low=low, raw=[raw], base=middle_of(dtype))


def signed_numbers(dtype: int = 0, low: int = 0, **options) -> DifferenceNumbers:
    """Return numbers of a section that has one class, which is not near."""
    options = {"base": middle_of(dtype), **options}
    return DifferenceNumbers(relation=ORDERED, low=low, near=0, raw=[], **options)


def middle_of(dtype: int) -> int:
    """Return a scale near those of the contents."""
    return min(16 * ((3 << SHAPES[dtype][1]) // 4 - 4), largest_scale(dtype))


def base_of(n: int, dtype: int = 0) -> bytes:
    return matrix(-(-n // 40), 40, dtype)[: n * WIDTHS[dtype]]


def near_to(base: bytes, dtype: int = 0, seed: int = 5, shift: int = 0) -> bytes:
    """Return items near others, at multiples of 2^shift from them, and a few that are not.

    Every 37th has another sign, every 41st is any item at all.
    """
    width = WIDTHS[dtype]
    items = np.frombuffer(base, f"<u{width}").astype(np.uint64)
    words = lcg_words(len(items), seed).astype(np.uint64)
    spread = falling(len(items), seed + 1).astype(np.uint64)
    change = (words >> np.uint64(8)) % (np.uint64(2) << spread) << np.uint64(shift)
    items = np.where(words & np.uint64(1), items + change, items - change)
    items[::37] ^= np.uint64(1 << 8 * width - 1)
    items[::41] = words[::41] * np.uint64(0x9E3779B97F4A7C15)
    return (items & np.uint64((1 << 8 * width) - 1)).astype(f"<u{width}").tobytes()


def code_blocks(
    raw: bytes,
    base: bytes,
    section: DifferenceSection,
    k: int,
    rows: Sequence[bytes] | None = None,
    log2_groups: int = 0,
    **options,
) -> list[bytes]:
    """Code all blocks as differences, except a last one that is too short."""
    width, found = section.width, []
    pairs = zip(*(blocks_of(data, width << k, width) for data in (raw, base)), strict=True)
    for b, (block, below) in enumerate(pairs):
        if len(block) < width * LANES << log2_groups:
            found.append(whole_block(block, width))
            continue
        own = None if rows is None else rows[b]
        found.append(code_block(block, below, section, b << k, own, log2_groups, **options))
    return found


def frame_of(
    raw: bytes,
    base: bytes,
    numbers: DifferenceNumbers,
    dtype: int = 0,
    k: int = 8,
    sums: bool = True,
    **options,
) -> bytes:
    blocks = code_blocks(raw, base, numbers.section(dtype), k, **options)
    model = write_difference_model([numbers])
    return frame_to_base(raw, base, blocks, dtype, k=k, sums=sums, model=model)


def check(raw: bytes, base: bytes, numbers: DifferenceNumbers, dtype: int = 0, **options) -> None:
    """Check that both decoders read a frame of differences."""
    assert both_decode_to_base(frame_of(raw, base, numbers, dtype, **options), base) == raw


def float_of(dtype: int, exponent: int, fraction: int = 0, sign: int = 0) -> int:
    """Return an item; all ones are meant by an exponent of -1 and a fraction of -1."""
    below, bits = BELOW_EXPONENT[dtype] - 1, 8 * WIDTHS[dtype]
    exponent %= 1 << bits - 1 - below
    return sign << bits - 1 | exponent << below | fraction % (1 << below)
