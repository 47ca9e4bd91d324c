"""Which bytes of a chunk a selection touches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.stored import Range

__all__ = ["touched_ranges"]

_Axis = range | NDArray[np.intp]


def touched_ranges(
    selection: Any, shape: tuple[int, ...], item_size: int, gap: int, base: int = 0
) -> list[Range]:
    """Find the bytes that hold the elements of ``array[selection]``.

    The answer may have a byte too many and never one too few: the selection itself is left to
    NumPy, over an array in which the other bytes are undefined.

    Parameters
    ----------
    selection : tuple
        Integers, slices and integer arrays, as zarr hands them to partial decoding.
    shape : tuple of int
        Shape of the array, in C order.
    item_size : int
        Bytes of an item.
    gap : int
        Fewer bytes than these between two ranges do not part them. So there are never more ranges
        than times that the array has so many bytes, and one more.
    base : int
        Where the array begins.

    Returns
    -------
    list of (int, int)
        Ascending.

    Examples
    --------
    >>> touched_ranges((slice(10, 12), slice(None)), (100, 64), 2, 1024)
    [(1280, 1536)]
    >>> touched_ranges(([0, 99],), (100, 64), 2, 1024)
    [(0, 128), (12672, 12800)]
    """
    selection = selection if isinstance(selection, tuple) else (selection,)
    if _is_coordinates(selection, shape):
        starts = _coordinate_starts(selection, shape, item_size)
        stops = starts + item_size
    else:
        starts, stops = _orthogonal_spans(_axes(selection, shape), shape, item_size, gap)
    return _joined(starts + base, stops + base, gap)


def _is_coordinates(selection: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    """Return whether integer arrays of one shape select single items."""
    shapes = {np.shape(s) for s in selection if isinstance(s, np.ndarray) and s.dtype.kind in "iu"}
    return (
        len(selection) == len(shape) > 1
        and len(shapes) == 1
        and all(isinstance(s, np.ndarray) for s in selection)
    )


def _coordinate_starts(
    selection: tuple[NDArray[Any], ...], shape: tuple[int, ...], item_size: int
) -> NDArray[np.intp]:
    offsets = np.zeros(selection[0].size, np.intp)
    for index, length in zip(selection, shape, strict=True):
        offsets *= length
        offsets += index.ravel() % length
    return np.unique(offsets) * item_size


def _axes(selection: tuple[Any, ...], shape: tuple[int, ...]) -> list[_Axis]:
    """Return the indices that the selection uses on each axis: maybe too many, never too few."""
    if any(s is Ellipsis for s in selection):
        at = next(i for i, s in enumerate(selection) if s is Ellipsis)
        fill = (slice(None),) * (len(shape) - len(selection) + 1)
        selection = selection[:at] + fill + selection[at + 1 :]
    selection += (slice(None),) * (len(shape) - len(selection))
    if len(selection) != len(shape):  # boolean arrays of several dimensions, or new axes
        return [range(length) for length in shape]
    return [_axis(s, length) for s, length in zip(selection, shape, strict=True)]


def _axis(selection: Any, length: int) -> _Axis:
    if isinstance(selection, slice):
        indices = range(*selection.indices(length))
        return indices if indices.step > 0 else indices[::-1]
    index = np.asarray(selection)
    if index.dtype.kind == "b":
        return index.nonzero()[0] if index.ndim == 1 else range(length)
    if index.dtype.kind not in "iu":
        return range(length)
    return np.unique(index % length)


def _orthogonal_spans(
    axes: list[_Axis], shape: tuple[int, ...], item_size: int, gap: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return byte ranges, ascending, that cover the selected items.

    From the last axis to the first, every index repeats the ranges of the axes after it. Where an
    axis steps by at most `gap`, one range covers neighbouring indices and what is between them.
    """
    starts, stops = np.zeros(1, np.intp), np.full(1, item_size, np.intp)
    stride = item_size
    for axis, length in zip(reversed(axes), reversed(shape), strict=True):
        if len(axis) == 0:
            return starts[:0], stops[:0]
        if stride <= gap:
            first, last = _runs_of_indices(axis, gap // stride)
            starts, stops = first * stride + starts[0], last * stride + stops[-1]
        else:
            offsets = np.asarray(axis, np.intp)[:, np.newaxis] * stride
            starts, stops = (offsets + starts).ravel(), (offsets + stops).ravel()
        stride *= length
    return starts, stops


def _runs_of_indices(axis: _Axis, gap: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return first and last index of each run in which neighbours differ by at most `gap`."""
    if isinstance(axis, range) and (axis.step <= gap or len(axis) == 1):
        return np.array([axis[0]], np.intp), np.array([axis[-1]], np.intp)
    indices = np.asarray(axis, np.intp)
    breaks = np.flatnonzero(np.diff(indices) > gap)
    return indices[np.r_[0, breaks + 1]], indices[np.r_[breaks, len(indices) - 1]]


def _joined(starts: NDArray[np.intp], stops: NDArray[np.intp], gap: int) -> list[Range]:
    """Return the ranges, with those joined that are closer than `gap`."""
    if len(starts) == 0:
        return []
    is_first = np.r_[True, starts[1:] - stops[:-1] >= gap]
    last = np.r_[np.flatnonzero(is_first)[1:] - 1, len(stops) - 1]
    return list(zip(starts[is_first].tolist(), stops[last].tolist(), strict=True))
