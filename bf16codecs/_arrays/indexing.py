"""NumPy's indexing in two steps: a box to read, and a selection from it.

A selection is read as a box (ascending indices along each axis), to which NumPy applies a second
selection; where several integer arrays pick points, those points are read.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Axis",
    "Box",
    "Points",
    "Segment",
    "as_index",
    "count_chunks",
    "cut_box",
    "cut_range",
    "parse_selection",
]

#: Ascending indices along an axis.
Axis = range | NDArray[np.intp]


class Box(NamedTuple):
    """Indices to read along each axis, and the selection to apply to the resulting box."""

    axes: list[Axis]
    then: tuple[Any, ...]


class Segment(NamedTuple):
    """The indices along an axis that one chunk holds."""

    chunk: int
    #: Indices in the chunk.
    indices: Axis
    #: Their positions among all indices of the axis.
    positions: slice


class Points(NamedTuple):
    """Indices of single elements, one array for each axis, all of the shape of the result."""

    indices: list[NDArray[np.intp]]


def parse_selection(selection: Any, shape: tuple[int, ...]) -> Box | Points:
    """Parse the selection of ``array[selection]``; raise IndexError with NumPy's messages."""
    items = [_normalized(item) for item in _as_tuple(selection)]
    if not shape:
        _view(shape)[tuple(items)]  # NumPy raises its error
        return Box([], tuple(items))
    arrays = [item for item in items if isinstance(item, np.ndarray)]
    if len(arrays) > 1 or any(item.dtype == bool and item.ndim != 1 for item in arrays):
        return _points(tuple(items), shape)
    given = sum(item is not None and item is not Ellipsis for item in items)
    ellipses = sum(item is Ellipsis for item in items)
    if given > len(shape) or ellipses > 1:
        _view(shape)[tuple(items)]  # NumPy raises its error
    axes: list[Axis] = []
    then: list[Any] = []
    for item in items if ellipses else [*items, Ellipsis]:
        if item is None:
            then.append(None)
        elif item is Ellipsis:
            axes += map(range, shape[len(axes) : len(axes) + len(shape) - given])
            then.append(Ellipsis)
        else:
            axis, rest = _axis(item, shape[len(axes)], len(axes))
            axes.append(axis)
            then.append(rest)
    if not ellipses:
        then.pop()  # with integers alone, an ellipsis would make an array of a scalar
    return Box(axes, tuple(then))


def _as_tuple(selection: Any) -> tuple[Any, ...]:
    return selection if isinstance(selection, tuple) else (selection,)


def _normalized(item: Any) -> Any:
    """Return an index as an integer, a slice, None, Ellipsis, or an array."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    # A PyTorch tensor of one item is also an integer: NumPy would take even masks for one.
    if not isinstance(item, (bool, list, tuple)) and not hasattr(item, "__array__"):
        try:
            return operator.index(item)
        except TypeError:
            pass
    array = np.asarray(item)
    if array.ndim == 0 and array.dtype.kind in "iu":
        return int(array)
    if array.size == 0 and not isinstance(item, np.ndarray):
        array = array.astype(np.intp)
    if array.dtype.kind not in "iub":
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or"
            " boolean arrays are valid indices"
        )
    return array


def _axis(item: int | slice | NDArray[Any], size: int, axis: int) -> tuple[Axis, Any]:
    """Return the indices to read along an axis, and the selection to apply to them."""
    if isinstance(item, int):
        position = item + size if item < 0 else item
        if not 0 <= position < size:
            raise IndexError(f"index {item} is out of bounds for axis {axis} with size {size}")
        return range(position, position + 1), 0
    if isinstance(item, slice):
        indices = range(*item.indices(size))
        if indices.step > 0:
            return indices, slice(None)
        return indices[::-1], slice(None, None, -1)
    if item.dtype == bool:
        if len(item) != size:
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis}; size of axis is"
                f" {size} but size of corresponding boolean axis is {len(item)}"
            )
        item = item.nonzero()[0]
    unique, inverse = np.unique(_wrapped(item, size, axis), return_inverse=True)
    return unique, inverse.reshape(item.shape)


def _wrapped(item: NDArray[Any], size: int, axis: int) -> NDArray[np.intp]:
    """Return integer indices along an axis, counted from its beginning."""
    wanted = item.astype(np.intp)
    outside = (wanted < -size) | (wanted >= size)
    if outside.any():
        index = wanted[outside].flat[0]
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {size}")
    return wanted % max(1, size)


def _points(items: tuple[Any, ...], shape: tuple[int, ...]) -> Points:
    arrays = [np.asarray(item) for item in items if isinstance(item, (int, np.ndarray))]
    if len(arrays) == len(items) == len(shape) and all(a.dtype.kind in "iu" for a in arrays):
        wrapped = [
            _wrapped(a, size, i) for i, (a, size) in enumerate(zip(arrays, shape, strict=True))
        ]
        with suppress(ValueError):  # below, NumPy raises its error
            return Points(list(np.broadcast_arrays(*wrapped)))
    # With slices and masks, NumPy selects from all indices.
    indices = []
    for axis, size in enumerate(shape):
        along = np.arange(size, dtype=np.intp).reshape(-1, *(1,) * (len(shape) - axis - 1))
        indices.append(np.asarray(np.broadcast_to(along, shape)[items]))
    return Points(indices)


def _view(shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of this shape that takes no memory."""
    return np.broadcast_to(np.zeros((), np.int8), shape)


