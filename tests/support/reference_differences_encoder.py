"""Builds difference models, blocks of differences and their frames by hand, whatever a test asks.

Like the reference decoder it follows docs/format_differences.md and not the native core.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import reference_encoder as build
from reference_checksum import checksum
from reference_difference_model import (
    ESCAPE,
    EXCLUSIVE_OR,
    FIRST,
    MORE,
    PLAIN,
    WIDTHS,
    DifferenceSection,
    ItemClass,
    expected_magnitude,
    exponent_of,
    frequencies,
    order,
    raw_of_signed,
    zigzag,
)
from reference_differences import (
    DIFFERENCE_MODEL,
    NO_MODEL,
    NO_PARENT,
    TILE_MODEL,
    DifferencePayload,
    blocks_of,
    coded_items,
    digest_of_base,
    items_from,
)
from reference_grid import Bit, Grid
from reference_grid_encoder import GridNumbers, GridWriter, RangeEncoder, Writer, write_rows
from reference_planes import DIFFERENCE, JOINED, LOWEST_STATE, SAME, STORED, rans_places
from reference_tile_tables import TOTAL
from reference_tiles import LANES, tile_scales
from reference_tiles_encoder import pack_states

# --- The difference model ------------------------------------------------------------------------

#: Weights of numbers that are small more often than not. With many raw bits, where others have a
#: high least frequency, that of entry 0 must have the room for it.
FALLING = [90, 70, 62, 54, 46, 38, 30, 24, 30, 22, 16, 12, 20, 12, 6, 8]


@dataclass
class DifferenceNumbers(GridNumbers):
    """The numbers of a section as they are written, unchecked."""

    relation: int = 0
    low: int = 0
    step: int = 0
    origin: int = 0
    begins: list[int] = field(default_factory=list)  # whether a class does, at all places but 0
    near: int = 1
    raw: list[int] = field(default_factory=lambda: [0])  # of the classes below near
    weights: list[list[int]] = field(default_factory=lambda: [FALLING])  # of all classes

    def section(self, dtype: int, before: Grid | None = None) -> DifferenceSection:
        """Return the section that a decoder reads from them."""
        class_at = list(accumulate(self.begins, initial=0))
        classes = []
        for c, weights in enumerate(self.weights):
            is_near = c < self.near
            raw = self.raw[c] if is_near else raw_of_signed(dtype, self.low)
            classes.append(ItemClass(raw, not is_near, frequencies(weights, raw)))
        numbers = self.relation, self.low, self.step, self.origin
        return DifferenceSection(*self.grid(dtype, before), *numbers, class_at, classes)


class ClassWriter:
    def __init__(self, encoder: RangeEncoder) -> None:
        self.encoder = encoder
        self.range, self.place, self.raw, self.frequency = (Writer(encoder) for _ in range(4))
        self.next = Bit()

    def write(self, numbers: DifferenceNumbers) -> None:
        for value in (numbers.relation, numbers.low, numbers.step):
            self.range.write(value)
        self.place.write(numbers.origin)
        self.range.write(len(numbers.begins))
        for bit in numbers.begins:
            self.encoder.bit(self.next, bit)
        self.range.write(numbers.near)
        raw = first = 0
        for c, weights in enumerate(numbers.weights):
            if c < numbers.near and c < len(numbers.raw):
                self.raw.write(numbers.raw[c] - raw)
                raw = numbers.raw[c]
            for before, g in pairwise([first, *weights]):
                self.frequency.write(g - before)
            first = weights[0]


def write_difference_model(sections: Sequence[DifferenceNumbers]) -> bytes:
    encoder = RangeEncoder()
    grids, classes = GridWriter(encoder), ClassWriter(encoder)
    for numbers in sections:
        grids.write_numbers(numbers)
        grids.write_columns(numbers)
        classes.write(numbers)
    return encoder.finish()


# --- Numbers -------------------------------------------------------------------------------------


def number_of(x: int, b: int, scale: int, own: ItemClass, at: DifferenceSection) -> tuple[int, int]:
    """Return an item's coded number, and the low bytes of its number."""
    bits = 8 * at.width
    top = 1 << bits - 1
    if own.is_signed:
        z = zigzag(x % top - expected_magnitude(b, scale, at.dtype), bits)
    elif at.relation == EXCLUSIVE_OR:
        z = x ^ b
    elif at.relation == PLAIN:
        z = zigzag(x - b, bits)
    else:
        d = order(x, bits) - order(b, bits)
        z = zigzag(-d if b >= top else d, bits)
    y, low = z >> 8 * at.low, z % (1 << 8 * at.low)
    if not own.is_signed:
        return y, low
    r, sign = own.raw, int(x // top != b // top)
    return (y >> r << r + 1) + (sign << r) + y % (1 << r), low


def entry_of(coded: int, own: ItemClass) -> int:
    v = coded >> own.raw
    j = max((j for j, first in enumerate(FIRST) if first <= v), default=ESCAPE)
    return j if v < 128 and own.f[j] else ESCAPE


# --- Payload of a block --------------------------------------------------------------------------


def code_differences(
    items: Sequence[int],
    base: Sequence[int],
    section: DifferenceSection,
    first: int = 0,
    rows: bytes | None = None,
    log2_groups: int = 0,
    *,
    escaped: Collection[int] = (),
    forced: Mapping[int, int] | None = None,
) -> tuple[DifferencePayload, list[int]]:
    """Code the items of a block; return its payload and the low bytes of the items' numbers.

    `escaped` are items that are escapes although they need not be. `forced` has numbers that
    replace the coded ones of items.
    """
    rows, groups = write_rows() if rows is None else rows, 1 << log2_groups
    m = coded_items(len(items), groups)
    scales = tile_scales(rows, section, first, len(items))[:m]
    classes, coded, lows = [], [], [0] * len(items)
    for i, scale in enumerate(scales):
        own = section.class_of(scale, exponent_of(base[i], section.dtype))
        number, lows[i] = number_of(items[i], base[i], scale, own, section)
        number = (forced or {}).get(i, number)
        j = ESCAPE if i in escaped else entry_of(number, own)
        if j == ESCAPE:
            lows[i] = 0
        classes.append(own)
        coded.append((j, number))
    x = [LOWEST_STATE] * (LANES * groups)
    words = code_lanes(coded, classes, x)
    escapes = [items[i] for i, (j, _) in enumerate(coded) if j == ESCAPE]
    return DifferencePayload(rows, groups, x, escapes, list(items[m:]), words), lows


def code_lanes(
    coded: Sequence[tuple[int, int]], classes: Sequence[ItemClass], x: list[int]
) -> list[int]:
    """Take the lanes from their last states to their first, and return the words."""
    groups, places, words = len(x) // LANES, rans_places(1, LANES).tolist(), []
    for t in reversed(range(len(coded) // LANES)):
        for lane in reversed(range(LANES)):
            (j, number), own = coded[t * LANES + places[lane]], classes[t * LANES + places[lane]]
            at = t % groups * LANES + lane
            f, q = own.f[j], 0 if j == ESCAPE else MORE[j] + own.raw
            state = x[at]
            if state >> 20 - q >= f:
                words.append(state % (1 << 16))
                state >>= 16
            state = (state << q) + number % (1 << q)
            x[at] = TOTAL * (state // f) + sum(own.f[:j]) + state % f
    return words[::-1]


def pack_payload(
    parts: DifferencePayload,
    width: int,
    *,
    row_size: int | None = None,
    head: int | None = None,
    n_escapes: int | None = None,
    unused: int = 0,
    more: bytes = b"",
) -> bytes:
    """Put the fields of a payload together.

    The numbers replace what the fields say; `unused` are bits after those of the first states, as
    many as there is room for, and `more` are bytes at the end.
    """
    return b"".join(
        [
            (len(parts.rows) if row_size is None else row_size).to_bytes(2, "little"),
            parts.rows,
            bytes([parts.groups.bit_length() - 1 if head is None else head]),
            (len(parts.escapes) if n_escapes is None else n_escapes).to_bytes(4, "little"),
            pack_states(parts.states, unused),
            *(x.to_bytes(width, "little") for x in (*parts.escapes, *parts.rest)),
            *(word.to_bytes(2, "little") for word in parts.words),
            more,
        ]
    )


# --- Blocks --------------------------------------------------------------------------------------


def low_planes(lows: Sequence[int], low: int) -> list[bytes]:
    """Return the planes of low bytes, the most significant first."""
    return [bytes(value >> 8 * p & 255 for value in lows) for p in reversed(range(low))]


def difference_block(payload: bytes, planes: Sequence[tuple[int, bytes]], width: int) -> bytes:
    """Return a block of a payload, and of low planes that have modes of their own."""
    joined = [(JOINED, b"")] * (width - 1 - len(planes))
    return build.block((DIFFERENCE, payload), *joined, *planes)


def code_block(raw: bytes, base: bytes, section: DifferenceSection, *args, **options) -> bytes:
    """Code a block of differences, its low planes stored, as `code_differences` does."""
    width = section.width
    parts, lows = code_differences(
        items_from(raw, width), items_from(base, width), section, *args, **options
    )
    planes = [(STORED, plane) for plane in low_planes(lows, section.low)]
    return difference_block(pack_payload(parts, width), planes, width)


def same_block(width: int) -> bytes:
    return build.block((SAME, b""), *[(JOINED, b"")] * (width - 1))


def whole_block(raw: bytes, width: int) -> bytes:
    """Return a block that is coded without its base: all planes are stored."""
    bits = 8 * width
    rotated = [(x << 1 | x >> bits - 1) % (1 << bits) for x in items_from(raw, width)]
    planes = low_planes(rotated, width)
    return build.block(*((STORED, plane) for plane in planes))


# --- Frames --------------------------------------------------------------------------------------


def base_field(versions: int = 1, digest: int = 0, zero: int = 0) -> bytes:
    numbers = struct.pack("<HHQ", versions, zero, digest)
    return numbers + checksum(numbers).to_bytes(4, "little")


def sums_of(raw: bytes, dtype: int, k: int) -> list[int]:
    return [checksum(block) for block in blocks_of(raw, WIDTHS[dtype] << k, WIDTHS[dtype])]


def frame_to_base(
    raw: bytes,
    below: bytes,
    blocks: Sequence[bytes],
    dtype: int = 0,
    *,
    k: int = 8,
    sums: bool | list[int] = True,
    model: bytes | None = None,
    kind: int = DIFFERENCE_MODEL,
    **options,
) -> bytes:
    """Return a frame of blocks that are coded against what is below them.

    `sums` may be the checksums themselves. The model has its kind put in front of it.
    """
    width = WIDTHS[dtype]
    if model is not None:
        model = bytes([kind]) + model
    given = {
        "layout": dtype,
        "k": k,
        "sums": sums_of(raw, dtype, k) if sums is True else sums or None,
        "tail": raw[len(raw) - len(raw) % width :],
        "model": model,
        "version": 2,
        "base": base_field(1, digest_of_base(below)),
        "base_sums": sums_of(below, dtype, k),
    }
    return build.frame(len(raw), blocks, **{**given, **options})


def model_of_versions(
    parents: Sequence[int | None],
    models: Sequence[bytes],
    sizes: Sequence[int] | None = None,
    kinds: Sequence[int] | None = None,
) -> bytes:
    """Put the models of versions together.

    Those that have bytes are of differences if there is a parent, and of tiles if there is none.
    `sizes` and `kinds` replace what they are said to have and to be.
    """
    sizes = [len(model) for model in models] if sizes is None else sizes
    if kinds is None:
        kinds = [kind_of(*both) for both in zip(parents, models, strict=True)]
    entries = b"".join(
        struct.pack("<HBI", NO_PARENT if parent is None else parent, kind, size)
        for parent, kind, size in zip(parents, kinds, sizes, strict=True)
    )
    return entries + b"".join(models)


def kind_of(parent: int | None, model: bytes) -> int:
    if not model:
        return NO_MODEL
    return TILE_MODEL if parent is None else DIFFERENCE_MODEL


def frame_of_versions(
    versions: Sequence[bytes],
    blocks: Sequence[Sequence[bytes]],
    model: bytes,
    dtype: int = 0,
    *,
    k: int = 8,
    sums: bool = True,
    **options,
) -> bytes:
    """Return a frame of versions and the blocks of each."""
    given = {
        "layout": dtype,
        "k": k,
        "sums": [own for raw in versions for own in sums_of(raw, dtype, k)] if sums else None,
        "model": model,
        "version": 2,
        "base": base_field(len(versions)),
    }
    raw_size = sum(len(raw) for raw in versions)
    return build.frame(raw_size, [b for own in blocks for b in own], **{**given, **options})
