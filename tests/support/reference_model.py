"""The scale model of the reference decoder, written from docs/format_scale.md alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate

from reference_planes import Reader, must

OCT = 4096
SECTION = 1 << 22
KEY_BITS = [16, 16, 16, 16, 8, 8]  # of dtype 0 ... 5
FRACTION_BITS = [8, 11, 8, 5, 4, 3]

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


def clamp(x: int, low: int, high: int) -> int:
    return max(low, min(x, high))


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


# --- Adaptive integers ---------------------------------------------------------------------------


class Bit:
    """The probability of an adaptive bit."""

    RATES = [1, 2, 2, 3, 3, 4, 4, 4]

    def __init__(self) -> None:
        self.p = 32768
        self.updates = 0

    def update(self, bit: int) -> None:
        rate = self.RATES[self.updates] if self.updates < 8 else 5
        self.updates += 1
        self.p += (65536 - self.p) >> rate if bit else -(self.p >> rate)
        self.p = clamp(self.p, 512, 65024)


class RangeDecoder:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 4
        self.low, self.high = 0, 2**32 - 1
        self.code = int.from_bytes(data[:4].ljust(4, b"\0"), "big")

    def bit(self, model: Bit) -> int:
        middle = self.low + ((self.high - self.low) * model.p >> 16)
        bit = int(self.code <= middle)
        if bit:
            self.high = middle
        else:
            self.low = middle + 1
        while self.low >> 24 == self.high >> 24:
            fresh = self.data[self.at] if self.at < len(self.data) else 0
            self.at += 1
            self.low = self.low << 8 & 0xFFFFFFFF
            self.high = self.high << 8 & 0xFFFFFFFF | 255
            self.code = self.code << 8 & 0xFFFFFFFF | fresh
        model.update(bit)
        return bit


class AdaptiveInteger:
    def __init__(self, decoder: RangeDecoder) -> None:
        self.decoder = decoder
        self.zero, self.sign = Bit(), Bit()
        self.width = [Bit() for _ in range(19)]
        self.tree = [[Bit() for _ in range(16)] for _ in range(5)]

    def read(self) -> int:
        bit = self.decoder.bit
        if bit(self.zero):
            return 0
        is_negative = bit(self.sign)
        n = 0
        while n < 19 and bit(self.width[n]):
            n += 1
        node = 1
        for _ in range(n):
            node = 2 * node + bit(self.tree[min(n, 4)][node] if node < 16 else Bit())
        return -node if is_negative else node


# --- The model -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """What a section's scales and frequencies depend on."""

    dtype: int
    run: int
    period: int
    base: int
    row_step: int
    column_step: int
    zero: int
    escape: int
    curve: list[int]
    columns: list[int]

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


def largest_scale(dtype: int) -> int:
    return (16 << KEY_BITS[dtype] - FRACTION_BITS[dtype]) - 1


def read_model(side: bytes, dtype: int, n_items: int) -> list[Section]:
    """Read the sections of a frame's model."""
    decoder = RangeDecoder(side)
    length, base, step, frequency, column, curve = (AdaptiveInteger(decoder) for _ in range(6))
    sections: list[Section] = []
    n_columns = 0

    def read_length() -> int:
        high, low = length.read(), length.read()
        must(0 <= high < 1 << 15 and 0 <= low < 1 << 15, "a half of a length")
        value = (high << 15) + low
        must(value == 0 or value >= 16, "a run or period below 16")
        return value

    for begin in range(0, n_items, SECTION):
        run, period = read_length(), read_length()
        must(period <= min(SECTION, n_items - begin), "more columns than items")
        level = base.read()
        must(0 <= level <= largest_scale(dtype), "a section's scale")
        steps = step.read(), step.read()
        must(all(0 <= s <= 3 for s in steps), "a step")
        zero, escape = frequency.read(), frequency.read() + 1
        must(zero >= 0 and escape >= 1 and zero + escape <= 4032, "frequencies of zero and escape")
        differences = [curve.read() for _ in range(44)]
        must(all(abs(difference) <= 510 for difference in differences), "a difference of heights")
        heights = list(accumulate(differences))
        must(all(abs(height) <= 255 for height in heights), "a height")
        n_columns += period
        must(n_columns <= 1024 * (len(side) + 4), "too many columns")
        columns = read_columns(step, column, period, sections[-1] if sections else None)
        sections.append(Section(dtype, run, period, level, *steps, zero, escape, heights, columns))
    return sections


def read_columns(
    step: AdaptiveInteger, column: AdaptiveInteger, period: int, before: Section | None
) -> list[int]:
    if period == 0:
        return []
    change = step.read()
    must(change in (0, 1), "change")
    columns = [column.read() for _ in range(period)]
    if change:
        must(before is not None and before.period == period, "change of another period")
        columns = [c + b for c, b in zip(columns, before.columns, strict=True)]
    must(all(abs(c) <= 2047 for c in columns), "a column's class")
    return columns


# --- Payload of a block --------------------------------------------------------------------------


def decode_scale(payload: bytes, sections: list[Section], first: int, n: int) -> list[bytes]:
    """Return the planes of a block of `n` items, the first of which is number `first`."""
    keys = decode_keys(payload, sections, first, n)
    if KEY_BITS[sections[0].dtype] == 8:
        return [bytes(keys)]
    return [bytes(key >> 8 for key in keys), bytes(key & 255 for key in keys)]


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
    decoder = RangeDecoder(rows)
    offset = AdaptiveInteger(decoder).read()
    row, run, period = AdaptiveInteger(decoder), section.run, section.period
    n_runs = (first + n - 1) // run - first // run + 1 if run else 0
    classes = [row.read() for _ in range(n_runs)]
    must(all(abs(c) <= 2047 for c in classes), "a row's class")

    def scale(i: int) -> int:
        s = section.base + offset
        if run:
            s += classes[i // run - first // run] << section.row_step
        if period:
            s += section.columns[i % period] << section.column_step
        return clamp(s, 0, largest_scale(section.dtype))

    return [scale(i) for i in range(first, first + n)]
