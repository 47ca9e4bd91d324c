"""Makes difference models and blocks of differences from any numbers that a test gives.

Like the reference decoder it follows docs/format_differences.md and not the native core.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from makers.frames import block, low_planes
from makers.grids import GridNumbers, GridWriter, RangeEncoder, Writer, write_rows
from makers.lanes import pack_payload, put
from reference_difference_model import (
    ESCAPE,
    EXCLUSIVE_OR,
    FIRST,
    MORE,
    PLAIN,
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
    DifferencePayload,
    coded_items,
    items_from,
)
from reference_grid import Bit, Grid
from reference_planes import DIFFERENCE, JOINED, LOWEST_STATE, STORED, rans_places
from reference_tiles import LANES, tile_scales

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
            n = 0 if j == ESCAPE else MORE[j] + own.raw
            below, rank = put(x[at], own.f[j], n, number, words)
            x[at] = below + sum(own.f[:j]) + rank
    return words[::-1]


# --- Blocks --------------------------------------------------------------------------------------


def difference_block(payload: bytes, planes: Sequence[tuple[int, bytes]], width: int) -> bytes:
    """Return a block of a payload, and of low planes that have modes of their own."""
    joined = [(JOINED, b"")] * (width - 1 - len(planes))
    return block((DIFFERENCE, payload), *joined, *planes)


def code_block(raw: bytes, base: bytes, section: DifferenceSection, *args, **options) -> bytes:
    """Code a block of differences, its low planes stored, as `code_differences` does."""
    width = section.width
    parts, lows = code_differences(
        items_from(raw, width), items_from(base, width), section, *args, **options
    )
    planes = [(STORED, plane) for plane in low_planes(lows, section.low)]
    return difference_block(pack_payload(parts, width), planes, width)
