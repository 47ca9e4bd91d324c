"""Writes adaptive numbers, grids and rows: the common parts of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reference_grid import AdaptiveInteger, Bit, Grid, largest_scale


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
    """The encoder's side of an adaptive integer."""

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
class GridNumbers:
    """The numbers of a section's grid as they are written, unchecked."""

    run: tuple[int, int] = (0, 0)
    period: tuple[int, int] = (0, 0)
    base: int = 16 * 121
    steps: tuple[int, int] = (0, 0)
    change: int = 0
    columns: list[int] = field(default_factory=list)

    def grid(self, dtype: int, before: Grid | None = None) -> tuple:
        """Return the fields of the grid that a decoder reads from them."""
        columns = self.columns
        if self.change:
            columns = [a + b for a, b in zip(columns, before.columns, strict=True)]
        run, period = ((high << 15) + low for high, low in (self.run, self.period))
        return dtype, run, period, self.base, *self.steps, columns


class GridWriter:
    def __init__(self, encoder: RangeEncoder) -> None:
        self.length, self.base, self.step, self.column = (Writer(encoder) for _ in range(4))

    def write_numbers(self, numbers: GridNumbers) -> None:
        for half in (*numbers.run, *numbers.period):
            self.length.write(half)
        self.base.write(numbers.base)
        for value in numbers.steps:
            self.step.write(value)

    def write_columns(self, numbers: GridNumbers) -> None:
        if numbers.period != (0, 0):
            self.step.write(numbers.change)
            for value in numbers.columns:
                self.column.write(value)


def write_rows(offset: int = 0, classes: Sequence[int] = ()) -> bytes:
    encoder = RangeEncoder()
    Writer(encoder).write(offset)
    row = Writer(encoder)
    for value in classes:
        row.write(value)
    return encoder.finish()


#: Numbers that are refused in the first section of 50 items or more of bfloat16.
REFUSED_GRIDS: list[dict[str, Any]] = [
    {"run": (0, 15)},
    {"run": (0, 1)},
    {"run": (1, -1)},
    {"run": (0, 1 << 15)},
    {"run": (1 << 15, 0)},
    {"run": (-1, 0)},
    {"period": (0, 15), "columns": [0] * 15},
    {"period": (0, -5)},
    {"period": (32767, 32767)},
    {"period": (1, 0)},
    {"base": -1},
    {"base": largest_scale(0) + 1},
    {"steps": (4, 0)},
    {"steps": (0, 4)},
    {"steps": (-1, 0)},
    {"steps": (0, -1)},
    {"period": (0, 16), "columns": [2048, *[0] * 15]},
    {"period": (0, 16), "columns": [*[0] * 15, -2048]},
    {"period": (0, 16), "columns": [*[0] * 15, 500_000]},
]
