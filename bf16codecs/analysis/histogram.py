"""Histograms of values, from the counts of 16-bit words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._base.half import from_bfloat16
from bf16codecs.analysis.counts import Counts

__all__ = ["Histogram"]

_BINS = 81
# This share of the values may lie outside on either side: otherwise a few outliers would squeeze
# all others into one bin.
_TAIL = 0.0005
_MOST = 8e307


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins of equal width.

    Attributes
    ----------
    least, width : float
        The lower edge of the first bin, and the width of each. Bins are no narrower than the
        distance between adjacent numbers of the dtype: otherwise some would always be empty.
    counts : tuple of int
        The number of values in each bin.
    below, above : int
        The number of values below the first and above the last bin.
    not_finite : int
        The number of values that are infinite or NaN.
    """

    least: float
    width: float
    counts: tuple[int, ...]
    below: int
    above: int
    not_finite: int

    @classmethod
    def of(cls, item: np.dtype[Any], counts: Counts) -> Histogram | None:
        """Return the histogram of counted values, or of their most significant 16 bits.

        Parameters
        ----------
        item : numpy.dtype
            The dtype of the values.
        counts : Counts
            Counts of the values.

        Returns
        -------
        Histogram or None
            None if no value is finite, and for complex numbers.
        """
        if item.kind == "c":
            return None
        order, values, step = _ordered_values(item)
        words = counts.words()
        is_there = words[order] > 0
        values, step, occurring = values[is_there], step[is_there], words[order[is_there]]
        total = np.cumsum(occurring)
        if not total.size:
            return None
        not_finite = int(words.sum() - total[-1])
        ends = [_TAIL * float(total[-1]), (1 - _TAIL) * float(total[-1])]
        first, last = np.searchsorted(total, ends).tolist()
        low, high = float(values[first]), float(values[last])
        finest = float(step[first : last + 1].max())
        width = max(1, math.ceil((high - low) / (_BINS - 1) / finest)) * finest
        start = low - width / 2
        count = int((high - start) // width) + 1
        with np.errstate(over="ignore"):  # far outside
            bins = np.clip(np.floor((values - start) / width), -1, count).astype(np.int64)
        inside = (bins >= 0) & (bins < count)
        found = np.bincount(bins[inside], occurring[inside], count)
        below, above = occurring[bins < 0].sum(), occurring[bins >= count].sum()
        return cls(start, width, tuple(map(int, found)), int(below), int(above), not_finite)


@lru_cache(maxsize=8)
def _ordered_values(
    item: np.dtype[Any],
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Return words of finite values in ascending order, the values, and distances to the next."""
    values, step = _values(item)
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    return order, values[order], step[order]


def _values(item: np.dtype[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the value of each word, and its distance to the next number."""
    words = np.arange(256 if item.itemsize == 1 else 65536, dtype=np.uint16)
    if item.itemsize == 1:
        numbers = words.astype(np.uint8).view(item)
    elif item.name == "bfloat16":
        numbers = from_bfloat16(words).view(np.float32)
    else:  # the most significant word of each
        wide = np.zeros((words.size, item.itemsize // 2), np.uint16)
        wide[:, -1] = words
        numbers = wide.view(item.newbyteorder("<"))[:, 0]
    with np.errstate(invalid="ignore"):  # signalling NaNs and infinities
        values = numbers.astype(np.float64)
        gaps = np.abs(np.diff(values, prepend=np.nan, append=np.nan))
    if item.kind in "biu":
        gaps[:] = 256.0 ** max(0, item.itemsize - 2)
    # The distance to the number of the next larger word; from the largest finite one, to the one
    # before it.
    step = np.where(np.isfinite(gaps[1:]), gaps[1:], gaps[:-1])
    # Distances between the largest numbers of float64 would overflow.
    return np.where(np.isfinite(values), np.clip(values, -_MOST, _MOST), values), step
