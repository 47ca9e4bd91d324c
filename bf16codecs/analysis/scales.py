"""The scales of a matrix's rows and columns: root mean squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._base.half import from_bfloat16
from bf16codecs.analysis.statistics import Spread

__all__ = ["PieceSums", "ScaleSums", "Scales"]

# The squares of this many values stay in the cache.
_BATCH_ITEMS = 1 << 16
# FP64 numbers are scaled so that the largest has this exponent: then sums of 2**60 squares are
# finite, and squares of numbers that are 2**-1000 as large are not zero.
_LARGEST = 480
# The exponent of a piece that is all zero, below that of any number.
_LOWEST = -2000


@dataclass(frozen=True)
class Scales:
    """Spread of the root mean squares of rows, and of columns, in octaves (logarithms to base 2).

    Attributes
    ----------
    rows, columns : Spread or None
        The spread over all rows or columns that are not all zero; None if all of them are. A
        deviation of 0 means that all have one scale, so that coding by scales gains nothing.
    zero_rows, zero_columns : int
        The number of rows and columns that are all zero.
    not_finite : int
        The number of values that are infinite or NaN, which the scales leave out.
    """

    rows: Spread | None
    columns: Spread | None
    zero_rows: int
    zero_columns: int
    not_finite: int


class ScaleSums:
    """Sums of squares along both axes of a tensor, as a matrix of rows along the last axis."""

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._columns = np.zeros((2, rows)), np.zeros((2, columns))
        self._exponent = _LOWEST
        self._not_finite = 0

    def add(self, start: int, squares: PieceSums) -> None:
        """Add a piece, whole rows or a part of one; `start` is the index of its first value."""
        if squares.exponent > self._exponent:
            for sums, _ in (self._rows, self._columns):
                sums[:] = np.ldexp(sums, 2 * (self._exponent - squares.exponent))
            self._exponent = squares.exponent
        down = 2 * (squares.exponent - self._exponent)
        row, column = divmod(start, self._columns.shape[1])
        n_rows, n_columns = squares.rows.size, squares.columns.size
        rows = self._rows[:, row : row + n_rows]
        rows += [np.ldexp(squares.rows, down), np.full(n_rows, n_columns)]
        columns = self._columns[:, column : column + n_columns]
        columns += [np.ldexp(squares.columns, down), np.full(n_columns, n_rows)]
        self._not_finite += squares.not_finite

    def scales(self) -> Scales:
        """Return the spreads of the root mean squares."""
        rows, zero_rows = _spread(self._exponent, *self._rows)
        columns, zero_columns = _spread(self._exponent, *self._columns)
        return Scales(rows, columns, zero_rows, zero_columns, self._not_finite)


@dataclass(frozen=True)
class PieceSums:
    """Sums of squares of a piece's rows and of its columns, of values divided by 2**`exponent`."""

    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    not_finite: int
    exponent: int

    @classmethod
    def of(cls, values: NDArray[Any]) -> PieceSums:
        """Return the sums of floating-point numbers, which have shape (rows, columns)."""
        height, width = values.shape
        rows, columns, not_finite = np.zeros(height), np.zeros(width), 0
        batch = max(1, _BATCH_ITEMS // max(1, width))
        # The squares of other dtypes fit float64.
        is_double = values.dtype == np.float64
        exponent = _exponent(values) if is_double else 0
        for at in range(0, height, batch):
            numbers = _float32(values[at : at + batch]).astype(np.float64)
            if is_double:
                numbers = np.ldexp(numbers, -exponent)
            squares = numbers * numbers
            sums = squares.sum(1)
            if not np.isfinite(sums).all():
                is_finite = np.isfinite(numbers)
                not_finite += int(np.count_nonzero(~is_finite))
                squares[~is_finite] = 0
                sums = squares.sum(1)
            rows[at : at + batch] = sums
            columns += squares.sum(0)
        return cls(rows, columns, not_finite, exponent)


def _float32(values: NDArray[Any]) -> NDArray[Any]:
    """Return BF16 numbers as FP32, and others unchanged: ml_dtypes takes twenty times as long."""
    return from_bfloat16(values).view(np.float32) if values.dtype.name == "bfloat16" else values


def _exponent(values: NDArray[np.float64]) -> int:
    """Return the power of two by which to divide values."""
    most = np.abs(values).max(initial=0, where=np.isfinite(values))
    return int(np.frexp(most)[1]) - _LARGEST if most else _LOWEST


def _spread(
    exponent: int, sums: NDArray[np.float64], items: NDArray[np.float64]
) -> tuple[Spread | None, int]:
    """Return the spread of logarithms of root mean squares, and the number of zeros."""
    seen = sums[items > 0] / items[items > 0]
    positive = seen[seen > 0]
    return Spread.of(0.5 * np.log2(positive) + exponent), seen.size - positive.size
