"""Makes models and payloads of the scale mode from any numbers that a test gives."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from makers.grids import GridNumbers, GridWriter, RangeEncoder, Writer
from reference_grid import FRACTION_BITS, KEY_BITS
from reference_model import Section, block_scales, symbols_of


@dataclass
class Numbers(GridNumbers):
    """The numbers of a section as they are written, unchecked."""

    zero: int = 0
    escape_less_1: int = 40
    differences: list[int] = field(default_factory=lambda: [0] * 44)

    def section(self, dtype: int, before: Section | None = None) -> Section:
        """Return the section that a decoder reads from them."""
        heights = list(accumulate(self.differences))
        return Section(*self.grid(dtype, before), self.zero, self.escape_less_1 + 1, heights)


def write_model(sections: Sequence[Numbers]) -> bytes:
    encoder = RangeEncoder()
    grids, frequency, curve = GridWriter(encoder), Writer(encoder), Writer(encoder)
    for numbers in sections:
        grids.write_numbers(numbers)
        frequency.write(numbers.zero)
        frequency.write(numbers.escape_less_1)
        for difference in numbers.differences:
            curve.write(difference)
        grids.write_columns(numbers)
    return encoder.finish()


def long_period_model(period: int, size: int) -> bytes:
    """Return a model of `size` bytes whose first section has `period` columns.

    All numbers but the period are 0. A decoder takes every bit as 1 as long as its code is the
    lowest possible, and zeros after the period keep it so.
    """
    encoder = RangeEncoder()
    length = Writer(encoder)
    for half in (0, 0, period >> 15, period & 0x7FFF):
        length.write(half)
    return (bytes(encoder.data) + encoder.low.to_bytes(4, "big")).ljust(size, b"\0")


def scale_payload(keys: Sequence[int], section: Section, first: int, rows: bytes) -> bytes:
    """Code the keys of a block in the scale mode."""
    n = len(keys)
    scales = block_scales(rows, section, first, n)
    coded = 4 * (n // 4) - 8
    x = [1 << 32 | keys[coded + 2 * lane + 1] << 16 | keys[coded + 2 * lane] for lane in range(4)]
    words = []
    for i in reversed(range(coded)):
        lane, table = i % 4, section.tables[scales[i] % 16]
        s, r = find_symbol(keys[i], section, scales[i])
        f, raw = table[s], symbols_of(section.dtype)[s].raw
        if x[lane] >= f << (51 - raw):
            words.append(x[lane] & 0xFFFFFFFF)
            x[lane] >>= 32
        state = x[lane] << raw | r
        x[lane] = (state // f << 12) + sum(table[:s]) + state % f
    rest = struct.pack(f"<{n - coded - 8}H", *keys[coded + 8 :])
    body = struct.pack(f"<4Q{len(words)}I", *x, *reversed(words))
    return len(rows).to_bytes(2, "little") + rows + body + rest


def find_symbol(key: int, section: Section, scale: int) -> tuple[int, int]:
    """Return a symbol that has a frequency, and the raw bits, for a key."""
    symbols, table = symbols_of(section.dtype), section.tables[scale % 16]
    origin = scale // 16 << FRACTION_BITS[section.dtype]
    if key == 0 and table[-2]:
        return len(symbols) - 2, 0
    for s, symbol in enumerate(symbols[:-2]):
        r = (key - origin - symbol.base) % (1 << KEY_BITS[section.dtype])
        if table[s] and r >> symbol.raw == 0:
            return s, r
    return len(symbols) - 1, key