def cut_box(axes: Sequence[Axis], chunks: Sequence[int]) -> Iterator[tuple[Segment, ...]]:
    """Cut a box at the ends of chunks, one after the other: there may be any number."""
    if not axes:
        yield ()
        return
    for first in _cut_axis(axes[0], chunks[0]):
        for rest in cut_box(axes[1:], chunks[1:]):
            yield (first, *rest)


def _cut_axis(axis: Axis, chunk: int) -> Iterator[Segment]:
    """Cut the indices along an axis at the ends of chunks."""
    if isinstance(axis, range):
        start, step = axis.start, axis.step
        done = 0
        while done < len(axis):
            number = axis[done] // chunk
            count = min(len(axis), -(-((number + 1) * chunk - start) // step))
            offset = number * chunk
            part = range(axis[done] - offset, axis[count - 1] - offset + 1, step)
            yield Segment(number, part, slice(done, count))
            done = count
        return
    numbers = axis // chunk
    bounds = np.r_[0, np.flatnonzero(np.diff(numbers)) + 1, len(axis)].tolist()
    for first, last in itertools.pairwise(bounds if len(axis) else []):
        number = int(numbers[first])
        yield Segment(number, axis[first:last] - number * chunk, slice(first, last))


def cut_range(shape: Sequence[int], first: int, last: int) -> Iterator[list[range]]:
    """Cut consecutive items of an array, in C order, into boxes: at most two for each axis.

    Examples
    --------
    >>> list(cut_range((4, 10), 7, 35))
    [[range(0, 1), range(7, 10)], [range(1, 3), range(0, 10)], [range(3, 4), range(0, 5)]]
    """
    if first == last:
        return
    if not shape:
        yield []
        return
    row = math.prod(shape[1:])
    (i, begin), (j, end) = divmod(first, row), divmod(last, row)
    if begin:
        rest = cut_range(shape[1:], begin, end if i == j else row)
        yield from ([range(i, i + 1), *axes] for axes in rest)
        i += 1
    if i < j:
        yield [range(i, j), *map(range, shape[1:])]
    if end and i <= j:
        yield from ([range(j, j + 1), *axes] for axes in cut_range(shape[1:], 0, end))


def as_index(axis: Axis, offset: int = 0) -> slice | NDArray[np.intp]:
    """Return the NumPy index of these indices in an array that begins at index `offset`."""
    if isinstance(axis, range):
        return slice(axis.start - offset, axis.stop - offset, axis.step)
    return axis - offset if offset else axis


def count_chunks(axis: Axis, chunk: int) -> int:
    """Return how many chunks the ascending indices along an axis are in."""
    if len(axis) == 0:
        return 0
    if isinstance(axis, range):
        return min(len(axis), axis[-1] // chunk - axis[0] // chunk + 1)
    return 1 + int(np.count_nonzero(np.diff(axis // chunk)))
