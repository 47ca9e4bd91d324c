"""Frames of the modes that have a model, and the tables of tiles to test with."""

from __future__ import annotations

import random

import reference_decoder as reference
from both_decoders import both_decode
from contents import falling, lcg_words
from makers import frames as build
from makers.tiles import Intervals, TileNumbers, tiles_payload, write_tile_model
from reference_grid import KEY_BITS, largest_scale
from reference_planes import JOINED, SCALE, STORED, TILES
from reference_tile_tables import CHANGE_LIMIT, ESCAPE, LARGEST_N, TOTAL, classes_of
from reference_tiles import largest_interval, raw_bits


def model_frame(
    mode: int, payload: bytes, n: int, model: bytes | None, dtype: int = 0, **options
) -> bytes:
    """Return a frame of one block whose plane 0, or planes 0 and 1, are of a mode with a model."""
    width = reference.WIDTHS[dtype]
    planes = [(mode, payload), (JOINED, b"")][:width] + [(STORED, bytes(n))] * (width - 2)
    options = {"layout": dtype, "k": 15, "version": 1 if mode == SCALE else 2, **options}
    return build.frame(n * width, [build.block(*planes)], model=model, **options)


def expected_of(keys: list[int], dtype: int) -> bytes:
    """Return the decoded bytes of such a frame of these keys."""
    width, n = reference.WIDTHS[dtype], len(keys)
    planes = [bytes(key >> 8 for key in keys), bytes(key & 255 for key in keys)]
    planes = planes[2 - min(width, 2) :] + [bytes(n)] * (width - 2)
    return reference.join_planes(planes, by_byte=False)


def tile_frame(keys: list[int], numbers: TileNumbers, dtype: int = 0, **options) -> bytes:
    payload = tiles_payload(keys, numbers.section(dtype), **options)
    return model_frame(TILES, payload, len(keys), write_tile_model([numbers]), dtype)


def check_tiles(
    keys: list[int],
    numbers: TileNumbers,
    rows: bytes | None = None,
    dtype: int = 0,
    **options,
) -> None:
    """Check that both decoders read a block of these keys."""
    frame = tile_frame(keys, numbers, dtype, rows=rows, **options)
    assert both_decode(frame) == expected_of(keys, dtype)


def middle_of(dtype: int) -> int:
    """Return a scale in the middle of the range and in the middle of a class."""
    return largest_scale(dtype) // 32 * 16 + 6


def tile_keys(n: int, dtype: int = 0, seed: int = 0) -> list[int]:
    """Return keys around a scale, of which some are far from it and some are 0."""
    scale = middle_of(dtype)
    words = lcg_words(n, seed).astype(int)
    v = 200 - 8 * falling(n, seed + 1).astype(int) + (words >> 7) % 23 + 8 * (scale // 16) - 208
    keys = (v << raw_bits(dtype)) + (words >> 13) % (1 << raw_bits(dtype))
    keys[::50] = words[::50] >> 16
    keys %= 1 << KEY_BITS[dtype]
    keys[7::90] = 0
    return keys.tolist()


# --- Tables --------------------------------------------------------------------------------------


def sizes_up_to(largest: int, lo: int, hi: int) -> list[int]:
    """Return the n of the largest intervals up to one that cover a range."""
    sizes, a = [], lo
    while a < hi:
        n = min(largest, largest_interval(a, hi))
        sizes.append(n)
        a += 1 << n
    return sizes


def evenly_among(sizes: list[int], escape: int) -> Intervals:
    """Return intervals with frequencies as equal as can be."""
    return with_rest(sizes, [(TOTAL - escape) // len(sizes) // 2 * 2] * len(sizes), escape)


def with_rest(sizes: list[int], f: list[int], escape: int) -> Intervals:
    """Add the rest of the frequencies to the smallest of the intervals."""
    f[sizes.index(min(sizes))] += TOTAL - escape - sum(f)
    return list(zip(sizes, f, strict=True))


def random_numbers(seed: int, **options) -> TileNumbers:
    """Return any valid tables, of one class or four."""
    rng = random.Random(seed)
    lo = rng.choice([1, rng.randrange(1, 256), rng.randrange(150, 200)])
    hi = rng.choice([256, rng.randrange(lo + 1, 257), min(256, lo + rng.randrange(1, 60))])
    form = rng.choice([2, 3])
    n_most = 2 * len(sizes_up_to(LARGEST_N, lo, hi))
    escape = rng.choice([2, 2 * rng.randrange(1, 900), 4 * (1000 - n_most)])
    tables = [random_table(rng, lo, hi, escape) for _ in range(classes_of(form))]
    return TileNumbers(
        form=form, lo=lo, hi=hi, escape=escape, tables=tables, base=middle_of(0), **options
    )


def random_table(rng: random.Random, lo: int, hi: int, escape: int) -> Intervals:
    sizes = sizes_up_to(LARGEST_N, lo, hi)
    room = TOTAL - escape
    for _ in range(rng.choice([0, 3, 20])):  # split one after the other
        at = rng.randrange(len(sizes))
        if sizes[at] > 0 and len(sizes) < 31 and 2 * len(sizes) + 2 <= room:
            sizes[at : at + 1] = [sizes[at] - 1] * 2
    f = [2 if n == LARGEST_N else 1 for n in sizes]
    for _ in range(rng.choice([0, 4, 100])):
        at, more = rng.randrange(len(sizes)), 2 * rng.randrange(1, rng.choice([3, 40, 700]))
        if sum(f) + more <= room:
            f[at] += more
    return with_rest(sizes, f, escape)


def random_changes(seed: int, largest: int = CHANGE_LIMIT) -> list[int]:
    """Return a change for each interval of a Gaussian table."""
    rng = random.Random(seed)
    return [rng.randint(-largest, largest) for _ in range(ESCAPE)]
