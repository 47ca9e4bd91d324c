"""Difference models of the reference decoder, and numbers of items.

Written from docs/format_differences.md alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from reference_grid import (
    SECTION,
    AdaptiveInteger,
    Bit,
    Grid,
    GridReader,
    RangeDecoder,
    clamp,
)
from reference_planes import must
from reference_tile_tables import POWERS, TOTAL

WIDTHS = [2, 2, 4, 8, 1, 1]  # of dtype 0 ... 5
BELOW_EXPONENT = [8, 11, 24, 53, 4, 3]  # bits, the sign counted in

ORDERED, PLAIN, EXCLUSIVE_OR = range(3)  # relations

STEP_LIMIT = 4
ORIGIN_LIMIT = 16383
PLACES = 64
CLASSES = 16
RAW_LIMIT = 8
WEIGHT_LIMIT = 96

ESCAPE = 15  # the entry
FIRST = [*range(8), 8, 10, 12, 14, 16, 32, 64]  # v of an entry
MORE = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 4, 5, 6]  # bits below v of it

# --- Frequencies ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ItemClass:
    """How the numbers of a class of items are coded."""

    raw: int  # r
    is_signed: bool
    f: tuple[int, ...]

    @property
    def q(self) -> list[int]:
        return raw_bits_of(self.raw)


def raw_bits_of(raw: int) -> list[int]:
    """Return the number of raw bits of each entry."""
    return [*(n + raw for n in MORE), 0]


def units_of(raw: int) -> list[int]:
    """Return the unit of each entry's frequency."""
    return [1 << max(0, q - 4) for q in raw_bits_of(raw)]


