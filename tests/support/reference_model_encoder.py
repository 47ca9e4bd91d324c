"""Builds models and blocks of the scale mode by hand, whatever numbers a test asks for."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from reference_model import (
    FRACTION_BITS,
    KEY_BITS,
    AdaptiveInteger,
    Bit,
    Section,
    block_scales,
    symbols_of,
)


class RangeEncoder:
    def __init__(self) -> None:
        self.data = bytearray()
        self.low, self.high = 0, 2**32 - 1

    def bit(self, model: Bit, bit: int) -> None:
        middle = self.low + ((self.high - self.low) * model.p >> 16)
        if bit:
            self.high = middle
        else:
            self.low = middle + 1
        while self.low >> 24 == self.high >> 24:
            self.data.append(self.low >> 24)
            self.low = self.low << 8 & 0xFFFFFFFF
            self.high = self.high << 8 & 0xFFFFFFFF | 255
        model.update(bit)

    def finish(self) -> bytes:
        return bytes(self.data) + self.high.to_bytes(4, "big")


class Writer(AdaptiveInteger):
    """An adaptive integer that is written."""

    def __init__(self, encoder: RangeEncoder) -> None:
        super().__init__(decoder=None)
        self.encoder = encoder

    def write(self, value: int) -> None:
        bit = self.encoder.bit
        bit(self.zero, int(value == 0))
        if value == 0:
            return
        bit(self.sign, int(value < 0))
        n = abs(value).bit_length() - 1
        for position in range(n):
            bit(self.width[position], 1)
        if n < 19:
            bit(self.width[n], 0)
        node = 1
        for position in reversed(range(n)):
            low = abs(value) >> position & 1
            bit(self.tree[min(n, 4)][node] if node < 16 else Bit(), low)
            node = 2 * node + low


@dataclass
class Numbers:
    """The numbers of a section as they are written, unchecked."""

    run: tuple[int, int] = (0, 0)
    period: tuple[int, int] = (0, 0)
    base: int = 16 * 121
    steps: tuple[int, int] = (0, 0)
    zero: int = 0
    escape_less_1: int = 40
    differences: list[int] = field(default_factory=lambda: [0] * 44)
    change: int = 0
    columns: list[int] = field(default_factory=list)

    def section(self, dtype: int, before: Section | None = None) -> Section:
        """Return the section that a decoder reads from them."""
        columns = self.columns
        if self.change:
            columns = [a + b for a, b in zip(columns, before.columns, strict=True)]
        run, period = ((high << 15) + low for high, low in (self.run, self.period))
        heights = list(accumulate(self.differences))
        zero, escape = self.zero, self.escape_less_1 + 1
        return Section(dtype, run, period, self.base, *self.steps, zero, escape, heights, columns)


def write_model(sections: Sequence[Numbers]) -> bytes:
    encoder = RangeEncoder()
    length, base, step, frequency, column, curve = (Writer(encoder) for _ in range(6))
    for numbers in sections:
        for half in (*numbers.run, *numbers.period):
            length.write(half)
        base.write(numbers.base)
        for value in numbers.steps:
            step.write(value)
        frequency.write(numbers.zero)
        frequency.write(numbers.escape_less_1)
        for difference in numbers.differences:
            curve.write(difference)
        if numbers.period != (0, 0):
            step.write(numbers.change)
            for value in numbers.columns:
                column.write(value)
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


def write_rows(offset: int = 0, classes: Sequence[int] = ()) -> bytes:
    encoder = RangeEncoder()
    Writer(encoder).write(offset)
    row = Writer(encoder)
    for value in classes:
        row.write(value)
    return encoder.finish()


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
