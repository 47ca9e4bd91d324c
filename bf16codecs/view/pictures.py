"""Pictures of tensors: values of a view's cells, computed from the blocks that they touch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bf16codecs._base.half import from_bfloat16
from bf16codecs._base.messages import one_line
from bf16codecs.convert.damages import NO_DAMAGE
from bf16codecs.errors import BF16CodecsError
from bf16codecs.model.tensor import LazyTensor
from bf16codecs.view.sheets import Sheet, View

__all__ = ["CHANGES", "NOTHING", "NOT_FINITE", "SHOWN", "SOUND", "UNREADABLE", "Picture", "picture"]

#: States of a cell: sound; with infinite or NaN values; without values that could be read; beyond
#: the end of a wrapped tensor of one dimension.
SOUND, NOT_FINITE, UNREADABLE, NOTHING = 0, 1, 2, 3
#: Quantities that a picture can show of one tensor, and of a pair.
SHOWN = ("value", "magnitude", "largest")
CHANGES = ("difference", "changed")

Values = NDArray[np.float64]

# Items that are read at a time: those of two tensors, with copies as float64, take 100 MB.
_BATCH_ITEMS = 1 << 20
# The most items whose digits and bits a picture has.
_MOST_TEXTS = 1 << 16


@dataclass
class Picture:
    """The values in the cells of a view."""

    #: Depending on the quantity: means of values, root mean squares, largest absolute values, means
    #: of differences, or the part of the values that differs.
    cells: NDArray[np.float32]
    #: `SOUND`, `NOT_FINITE`, `UNREADABLE` or `NOTHING` for each cell.
    states: NDArray[np.uint8]
    #: Root mean squares of the cells' rows, and of their columns.
    row_scales: NDArray[np.float32]
    column_scales: NDArray[np.float32]
    #: Reasons why values could not be read.
    errors: list[str] = field(default_factory=list)
    #: If cells are single items, and not too many: the digits of each item or difference, and its
    #: bits as hexadecimal digits, for a pair of tensors those of both.
    texts: list[str] | None = None
    bits: list[str] | None = None


class _Reading:
    """The items of a tensor in some rows and columns of its sheet."""

    def __init__(self, tensor: LazyTensor, rows: NDArray[np.int64], columns: range) -> None:
        self._tensor, self._columns = tensor, columns
        self._sheet = Sheet(tensor.shape)
        self.items = np.zeros((rows.size, len(columns)), tensor.dtype)
        ends = self._sheet.size - rows * self._sheet.columns
        #: Masks of the items that the tensor has, and of those that could be read.
        self.exist = np.arange(columns.start, columns.stop) < ends[:, None]
        self.is_read = self.exist.copy()
        self.errors: list[str] = []
        self._read(rows, 0)

    def _read(self, rows: NDArray[np.int64], at: int) -> None:
        """Read rows, except damaged ones, which halving isolates."""
        try:
            self._put(rows, self.items[at : at + rows.size])
        except NO_DAMAGE:
            raise
        except BF16CodecsError as e:
            if rows.size == 1:
                self.is_read[at] = False
                self.errors.append(one_line(e))
                return
            middle = rows.size // 2
            self._read(rows[:middle], at)
            self._read(rows[middle:], at + middle)

    def _put(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        tensor, columns = self._tensor, slice(self._columns.start, self._columns.stop)
        if not tensor.shape:
            out[...] = tensor[...]
        elif tensor.ndim == 1:
            for row, target in zip(rows.tolist(), out, strict=True):
                start = row * self._sheet.columns
                found = tensor[start + columns.start : start + columns.stop]
                target[: found.size] = found
        else:
            for leading, matrix_rows, target_rows in self._parts(rows):
                out[target_rows] = tensor[(*leading, matrix_rows, columns)]

    def _parts(
        self, rows: NDArray[np.int64]
    ) -> Sequence[tuple[tuple[int, ...], NDArray[np.int64], slice]]:
        """Split rows by matrix: its leading indices, rows of it, and where `rows` has them."""
        shape = self._tensor.shape
        outer, inner = np.divmod(rows, shape[-2])
        starts = [0, *(np.flatnonzero(np.diff(outer)) + 1).tolist(), rows.size]
        parts = [slice(a, b) for a, b in itertools.pairwise(starts)]
        leading = [np.unravel_index(int(outer[p.start]), shape[:-2]) for p in parts]
        return [
            (tuple(map(int, index)), inner[part], part)
            for index, part in zip(leading, parts, strict=True)
        ]


def picture(view: View, show: str, tensor: LazyTensor, other: LazyTensor | None = None) -> Picture:
    """Read the items of a view, and compute its cells: a quantity of `SHOWN` or `CHANGES`.

    Raises BF16CodecsError if metadata are damaged; the picture's `errors` list damaged chunks.
    """
    sums = _Sums(view)
    errors = dict[str, None]()
    for rows, columns in _batches(view):
        readings = [_Reading(t, rows, columns) for t in (tensor, other) if t is not None]
        # As for differences, the other tensor is rounded to BF16 or widened to FP32.
        items = [reading.items.astype(tensor.dtype, copy=False) for reading in readings]
        is_read = np.logical_and.reduce([reading.is_read for reading in readings])
        shown, scaled = _SHOWS[show](items)
        sums.add(rows, columns, _Values(shown, scaled, readings[0].exist, is_read))
        errors.update(dict.fromkeys(error for reading in readings for error in reading.errors))
    found = sums.picture(show, list(errors))
    if view.is_exact and view.items <= _MOST_TEXTS:
        found.texts = _digits(items[0] if other is None else shown)
        found.bits = _bits(items)
    return found


def _batches(view: View) -> Iterator[tuple[NDArray[np.int64], range]]:
    """Yield rows and columns to read together, few enough to bound memory."""
    for span in view.spans():
        for columns in (span[at : at + _BATCH_ITEMS] for at in range(0, len(span), _BATCH_ITEMS)):
            each = max(1, _BATCH_ITEMS // len(columns))
            for at in range(0, view.rows.size, each):
                yield view.rows[at : at + each], columns


def _numbers(items: NDArray[Any]) -> Values:
    """Return numbers as float64; bfloat16 by way of float32, which is 20 times as fast."""
    if items.dtype.name == "bfloat16":
        items = from_bfloat16(items).view(np.float32)
    elif items.dtype.kind == "c":
        items = np.abs(items)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return items.astype(np.float64)


def _values(items: Sequence[NDArray[Any]]) -> tuple[Values, Values]:
    values = _numbers(items[0])
    return values, values


def _difference(items: Sequence[NDArray[Any]]) -> tuple[Values, Values]:
    new, old = map(_numbers, items)
    with np.errstate(invalid="ignore"):  # of infinities
        moved = new - old
    return moved, moved


def _changed(items: Sequence[NDArray[Any]]) -> tuple[Values, Values]:
    new, old = (array.view(f"u{min(array.itemsize, 8)}") for array in items)
    differs = (new != old).reshape(*items[0].shape, -1).any(-1)
    return differs.astype(np.float64), _difference(items)[0]


# Functions that return the values to show in cells, and the values whose scales are shown.
_SHOWS: dict[str, Callable[[Sequence[NDArray[Any]]], tuple[Values, Values]]] = {
    **dict.fromkeys(SHOWN, _values),
    "difference": _difference,
    "changed": _changed,
}


class _Values(NamedTuple):
    """Values to add up, to show and for scales, with masks of those that exist and are read."""

    shown: Values
    scaled: Values
    exist: NDArray[np.bool_]
    are_read: NDArray[np.bool_]


class _Sums:
    """Sums in the cells of a view."""

    def __init__(self, view: View) -> None:
        self._view = view
        shape = len(view.row_edges) - 1, len(view.column_edges) - 1
        self._total, self._squares, self._most = np.zeros((3, *shape))
        self._exist, self._read, self._finite = np.zeros((3, *shape), np.int64)

    def add(self, rows: NDArray[np.int64], columns: range, values: _Values) -> None:
        """Add the values in some rows and columns."""
        # The first of the rows, and of the columns, in each cell that has any.
        row_cells = np.searchsorted(self._view.row_edges, rows, "right") - 1
        row_starts = np.flatnonzero(np.diff(row_cells, prepend=-1))
        edges = self._view.column_edges
        first = int(np.searchsorted(edges, columns.start, "right")) - 1
        last = int(np.searchsorted(edges, columns.stop, "left"))
        column_starts = np.maximum(edges[first:last] - columns.start, 0)
        touched = row_cells[row_starts], slice(first, last)

        def cells(function: np.ufunc, items: Any) -> Any:
            by_column = function.reduceat(items, column_starts, axis=1)
            return function.reduceat(by_column, row_starts, axis=0)

        is_finite = values.are_read & np.isfinite(values.scaled)
        scaled = np.where(is_finite, values.scaled, 0)
        shown = np.where(values.are_read & np.isfinite(values.shown), values.shown, 0)
        with np.errstate(over="ignore"):
            self._squares[touched] += cells(np.add, scaled * scaled)
        self._most[touched] = np.maximum(self._most[touched], cells(np.maximum, np.abs(scaled)))
        self._total[touched] += cells(np.add, shown)
        self._exist[touched] += cells(np.add, values.exist.astype(np.int64))
        self._read[touched] += cells(np.add, values.are_read.astype(np.int64))
        self._finite[touched] += cells(np.add, is_finite.astype(np.int64))

    def picture(self, show: str, errors: list[str]) -> Picture:
        """Return the picture of the sums."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            if show == "magnitude":
                cells = np.sqrt(self._squares / self._finite)
            elif show == "largest":
                cells = np.where(self._finite > 0, self._most, np.nan)
            else:
                cells = self._total / (self._read if show == "changed" else self._finite)
            rows, columns = (
                np.sqrt(self._squares.sum(axis) / self._finite.sum(axis)).astype(np.float32)
                for axis in (1, 0)
            )
            cells = cells.astype(np.float32)
        states = np.where(self._finite < self._read, NOT_FINITE, SOUND)
        states[self._read == 0] = UNREADABLE
        states[self._exist == 0] = NOTHING
        shown = errors[:3] + ([f"and {len(errors) - 3} more"] if len(errors) > 3 else [])
        return Picture(cells, states.astype(np.uint8), rows, columns, shown)


def _digits(items: NDArray[Any]) -> list[str]:
    """Return the digits of items, as many as distinguish adjacent numbers."""
    flat = items.reshape(-1)
    if flat.dtype.kind in "iu" or (flat.dtype.kind in "fc" and flat.dtype.itemsize > 2):
        return [str(number) for number in flat]
    return [f"{number:.4g}" for number in flat.astype(np.float64)]


def _bits(items: Sequence[NDArray[Any]]) -> list[str]:
    """Return the bits of items; for a pair of tensors, the bits of both."""
    bits = []
    for array in items:
        raw = array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize)
        bits.append([item.tobytes().hex() for item in raw[:, ::-1]])  # the most significant first
    return [" was ".join(both) for both in zip(*bits, strict=True)]
