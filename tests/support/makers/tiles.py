"""Makes tile models and payloads of tiles from any numbers that a test gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise

from makers.grids import GridNumbers, GridWriter, RangeEncoder, Writer, write_rows
from makers.lanes import pack_payload, put
from reference_grid import KEY_BITS, Bit, Grid
from reference_planes import LOWEST_STATE
from reference_tile_tables import (
    ESCAPE,
    GAUSSIAN_HI,
    GAUSSIAN_LO,
    LARGEST_N,
    TOTAL,
    Table,
    alias_slots,
    gaussian_tables,
    table_of,
)
from reference_tiles import (
    LANES,
    RECORD,
    TileSection,
    TilesPayload,
    coded_items,
    largest_interval,
    raw_bits,
    size_of_last_states,
    steps_of,
    tile_scales,
)

Intervals = list[tuple[int, int]]  # n and f of each

# --- The tile model ------------------------------------------------------------------------------


NO_CHANGES = [0] * ESCAPE


@dataclass
class TileNumbers(GridNumbers):
    """The numbers of a section as they are written, unchecked.

    The forms 0 and 1 have changes; 2 and 3 have lo, hi and tables.
    """

    form: int = 2
    escape: int = 1  # its frequency
    changes: list[list[int]] = field(default_factory=lambda: [NO_CHANGES])
    lo: int = 1
    hi: int = 2
    tables: list[Intervals] = field(default_factory=lambda: [[(0, TOTAL - 1)]])

    @property
    def is_gaussian(self) -> bool:
        return self.form < 2

    def section(self, dtype: int, before: Grid | None = None) -> TileSection:
        """Return the section that a decoder reads from them."""
        if self.is_gaussian:
            lo, hi, tables = GAUSSIAN_LO, GAUSSIAN_HI, gaussian_tables(self.changes, self.escape)
        else:
            lo, hi, tables = self.lo, self.hi, [self.table(intervals) for intervals in self.tables]
        return TileSection(*self.grid(dtype, before), self.form, lo, hi, tables)

    def table(self, intervals: Intervals) -> Table:
        bases = accumulate((1 << n for n, _ in intervals), initial=self.lo)
        places = [(base, n) for base, (n, _) in zip(bases, intervals, strict=False)]
        return table_of(places, [f for _, f in intervals], self.escape)


class IntervalWriter:
    def __init__(self, encoder: RangeEncoder) -> None:
        self.encoder = encoder
        self.split = [Bit() for _ in range(LARGEST_N + 1)]

    def write(self, lo: int, hi: int, sizes: Sequence[int]) -> None:
        left = list(reversed(sizes))
        a = lo
        while a < hi:
            n = largest_interval(a, hi)
            self.write_part(n, left)
            a += 1 << n

    def write_part(self, n: int, left: list[int]) -> None:
        is_split = bool(left) and left[-1] < n
        if n > 0:
            self.encoder.bit(self.split[n], int(is_split))
        if is_split:
            self.write_part(n - 1, left)
            self.write_part(n - 1, left)
        elif left:
            left.pop()


class TableWriter:
    def __init__(self, encoder: RangeEncoder) -> None:
        self.span, self.frequency, self.change = (Writer(encoder) for _ in range(3))
        self.intervals = IntervalWriter(encoder)

    def write(self, numbers: TileNumbers) -> None:
        self.span.write(numbers.form)
        self.frequency.write(numbers.escape - 1)
        if numbers.is_gaussian:
            for changes in numbers.changes:
                write_differences(self.change, changes)
            return
        self.span.write(numbers.lo - 1)
        self.span.write(numbers.hi - numbers.lo - 1)
        for table in numbers.tables:
            self.intervals.write(numbers.lo, numbers.hi, [n for n, _ in table])
            write_differences(self.frequency, [f >> (n == LARGEST_N) for n, f in table])


def write_differences(writer: Writer, values: Sequence[int]) -> None:
    for before, value in pairwise([0, *values]):
        writer.write(value - before)


def write_tile_model(sections: Sequence[TileNumbers]) -> bytes:
    encoder = RangeEncoder()
    grids, tables = GridWriter(encoder), TableWriter(encoder)
    for numbers in sections:
        grids.write_numbers(numbers)
        grids.write_columns(numbers)
        tables.write(numbers)
    return encoder.finish()


# --- Payload of a block --------------------------------------------------------------------------


@lru_cache(maxsize=64)
def slots_of(f: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """Return the slot of an entry and a rank."""
    return {found: slot for slot, found in enumerate(alias_slots(f))}


@lru_cache(maxsize=64)
def entries_of(table: Table) -> list[int]:
    """Return the entry of every symbol; those that have none are the escape's."""
    entries = [ESCAPE] * 256
    for j in range(ESCAPE):
        if table.f[j]:
            entries[table.base[j] : table.base[j] + (1 << table.n[j])] = [j] * (1 << table.n[j])
    return entries


