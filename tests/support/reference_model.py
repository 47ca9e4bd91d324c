"""The scale model of the reference decoder, written from docs/format_scale.md alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate

from reference_grid import (
    FRACTION_BITS,
    KEY_BITS,
    SECTION,
    AdaptiveInteger,
    Grid,
    GridReader,
    RangeDecoder,
    clamp,
    column_terms,
    largest_scale,
    planes_of,
    row_terms,
)
from reference_planes import Reader, must

OCT = 4096

# --- Fixed-point functions -----------------------------------------------------------------------

ROOTS = [
    1518500250, 1276901417, 1170923762, 1121280436, 1097253708, 1085434106, 1079572136,
    1076653033, 1075196443, 1074468888, 1074105294, 1073923544,
]  # fmt: skip


def exp2(x: int) -> int:
    v = 1 << 30
    for i, root in enumerate(ROOTS):
        if x % OCT >> (11 - i) & 1:
            v = v * root >> 30
    return v << x // OCT >> 30


def log2(x: int) -> int:
    w = x.bit_length() - 1
    y = x << 31 >> w
    f = 0
    for _ in range(12):
        y = y * y >> 31
        f *= 2
        if y >= 1 << 32:
            y >>= 1
            f += 1
    return OCT * w + f


# --- Symbols -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Symbol:
    base: int
    raw: int
    width: int = 0  # these two in octaves, for the frequencies
    center: int = 0


@cache
def symbols_of(dtype: int) -> list[Symbol]:
    """Return the symbols, the zero and the escape last."""
    fraction = FRACTION_BITS[dtype]

    def octaves(e: int, n: int) -> Symbol:
        width = e * OCT + log2(2**n - 1)
        center = e * OCT + log2(2**n + 1) - OCT
        return Symbol(e << fraction, fraction + n.bit_length() - 1, width, center)

    def part_of_octave(e: int, k: int, part: int) -> Symbol:
        width = (e - k) * OCT
        center = width - OCT + log2(2 ** (k + 1) + 2 * part + 1)
        return Symbol((e << fraction) + (part << fraction - k), fraction - k, width, center)

    found = [octaves(-22, 8), octaves(-14, 4), octaves(-10, 2)]
    found += [octaves(e, 1) for e in range(-8, -2)]
    for e, k in zip(range(-2, 5), (1, 2, 3, 4, 3, 2, 1), strict=True):
        k = min(k, fraction)
        found += [part_of_octave(e, k, part) for part in range(2**k)]
    found.append(octaves(5, 2))
    return [*found, Symbol(0, 0), Symbol(0, KEY_BITS[dtype])]


# --- The model -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section(Grid):
    """The numbers from which a section's scales and frequencies follow."""

    zero: int
    escape: int
    curve: list[int]

    @property
    def tables(self) -> list[list[int]]:
        """The frequencies of all symbols, for each S mod 16."""
        return frequencies(self.dtype, self.zero, self.escape, tuple(self.curve))


@lru_cache(maxsize=8)
def frequencies(dtype: int, zero: int, escape: int, curve: tuple[int, ...]) -> list[list[int]]:
    room = 4096 - zero - escape
    tables = []
    for t in range(16):
        weights = [weight_of(symbol, t, curve) for symbol in symbols_of(dtype)[:-2]]
        total = sum(weights)
        f = [
            (weight * room + total // 2) // total or int(8 * weight * room >= total)
            for weight in weights
        ]
        while sum(f) > room:
            f[f.index(max(f))] -= 1
        f[f.index(max(f))] += room - sum(f)
        tables.append([*f, zero, escape])
    return tables


def weight_of(symbol: Symbol, t: int, curve: tuple[int, ...]) -> int:
    d = symbol.center - 128 * (2 * t + 1)
    penalty = min(24 * OCT, exp2(clamp(2 * d + 12 * OCT, 0, 20 * OCT)) * 2955 >> 12)
    place = clamp(4 * (d + 6 * OCT), 0, 43 * OCT)
    j = min(place // OCT, 42)
    p = place - j * OCT
    height = curve[j] * (OCT - p) + curve[j + 1] * p >> 3
    return exp2(clamp(symbol.width - penalty + height + 24 * OCT, 0, 31 * OCT))


def read_model(side: bytes, dtype: int, n_items: int) -> list[Section]:
    """Read the sections of a frame's model."""
    decoder = RangeDecoder(side)
    grids = GridReader(decoder, dtype, n_items, len(side))
    frequency, curve = AdaptiveInteger(decoder), AdaptiveInteger(decoder)
    sections: list[Section] = []
    for begin in range(0, n_items, SECTION):
        numbers = grids.read_numbers(begin)
        zero, escape = frequency.read(), frequency.read() + 1
        must(zero >= 0 and escape >= 1 and zero + escape <= 4032, "frequencies of zero and escape")
        differences = [curve.read() for _ in range(44)]
        must(all(abs(difference) <= 510 for difference in differences), "a difference of heights")
        heights = list(accumulate(differences))
        must(all(abs(height) <= 255 for height in heights), "a height")
        columns = grids.read_columns(period=numbers[2])
        sections.append(Section(*numbers, columns, zero, escape, heights))
    return sections


# --- Payload of a block --------------------------------------------------------------------------


def decode_scale(payload: bytes, sections: list[Section], first: int, n: int) -> list[bytes]:
    """Return the planes of a block of `n` items, the first of which is number `first`."""
    return planes_of(decode_keys(payload, sections, first, n), sections[0].dtype)


def decode_keys(payload: bytes, sections: list[Section], first: int, n: int) -> list[int]:
    must(n >= 8, "a block of fewer than 8 items")
    section = sections[first // SECTION]
    reader = Reader(payload)
    scales = block_scales(reader.take(reader.number(2)), section, first, n)
    x = [reader.number(8) for _ in range(4)]
    must(all(1 << 31 <= state < 1 << 63 for state in x), "a first state")
    must(reader.left >= 2 * (n % 4) and (reader.left - 2 * (n % 4)) % 4 == 0, "size of the words")
    words = Reader(reader.take(reader.left - 2 * (n % 4)))

    symbols, tables = symbols_of(section.dtype), section.tables
    owners = [[s for s, f in enumerate(table) for _ in range(f)] for table in tables]
    starts = [list(accumulate(table, initial=0)) for table in tables]
    key_bits, fraction = KEY_BITS[section.dtype], FRACTION_BITS[section.dtype]
    keys = []
    for i in range(4 * (n // 4) - 8):
        lane, t = i % 4, scales[i] % 16
        a = x[lane] % 4096
        s = owners[t][a]
        state = tables[t][s] * (x[lane] // 4096) + a - starts[t][s]
        r, state = state % (1 << symbols[s].raw), state >> symbols[s].raw
        x[lane] = state if state >= 1 << 31 else (state << 32) + words.number(4)
        key = symbols[s].base + r
        if s < len(symbols) - 2:
            key += scales[i] // 16 << fraction
        keys.append(key % (1 << key_bits))
    must(words.left == 0, "words are left over")
    must(all(state >> 32 == 1 for state in x), "a last state")
    for state in x:
        keys += [state % (1 << key_bits), (state >> 16) % (1 << key_bits)]
    return keys + [reader.number(2) % (1 << key_bits) for _ in range(n % 4)]


def block_scales(rows: bytes, section: Section, first: int, n: int) -> list[int]:
    largest = largest_scale(section.dtype)
    terms = zip(row_terms(rows, section, first, n), column_terms(section, first, n), strict=True)
    return [clamp(row + column, 0, largest) for row, column in terms]
