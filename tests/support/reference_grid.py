"""Common parts of the reference decoder's two models: keys, adaptive numbers and grids.

Written from docs/format_scale.md alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_planes import must

SECTION = 1 << 22
KEY_BITS = [16, 16, 16, 16, 8, 8]  # of dtype 0 ... 5
FRACTION_BITS = [8, 11, 8, 5, 4, 3]
CLASS_LIMIT = 2047


def clamp(x: int, low: int, high: int) -> int:
    return max(low, min(x, high))


def planes_of(keys: list[int], dtype: int) -> list[bytes]:
    """Return the planes, one or two, that keys are made of."""
    if KEY_BITS[dtype] == 8:
        return [bytes(keys)]
    return [bytes(key >> 8 for key in keys), bytes(key & 255 for key in keys)]


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


# --- Grids ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """The numbers from which the scales of a section's items follow."""

    dtype: int
    run: int
    period: int
    base: int
    row_step: int
    column_step: int
    columns: list[int]


def largest_scale(dtype: int) -> int:
    return (16 << KEY_BITS[dtype] - FRACTION_BITS[dtype]) - 1


class GridReader:
    """Reads the grids of a frame's sections; its adaptive integers last from one to the next."""

    def __init__(self, decoder: RangeDecoder, dtype: int, n_items: int, size: int) -> None:
        self.dtype = dtype
        self.n_items = n_items
        self.size = size  # of the model
        self.length, self.base, self.step, self.column = (
            AdaptiveInteger(decoder) for _ in range(4)
        )
        self.n_columns = 0
        self.before: tuple[int, list[int]] | None = None  # period and columns

    def read_numbers(self, begin: int) -> tuple[int, int, int, int, int, int]:
        """Return dtype, run, period, base and steps of the section that begins at an item."""
        run, period = self.read_length(), self.read_length()
        must(period <= min(SECTION, self.n_items - begin), "more columns than items")
        base = self.base.read()
        must(0 <= base <= largest_scale(self.dtype), "a section's scale")
        row_step, column_step = self.step.read(), self.step.read()
        must(0 <= row_step <= 3 and 0 <= column_step <= 3, "a step")
        return self.dtype, run, period, base, row_step, column_step

    def read_length(self) -> int:
        high, low = self.length.read(), self.length.read()
        must(0 <= high < 1 << 15 and 0 <= low < 1 << 15, "a half of a length")
        value = (high << 15) + low
        must(value == 0 or value >= 16, "a run or period below 16")
        return value

    def read_columns(self, period: int) -> list[int]:
        self.n_columns += period
        must(self.n_columns <= 1024 * (self.size + 4), "too many columns")
        before, self.before = self.before, (period, [])
        if period == 0:
            return []
        change = self.step.read()
        must(change in (0, 1), "change")
        columns = [self.column.read() for _ in range(period)]
        if change:
            must(before is not None and before[0] == period, "change of another period")
            columns = [c + b for c, b in zip(columns, before[1], strict=True)]
        must(all(abs(c) <= CLASS_LIMIT for c in columns), "a column's class")
        self.before = (period, columns)
        return columns


def row_terms(rows: bytes, grid: Grid, first: int, n: int) -> list[int]:
    """Return the sum of base, offset and row for each item of a block."""
    decoder = RangeDecoder(rows)
    base = grid.base + AdaptiveInteger(decoder).read()
    if grid.run == 0:
        return [base] * n
    row, before = AdaptiveInteger(decoder), first // grid.run
    classes = [row.read() for _ in range((first + n - 1) // grid.run - before + 1)]
    must(all(abs(c) <= CLASS_LIMIT for c in classes), "a row's class")
    return [
        base + (classes[i // grid.run - before] << grid.row_step) for i in range(first, first + n)
    ]


def column_terms(grid: Grid, first: int, n: int) -> list[int]:
    if grid.period == 0:
        return [0] * n
    return [grid.columns[i % grid.period] << grid.column_step for i in range(first, first + n)]
