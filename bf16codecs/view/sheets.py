"""Tensors as sheets of rows and columns, and the items that a picture reads of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bf16codecs._base.cached import cached_property

__all__ = ["Region", "Sheet", "View", "parsed_count"]

# Tensors of one dimension with more items than this are wrapped.
_LONGEST_ROW = 1024
# A picture with fewer rows would show too little: instead, rows are read in part.
_LEAST_ROWS = 16


@dataclass(frozen=True)
class Sheet:
    """A tensor as a sheet of rows, which lie along its last axis.

    A long tensor of one dimension is wrapped; its last row may be shorter.
    """

    shape: tuple[int, ...]

    @property
    def is_wrapped(self) -> bool:
        """Whether the rows are parts of the only axis."""
        return len(self.shape) == 1 and self.shape[0] > _LONGEST_ROW

    @cached_property
    def columns(self) -> int:
        """Items of a row."""
        if self.is_wrapped:
            return 1 << math.isqrt(self.shape[0] - 1).bit_length()
        return self.shape[-1] if self.shape else 1

    @cached_property
    def rows(self) -> int:
        """The number of rows."""
        if self.is_wrapped:
            return -(-self.shape[0] // self.columns)
        return math.prod(self.shape[:-1])

    @property
    def size(self) -> int:
        """The number of items."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Region:
    """A part of a sheet: its rows and columns."""

    rows: range
    columns: range

    @classmethod
    def of(cls, sheet: Sheet, rows: str | None, columns: str | None) -> Region:
        """Parse rows and columns such as ``"0:512"``; None and "" stand for all of them."""
        return cls(_parsed("rows", rows, sheet.rows), _parsed("columns", columns, sheet.columns))


def parsed_count(text: str) -> int | None:
    """Parse a number of up to 18 digits; return None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _parsed(what: str, text: str | None, size: int) -> range:
    if not text:
        return range(size)
    first, last = (parsed_count(part) for part in text.partition(":")[::2])
    if first is None or last is None:
        raise ValueError(f"{what} must be like 0:512, not {text!r:.80}")
    found = range(min(first, size), min(last, size))
    if size and not found:
        raise ValueError(f"{what} {text}: there are {size}")
    return found


@dataclass(frozen=True)
class View:
    """The items of a region that are read to draw it in a limited number of cells.

    A cell stands for one item or several. Of several, all items are read, or some rows, or parts of
    some rows, so that the time to decode them stays within a budget.
    """

    sheet: Sheet
    region: Region
    #: The largest number of cells along each axis.
    height: int
    width: int
    item_size: int
    #: The approximate number of bytes that may be read.
    budget: int
    #: The cost of a single item in bytes, since its whole block is decoded.
    block_nbytes: int

    @cached_property
    def row_edges(self) -> NDArray[np.int64]:
        """The first row of each row of cells, and the end of the last one."""
        return _edges(self.region.rows, min(self.height, self._affordable_rows))

    @cached_property
    def column_edges(self) -> NDArray[np.int64]:
        """The first column of each column of cells, and the end of the last one."""
        most = self.width
        if not self._has_whole_rows:
            most = min(most, self.budget // self.block_nbytes // self.rows.size)
        return _edges(self.region.columns, most)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The rows that are read, in order: equally many in each cell, evenly spread."""
        if self._affordable_rows >= len(self.region.rows):
            return np.arange(self.region.rows.start, self.region.rows.stop)
        starts, sizes = self.row_edges[:-1], np.diff(self.row_edges)
        each = max(1, self._affordable_rows // starts.size)
        parts = (np.arange(each) + 0.5) / each
        return np.unique(starts[:, None] + (parts * sizes[:, None]).astype(np.int64))

    def spans(self) -> Iterator[range]:
        """Yield the columns that are read: all of the region's, or a part of each cell."""
        if self._has_whole_rows:
            yield self.region.columns
            return
        edges = self.column_edges.tolist()
        for first, last in itertools.pairwise(edges):
            yield range(first, min(last, first + max(1, self.block_nbytes // self.item_size)))

    @property
    def items(self) -> int:
        """The number of items that are read."""
        return self.rows.size * sum(map(len, self.spans()))

    @property
    def is_whole(self) -> bool:
        """Whether all items are read."""
        return self.items == len(self.region.rows) * len(self.region.columns)

    @property
    def is_exact(self) -> bool:
        """Whether each cell is a single item."""
        cells = (self.row_edges.size - 1) * (self.column_edges.size - 1)
        return self.is_whole and self.items == cells

    @property
    def _has_whole_rows(self) -> bool:
        return self._row_cost * min(_LEAST_ROWS, len(self.region.rows)) <= self.budget

    @property
    def _row_cost(self) -> int:
        return len(self.region.columns) * self.item_size + self.block_nbytes

    @property
    def _affordable_rows(self) -> int:
        # The blocks of some rows also have the items between them, so few rows may cost as much as
        # all.
        whole = len(self.region.rows) * self.sheet.columns * self.item_size
        least = _LEAST_ROWS if whole > self.budget else len(self.region.rows)
        return max(least, self.budget // self._row_cost)


def _edges(indices: range, most: int) -> NDArray[np.int64]:
    cells = max(1, min(len(indices), most))
    return indices.start + np.arange(cells + 1) * len(indices) // cells
