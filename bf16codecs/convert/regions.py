"""Regions of files that are not safetensors files: names of tensors, and the bytes between them.

Sources find the tensors, and this makes sure that they have names of their own and do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from bf16codecs._base.dtypes import DTYPE_BITS
from bf16codecs.convert.places import FileBytes
from bf16codecs.store.outline import Layout, Outline, Region, make_outline

__all__ = ["MOST_NAMES", "Names", "flat_region", "free_parts", "outline_of", "without_overlaps"]

#: Names of tensors that are not shown, and further names of one tensor, each of which is compared
#: with the others when the store is read.
MOST_NAMES = 1000
# Bytes that are worth an array of their own: fewer are kept with the outline.
_WORTH_AN_ARRAY = 1 << 12


class Names:
    """Names that were given; of equal ones, the later have a number."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._next: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """Return a name that was not given yet."""
        found = name
        while found in self._given:
            number = self._next[name] = self._next.get(name, 1) + 1
            found = f"{name}#{number}"
        self._given.add(found)
        return found


def without_overlaps(regions: Iterable[Region]) -> list[Region]:
    """Return regions that do not overlap, by offset; of two that do, the larger one."""
    kept: list[Region] = []
    for region in sorted(regions, key=lambda region: (region.offset, region.stop)):
        while kept and kept[-1].stop > region.offset:
            if region.nbytes <= kept[-1].nbytes:
                break
            kept.pop()
        else:
            kept.append(region)
    return kept


def free_parts(
    regions: Iterable[Region], ranges: Iterable[tuple[int, int, str]]
) -> list[tuple[int, int, str]]:
    """Return the parts of ranges that are in no region, and worth an array.

    Ranges are in order, each with a key. What several of them have belongs to the first.
    """
    taken = iter(sorted((region.offset, region.stop) for region in regions))
    found, at, (begin, end) = [], 0, next(taken, (math.inf, math.inf))
    for start, stop, key in ranges:
        at = max(at, start)
        while at < stop:
            while end <= at:
                begin, end = next(taken, (math.inf, math.inf))
            until = int(min(stop, max(begin, at)))
            if until - at >= _WORTH_AN_ARRAY:
                found.append((at, until, key))
            at = until if until == stop else int(min(end, stop))
    return found


def flat_region(name: str, dtype: str, start: int, stop: int) -> Region:
    """Return a region of one dimension; of bytes if it does not have whole items."""
    item = DTYPE_BITS[dtype] // 8
    if item == 0 or (stop - start) % item:
        dtype, item = "U8", 1
    return Region(name, dtype, ((stop - start) // item,), start)


def outline_of(file: FileBytes, kind: str, layout: Layout, names: Names) -> Outline:
    """Return the outline of a file.

    Bytes that are in no region become tensors of bytes, if they are worth an array.
    """
    for start, stop, _ in free_parts(layout.regions, [(0, file.size, "")]):
        name = names.unique(f"bytes {start}")
        layout.regions.append(flat_region(name, "U8", start, stop))
        layout.parts.append(name)
    return make_outline(kind, file.size, layout, file.read)