def symbol_of(key: int, scale: int, section: TileSection, wraps: bool) -> int:
    """Return the symbol of a key, 0 if it has none.

    With `wraps`, keys past the end of the range have symbols as well.
    """
    v = (key >> raw_bits(section.dtype)) - 8 * (scale // 16) + 208
    if wraps:
        v %= 1 << KEY_BITS[section.dtype] - raw_bits(section.dtype)
    return v if section.lo <= v < section.hi else 0


def join_record(raw: Sequence[int], n_bits: int) -> bytes:
    """Return the record of the raw bits of 64 items."""
    odd, record = n_bits % 4, b""
    for k in range(n_bits // 4):
        nibbles = [bits >> odd + 4 * k & 15 for bits in raw]
        record += bytes(nibbles[i] | nibbles[i + 32] << 4 for i in range(32))
    for k in range(odd):
        part = sum((bits >> k & 1) << i for i, bits in enumerate(raw))
        record += part.to_bytes(8, "little")
    return record


def code_tiles(
    keys: Sequence[int],
    section: TileSection,
    first: int = 0,
    rows: bytes | None = None,
    log2_groups: int = 0,
    *,
    escaped: Collection[int] = (),
    wraps: bool = False,
    change_raw: Mapping[int, int] | None = None,
    change_last: Mapping[int, int] | None = None,
) -> TilesPayload:
    """Code the keys of a block.

    `escaped` are items that are escapes although they need not be. `change_raw` has bits of items'
    raw bits, and `change_last` bits of lanes' last states, to invert.
    """
    dtype, groups = section.dtype, 1 << log2_groups
    rows = write_rows() if rows is None else rows
    n_bits, m = raw_bits(dtype), coded_items(len(keys), groups)
    scales = tile_scales(rows, section, first, len(keys))[:m]
    symbols = [
        0 if i in escaped else symbol_of(keys[i], scales[i], section, wraps) for i in range(m)
    ]
    raw = [key % (1 << n_bits) for key in keys[:m]]
    for i, change in (change_raw or {}).items():
        raw[i] ^= change
    records = b"".join(join_record(raw[at : at + RECORD], n_bits) for at in range(0, m, RECORD))
    stored = len(records) - size_of_last_states(len(records), groups)
    x = [LOWEST_STATE] * (LANES * groups)
    for lane in range((len(records) - stored) // 2):
        x[lane] += int.from_bytes(records[stored + 2 * lane :][:2], "little")
    for lane, change in (change_last or {}).items():
        x[lane] ^= change
    words = code_symbols(symbols, scales, section, x)
    escapes = [keys[i] for i in range(m) if symbols[i] == 0]
    return TilesPayload(rows, groups, x, records[:stored], escapes, list(keys[m:]), words)


def code_symbols(
    symbols: list[int], scales: list[int], section: TileSection, x: list[int]
) -> list[int]:
    """Take the lanes from their last states to their first, and return the words."""
    words = []
    groups = len(x) // LANES
    for t, (table, items) in reversed(list(enumerate(steps_of(scales, section)))):
        slots, entries = slots_of(table.f), entries_of(table)
        for lane, item in reversed(list(enumerate(items, start=t % groups * LANES))):
            j, state = entries[symbols[item]], x[lane]
            number = symbols[item] - table.base[j]
            below, rank = put(state, table.f[j], table.n[j], number, words)
            x[lane] = below + slots[j, rank]
    return words[::-1]


def tiles_payload(keys: Sequence[int], section: TileSection, *args, **options) -> bytes:
    """Code the keys of a block in tiles, as `code_tiles` does."""
    return pack_payload(code_tiles(keys, section, *args, **options), KEY_BITS[section.dtype] // 8)
