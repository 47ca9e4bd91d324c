"""The tiles of the reference decoder, written from docs/format_tiles.md alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from reference_grid import (
    FRACTION_BITS,
    KEY_BITS,
    SECTION,
    AdaptiveInteger,
    Bit,
    Grid,
    GridReader,
    RangeDecoder,
    clamp,
    column_terms,
    largest_scale,
    planes_of,
    row_terms,
)
from reference_planes import LOWEST_STATE, Reader, must
from reference_tile_tables import (
    CHANGE_LIMIT,
    ESCAPE,
    GAUSSIAN_HI,
    GAUSSIAN_LO,
    LARGEST_N,
    TOTAL,
    Table,
    classes_of,
    gaussian_tables,
    table_of,
)

TILE = 8192
LANES = 32  # of a group
RECORD = 64  # items

# --- The tile model ------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileSection(Grid):
    """The numbers from which a section's scales and tables follow, one table for each class."""

    form: int
    lo: int
    hi: int
    tables: list[Table]


class IntervalReader:
    """Reads the intervals of tables; its adaptive bits last from one to the next."""

    def __init__(self, decoder: RangeDecoder) -> None:
        self.decoder = decoder
        self.split = [Bit() for _ in range(LARGEST_N + 1)]  # the first is not used

    def read(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Return base and n of the intervals that cover a range."""
        found: list[tuple[int, int]] = []
        a = lo
        while a < hi:
            n = largest_interval(a, hi)
            self.read_part(a, n, found)
            a += 1 << n
        return found

    def read_part(self, a: int, n: int, found: list[tuple[int, int]]) -> None:
        if n > 0 and self.decoder.bit(self.split[n]):
            self.read_part(a, n - 1, found)
            self.read_part(a + (1 << n - 1), n - 1, found)
        else:
            must(len(found) < ESCAPE, "too many intervals")
            found.append((a, n))


def largest_interval(a: int, hi: int) -> int:
    """Return the n of the largest interval that may begin at a symbol."""
    return max(n for n in range(LARGEST_N + 1) if a % (1 << n) == 0 and a + (1 << n) <= hi)


class TableReader:
    """Reads the tables of sections; its adaptive integers and bits last from one to the next."""

    def __init__(self, decoder: RangeDecoder) -> None:
        self.span, self.frequency, self.change = (AdaptiveInteger(decoder) for _ in range(3))
        self.intervals = IntervalReader(decoder)

    def read(self) -> tuple[int, int, int, list[Table]]:
        """Return form, lo, hi and tables of a section."""
        form = self.span.read()
        must(0 <= form <= 3, "the form")
        escape = self.frequency.read() + 1
        must(1 <= escape <= 4095, "the frequency of the escape")
        if form < 2:
            changes = [self.read_changes() for _ in range(classes_of(form))]
            return form, GAUSSIAN_LO, GAUSSIAN_HI, gaussian_tables(changes, escape)
        lo = self.span.read() + 1
        must(1 <= lo <= 255, "the lowest symbol")
        hi = self.span.read() + lo + 1
        must(lo < hi <= 256, "the end of the symbols")
        tables = [self.read_table(lo, hi, escape) for _ in range(classes_of(form))]
        return form, lo, hi, tables

    def read_changes(self) -> list[int]:
        changes = list(accumulate(self.change.read() for _ in range(ESCAPE)))
        must(all(abs(change) <= CHANGE_LIMIT for change in changes), "a change")
        return changes

    def read_table(self, lo: int, hi: int, escape: int) -> Table:
        found = self.intervals.read(lo, hi)
        halves = list(accumulate(self.frequency.read() for _ in found))
        must(all(1 <= half <= 4095 for half in halves), "a frequency")
        f = [half << (n == LARGEST_N) for half, (_, n) in zip(halves, found, strict=True)]
        must(sum(f) + escape == TOTAL, "the sum of frequencies")
        return table_of(found, f, escape)


def read_tile_model(side: bytes, dtype: int, n_items: int) -> list[TileSection]:
    """Read the sections of a frame's model."""
    decoder = RangeDecoder(side)
    grids, tables = GridReader(decoder, dtype, n_items, len(side)), TableReader(decoder)
    sections = []
    for begin in range(0, n_items, SECTION):
        numbers = grids.read_numbers(begin)
        columns = grids.read_columns(period=numbers[2])
        sections.append(TileSection(*numbers, columns, *tables.read()))
    return sections


# --- Scales, symbols and classes -----------------------------------------------------------------


def tile_scales(rows: bytes, section: Grid, first: int, n: int) -> list[int]:
    largest = largest_scale(section.dtype)
    terms = zip(row_terms(rows, section, first, n), column_terms(section, first, n), strict=True)
    return [clamp(clamp(row, 0, largest) + column, 0, largest) for row, column in terms]


def raw_bits(dtype: int) -> int:
    return FRACTION_BITS[dtype] - 3


def key_of(v: int, raw: int, scale: int, dtype: int) -> int:
    key = (v + 8 * (scale // 16) - 208 << raw_bits(dtype)) + raw
    return key % (1 << KEY_BITS[dtype])


def class_of(scale: int, section: TileSection) -> int:
    return scale % 16 // 4 if len(section.tables) == 4 else 0


def coded_items(n: int, groups: int) -> int:
    """Return the number m of the items of a block that lanes code."""
    return n - n % max(RECORD, LANES * groups)


def tiles_of(m: int) -> int:
    """Return the number of tiles of so many coded items."""
    return max(1, (m + TILE // 2) // TILE)


def steps_of(scales: list[int], section: TileSection) -> list[tuple[Table, list[int]]]:
    """Return the table of every step, and the items that its lanes code, in the lanes' order."""
    m = len(scales)
    n_tiles = tiles_of(m)
    classes = [class_of(scale, section) for scale in scales]
    places = [2 * lane if lane < 16 else 2 * (lane - 16) + 1 for lane in range(LANES)]
    steps = []
    for tile in range(n_tiles):
        end = m if tile == n_tiles - 1 else (tile + 1) * TILE
        order = sorted(range(tile * TILE, end), key=classes.__getitem__)  # it is stable
        for at in range(0, len(order), LANES):
            table = section.tables[classes[order[at + 16]]]
            steps.append((table, [order[at + place] for place in places]))
    return steps


# --- Records -------------------------------------------------------------------------------------


def split_record(record: bytes, n_bits: int) -> list[int]:
    """Return the raw bits of the 64 items of a record."""
    reader, odd = Reader(record), n_bits % 4
    raw = [0] * RECORD
    for k in range(n_bits // 4):
        for i, byte in enumerate(reader.take(32)):
            raw[i] |= byte % 16 << odd + 4 * k
            raw[i + 32] |= byte // 16 << odd + 4 * k
    for k in range(odd):
        part = reader.number(8)
        for i in range(RECORD):
            raw[i] |= (part >> i & 1) << k
    return raw


def size_of_last_states(size: int, groups: int) -> int:
    """Return how many bytes of records of that size are in the lanes' last states."""
    return 64 * groups if size >= 64 * groups else 0


# --- Payload of a block --------------------------------------------------------------------------


@dataclass
class TilesPayload:
    """The fields of a payload; the last states are not among them."""

    rows: bytes
    groups: int
    states: list[int]
    records: bytes
    escapes: list[int]
    rest: list[int]
    words: list[int] = field(repr=False)


def read_payload(payload: bytes, dtype: int, n: int) -> TilesPayload:
    reader = Reader(payload)
    rows = reader.take(reader.number(2))
    head = reader.number(1)
    must(head < 3, "log2 G is above 2, or one of bits 2-7 is set")
    groups = 1 << head
    m = coded_items(n, groups)
    must(m > 0, "a block too short for its lanes")
    n_escapes = reader.number(4)
    states = read_states(reader, groups)
    size = m // RECORD * 8 * raw_bits(dtype)
    records = reader.take(size - size_of_last_states(size, groups))
    width = KEY_BITS[dtype] // 8
    must(n_escapes * width <= reader.left, "more escapes than bytes")
    escapes = [reader.number(width) for _ in range(n_escapes)]
    rest = [reader.number(width) for _ in range(n - m)]
    must(reader.left % 2 == 0, "words of an odd number of bytes")
    words = [reader.number(2) for _ in range(reader.left // 2)]
    return TilesPayload(rows, groups, states, records, escapes, rest, words)


def read_states(reader: Reader, groups: int) -> list[int]:
    lengths = [b for byte in reader.take(16 * groups) for b in (byte % 16, byte // 16)]
    low = [reader.number(2) for _ in lengths]
    bits = reader.number(-(-sum(lengths) // 8))
    states = []
    for b, x in zip(lengths, low, strict=True):
        states.append(((1 << b | bits % (1 << b)) << 16) + x)
        bits >>= b
    must(bits == 0, "an unused bit of the first states")
    return states


def decode_tiles(payload: bytes, sections: list[TileSection], first: int, n: int) -> list[bytes]:
    """Return the planes of a block of `n` items, the first of which is number `first`."""
    section = sections[first // SECTION]
    dtype = section.dtype
    parts = read_payload(payload, dtype, n)
    m = coded_items(n, parts.groups)
    scales = tile_scales(parts.rows, section, first, n)[:m]
    symbols, last = run_lanes(parts, scales, section)

    size = m // RECORD * 8 * raw_bits(dtype)
    if size_of_last_states(size, parts.groups):
        must(all(x >> 16 == 1 for x in last), "a last state")
        parts.records += b"".join((x % (1 << 16)).to_bytes(2, "little") for x in last)
    else:
        must(all(x == LOWEST_STATE for x in last), "a last state")
    length = 8 * raw_bits(dtype)
    raw = [
        bits
        for at in range(m // RECORD)
        for bits in split_record(parts.records[at * length :][:length], raw_bits(dtype))
    ]
    must(symbols.count(0) == len(parts.escapes), "the number of escapes")
    escapes = iter(parts.escapes)
    keys = [
        key_of(v, r, scale, dtype) if v else next(escapes)
        for v, r, scale in zip(symbols, raw, scales, strict=True)
    ]
    return planes_of(keys + parts.rest, dtype)


def run_lanes(
    parts: TilesPayload, scales: list[int], section: TileSection
) -> tuple[list[int], list[int]]:
    """Return the symbol of each item, and the lanes' last states."""
    symbols, x = [0] * len(scales), list(parts.states)
    words = iter(parts.words)
    for t, (table, items) in enumerate(steps_of(scales, section)):
        slots = table.slots
        for lane, item in enumerate(items, start=t % parts.groups * LANES):
            j, rank = slots[x[lane] % TOTAL]
            state = table.f[j] * (x[lane] // TOTAL) + rank
            n = table.n[j]
            symbols[item] = table.base[j] + state % (1 << n)
            state >>= n
            if state < LOWEST_STATE:
                word = next(words, None)
                must(word is not None, "the words end before the symbols do")
                state = (state << 16) + word
            x[lane] = state
    must(next(words, None) is None, "words are left over")
    return symbols, x
