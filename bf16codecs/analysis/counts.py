"""Counting the symbols of tensors, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._base.buffers import Bytes

__all__ = ["BLOCK_BYTES", "NEIGHBOURS", "PLANES", "Counts"]

#: Size of the blocks whose entropies are computed one by one, as in LMC.
BLOCK_BYTES = 1 << 16
#: The neighbours that predict a value: the value before it, and the one above it in its column.
NEIGHBOURS = ("left", "upper")
#: The predicted bytes: the most significant one, and that of the value rotated left by one bit,
#: which is the exponent of BF16 and FP32.
PLANES = ("high byte", "exponent byte")

Words = NDArray[np.uint16]


class Counts:
    """Counts of values: of the items' 16-bit words, their bytes, and pairs of those."""

    def __init__(self, item_size: int) -> None:
        self.item_size = item_size
        self._counts: dict[Any, NDArray[np.uint64]] = {}
        #: The number of counted items, and of items that were compared with a base's.
        self.items = self.compared = 0
        #: The number of compared items that differ.
        self.changed = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels between processes: of a small tensor, few counts are not 0."""
        sparse = {}
        for key, counts in self._counts.items():
            found = np.flatnonzero(counts)
            sparse[key] = counts.size, found, counts[found]
        return {**self.__dict__, "_counts": sparse}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._counts = {}
        for key, (size, indices, values) in state["_counts"].items():
            self._counts[key] = np.zeros(size, np.uint64)
            self._counts[key][indices] = values

    def __iadd__(self, other: Counts) -> Counts:
        self.items += other.items
        self.compared += other.compared
        self.changed += other.changed
        for key, counts in other._counts.items():
            if key in self._counts:
                self._counts[key] += counts
            else:
                self._counts[key] = counts.copy()
        return self

    def add(self, data: Bytes, above: Bytes) -> None:
        """Count a piece's values; `above` has the row above each, fewer at the top."""
        self.items += data.size // self.item_size
        for word in range(max(1, self.item_size // 2)):
            self._count_words(("word", word), data)
        self._count("pairs", data, 0, 1)
        top = _top(data, self.item_size)
        if self.item_size > 1:
            self._add_neighbours("left", top[1:], top[:-1])
            upper = _top(above, self.item_size)
            self._add_neighbours("upper", top[top.size - upper.size :], upper)

    def add_change(self, data: Bytes, base: Bytes, is_float: bool) -> None:
        """Count the differences between a piece and the same piece of a base.

        Floats have a sign and a magnitude; other items are subtracted modulo their range.
        """
        unsigned = f"<u{self.item_size}"
        new, old = data.view(unsigned), base.view(unsigned)
        flipped = new ^ old
        moved = _ordered(new) - _ordered(old) if is_float else new - old
        for word in range(max(1, self.item_size // 2)):
            self._count_words(("XOR", word), flipped.view(np.uint8))
            self._count_words(("difference", word), moved.view(np.uint8))
        self.compared += new.size
        self.changed += int(np.count_nonzero(flipped))

    def words(self, word: int = 0, of: str = "word") -> NDArray[np.uint64]:
        """Return counts of a 16-bit word, 0 being the most significant one, or of 8-bit items."""
        return self._counted((of, word), 256 if self.item_size == 1 else 65536)

    def pairs(self) -> NDArray[np.uint64]:
        """Return how often each byte of the payload (axis 0) is followed by each byte (axis 1)."""
        counts = self._counted("pairs", 65536)
        return counts.reshape(256, 256).T  # the first byte of a little-endian word is its lower one

    def neighbours(self, side: str, plane: str) -> NDArray[np.uint64] | None:
        """Return how often each byte of a plane has each neighbour (axis 0); None if none has."""
        counts = self._counts.get((side, plane))
        return None if counts is None else counts.reshape(256, 256)

    def residuals(self, side: str, how: str) -> NDArray[np.uint64] | None:
        """Return how often each delta or XOR of 16-bit words with their neighbours occurs."""
        return self._counts.get((side, how))

    def _counted(self, key: Any, size: int) -> NDArray[np.uint64]:
        # Clearing unused tables took a third of the time for small tensors.
        counts = self._counts.get(key)
        return np.zeros(size, np.uint64) if counts is None else counts

    def _count_words(self, key: tuple[str, int], data: Bytes) -> None:
        if self.item_size == 1:
            counts = self._counts.setdefault(key, np.zeros(256, np.uint64))
            _core.count_bytes(data, counts)
            return
        self._count(key, data, self.item_size - 2 - 2 * key[1], self.item_size)

    def _count(self, key: Any, data: Any, start: int, stride: int) -> None:
        counts = self._counts.setdefault(key, np.zeros(65536, np.uint64))
        _core.count_words(data, counts, start, stride)

    def _add_neighbours(self, side: str, value: Words, neighbour: Words) -> None:
        high = (neighbour & 0xFF00) | (value >> 8)
        self._count((side, PLANES[0]), high, 0, 2)
        exponent = ((neighbour << 1) & 0xFF00) | ((value >> 7) & 0xFF)
        self._count((side, PLANES[1]), exponent, 0, 2)
        if self.item_size == 2:
            self._count((side, "delta"), value - neighbour, 0, 2)
            self._count((side, "XOR"), value ^ neighbour, 0, 2)


def _top(data: Bytes, item_size: int) -> Words:
    """Return the most significant 16 bits of each item."""
    if item_size == 2:
        return data.view("<u2")
    if item_size == 1:
        return data.astype(np.uint16)
    # A copy, since operations on strided words take longer.
    return np.ascontiguousarray(data.view("<u2")[item_size // 2 - 1 :: item_size // 2])


def _ordered(items: NDArray[Any]) -> NDArray[Any]:
    """Return bit patterns of floats as integers in the order of the numbers, modulo their range."""
    bits = 8 * items.dtype.itemsize
    sign = items >> (bits - 1)  # 1 for negative numbers, whose other bits count down
    rest = items & ((1 << (bits - 1)) - 1)
    return (rest ^ (0 - sign)) + sign


def block_counts(data: Bytes, item_size: int) -> Iterable[NDArray[np.uint64]]:
    """Yield, for each byte of the items, the counts of its values in 64 KiB blocks: (blocks, 256).

    Items are rotated left by one bit: the first byte is the exponent of BF16 and FP32.
    """
    items = data.view(f"<u{item_size}")
    rotated = ((items << 1) | (items >> (8 * item_size - 1))).view(np.uint8)
    blocks = range(0, rotated.size, BLOCK_BYTES)
    for plane in range(item_size):
        counts = np.zeros((len(blocks), 256), np.uint64)
        for row, start in zip(counts, blocks, strict=True):
            _core.count_bytes(rotated[start : start + BLOCK_BYTES], row, plane, item_size)
        yield counts