def frequencies(weights: list[int], raw: int) -> tuple[int, ...]:
    """Return the frequencies of a class."""
    w = [POWERS[(g - 1) % 8] << (g - 1) // 8 if g else 0 for g in weights]
    total, units = sum(w), units_of(raw)
    f = [
        u * max(1, (TOTAL * w[j] + total * u // 2) // (total * u)) if w[j] else 0
        for j, u in enumerate(units)
    ]
    largest = f.index(max(f[:ESCAPE]))
    must(f[largest] > 0, "no entry but the escape")
    left = TOTAL - sum(f)
    rest = left % units[largest]
    f[largest] += left - rest
    must(f[largest] >= units[largest], "the largest frequency")
    f[ESCAPE] += rest
    return tuple(f)


@lru_cache(maxsize=128)
def slots_of(f: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return entry and rank of every slot."""
    return [(j, rank) for j, own in enumerate(f) for rank in range(own)]


# --- The difference model ------------------------------------------------------------------------


@dataclass(frozen=True)
class DifferenceSection(Grid):
    relation: int
    low: int
    step: int
    origin: int
    class_at: list[int]  # of each place
    classes: list[ItemClass]

    @property
    def width(self) -> int:
        return WIDTHS[self.dtype]

    def class_of(self, scale: int, exponent: int) -> ItemClass:
        place = scale - 16 * exponent + self.origin >> self.step
        return self.classes[self.class_at[clamp(place, 0, len(self.class_at) - 1)]]


def raw_of_signed(dtype: int, low: int) -> int:
    """Return r of the classes from near on."""
    return min(RAW_LIMIT, max(0, BELOW_EXPONENT[dtype] - 1 - 8 * low))


class ClassReader:
    """Reads what follows the grid; its adaptive integers and bit last from section to section."""

    def __init__(self, decoder: RangeDecoder, dtype: int) -> None:
        self.decoder = decoder
        self.dtype = dtype
        self.range, self.place, self.raw, self.frequency = (
            AdaptiveInteger(decoder) for _ in range(4)
        )
        self.next = Bit()

    def read(self) -> tuple[int, int, int, int, list[int], list[ItemClass]]:
        """Return relation, low, step, origin, the places' classes and the classes of a section."""
        relation = self.read_range(ORDERED, EXCLUSIVE_OR, "the relation")
        low = self.read_range(0, WIDTHS[self.dtype] - 1, "low")
        step = self.read_range(0, STEP_LIMIT, "a step of places")
        origin = self.place.read()
        must(abs(origin) <= ORIGIN_LIMIT, "the origin")
        places = self.read_range(0, PLACES - 1, "the number of places") + 1
        class_at = list(accumulate((self.read_next() for _ in range(places - 1)), initial=0))
        n_classes = class_at[-1] + 1
        must(n_classes <= CLASSES, "more than 16 classes")
        near = self.read_range(0, n_classes, "near")
        must(relation == ORDERED or near == n_classes, "near of another relation")
        return relation, low, step, origin, class_at, self.read_classes(n_classes, near, low)

    def read_range(self, lowest: int, highest: int, name: str) -> int:
        value = self.range.read()
        must(lowest <= value <= highest, name)
        return value

    def read_next(self) -> int:
        return self.decoder.bit(self.next)

    def read_classes(self, n_classes: int, near: int, low: int) -> list[ItemClass]:
        classes, raw, first = [], 0, 0  # r and the first weight of the class before
        for c in range(n_classes):
            is_near = c < near
            if is_near:
                raw += self.raw.read()
                must(0 <= raw <= RAW_LIMIT, "the number of raw bits")
            own = raw if is_near else raw_of_signed(self.dtype, low)
            changes = (self.frequency.read() for _ in range(ESCAPE + 1))
            weights = list(accumulate(changes, initial=first))[1:]
            must(all(0 <= g <= WEIGHT_LIMIT for g in weights), "a weight")
            must(weights[ESCAPE] > 0, "an escape without a frequency")
            first = weights[0]
            classes.append(ItemClass(own, not is_near, frequencies(weights, own)))
        return classes


def read_difference_model(side: bytes, dtype: int, n_items: int) -> list[DifferenceSection]:
    """Read the sections of a version's model."""
    decoder = RangeDecoder(side)
    grids, classes = GridReader(decoder, dtype, n_items, len(side)), ClassReader(decoder, dtype)
    sections = []
    for begin in range(0, n_items, SECTION):
        numbers = grids.read_numbers(begin)
        columns = grids.read_columns(period=numbers[2])
        sections.append(DifferenceSection(*numbers, columns, *classes.read()))
    return sections


# --- Numbers -------------------------------------------------------------------------------------


def zigzag(d: int, bits: int) -> int:
    """Return the number of a difference, which is taken modulo 2^bits."""
    d %= 1 << bits
    return 2 * d if d >> bits - 1 == 0 else 2 * ((1 << bits) - d) - 1


def unzigzag(z: int) -> int:
    return -(z >> 1) - 1 if z & 1 else z >> 1


def order(u: int, bits: int) -> int:
    """Return a number's place among all, and, as it is its own inverse, the number at a place."""
    return u ^ (1 << bits - 1) - 1 if u >> bits - 1 else u


def expected_magnitude(b: int, scale: int, dtype: int) -> int:
    """Return the magnitude that an item's is compared with where it has its own sign."""
    magnitude = b % (1 << 8 * WIDTHS[dtype] - 1)
    return max(magnitude, scale // 16 << BELOW_EXPONENT[dtype] - 1)


def exponent_of(b: int, dtype: int) -> int:
    return b % (1 << 8 * WIDTHS[dtype] - 1) >> BELOW_EXPONENT[dtype] - 1


def item_of(coded: int, low: int, b: int, scale: int, own: ItemClass, at: DifferenceSection) -> int:
    """Return the item with a coded number, given its low bytes and the item of the base."""
    bits, r = 8 * at.width, own.raw
    top = 1 << bits - 1
    y = (coded >> r + 1 << r) + coded % (1 << r) if own.is_signed else coded
    z = ((y << 8 * at.low) + low) % (1 << bits)
    if own.is_signed:
        differs = coded >> r & 1
        magnitude = (expected_magnitude(b, scale, at.dtype) + unzigzag(z)) % top
        return magnitude + top * (b // top ^ differs)
    if at.relation == EXCLUSIVE_OR:
        return z ^ b
    if at.relation == PLAIN:
        return (b + unzigzag(z)) % (1 << bits)
    d = -unzigzag(z) if b >= top else unzigzag(z)
    return order((order(b, bits) + d) % (1 << bits), bits)
