"""Where the items of a box are in the bytes of an array, and how to copy them elsewhere."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product

from bf16codecs._base.device_memory import Rows

__all__ = ["Layout", "copies"]


@dataclass(frozen=True)
class Layout:
    """Where the items of a box are in the bytes of an array in C order.

    Attributes
    ----------
    item_size : int
        Bytes of an item.
    shape : tuple of int
        Of the box.
    steps : tuple of int
        Bytes from one item to the next along each axis.
    offset : int
        Of the first item.
    """

    item_size: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, shape: Sequence[int], item_size: int) -> Layout:
        """Return that of a whole array."""
        steps = accumulate(reversed(shape), operator.mul, initial=item_size)
        return cls(item_size, tuple(shape), tuple(steps)[-2::-1])

    @property
    def span(self) -> int:
        """How many bytes there are from the first item to the end of the last; there are items."""
        sizes = zip(self.shape, self.steps, strict=True)
        return sum((size - 1) * step for size, step in sizes) + self.item_size

    @property
    def is_run(self) -> bool:
        """Whether the items are one run of bytes."""
        return self.span == math.prod(self.shape) * self.item_size

    def part(self, place: Sequence[slice]) -> Layout:
        """Return that of a part, given by slices that have their first item and their end."""
        at = sum(p.start * step for p, step in zip(place, self.steps, strict=True))
        shape = tuple(p.stop - p.start for p in place)
        return replace(self, shape=shape, offset=self.offset + at)


def copies(to: Layout, source: Layout) -> Iterator[tuple[int, int, Rows]]:
    """Yield what copies a box, in as few steps as it takes.

    Yields
    ------
    to, source : int
        Where the first row goes, and where it is.
    rows : Rows
        The rows.
    """
    axes = _joined_axes(to, source)
    nbytes = to.item_size
    if axes and axes[-1][1:] == (nbytes, nbytes):
        nbytes *= axes.pop()[0]
    rows = Rows(nbytes, *(axes.pop() if axes else (1, nbytes, nbytes)))
    for index in product(*(range(size) for size, _, _ in axes)):
        there = sum(i * step for i, (_, step, _) in zip(index, axes, strict=True))
        here = sum(i * step for i, (_, _, step) in zip(index, axes, strict=True))
        yield to.offset + there, source.offset + here, rows


def _joined_axes(to: Layout, source: Layout) -> list[tuple[int, int, int]]:
    """Return the size of each axis and its steps in both, where neighbours may be one."""
    axes: list[tuple[int, int, int]] = []
    for size, there, here in zip(to.shape, to.steps, source.steps, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1:] == (size * there, size * here):
            axes[-1] = (axes[-1][0] * size, there, here)
        else:
            axes.append((size, there, here))
    return axes
