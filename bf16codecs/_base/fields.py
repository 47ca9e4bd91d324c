"""Fields of an item: sign, exponent and mantissa of each data type, and entropies of counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FIELDS", "Fields", "bit_labels", "conditional_entropy", "entropy", "row_entropies"]


@dataclass(frozen=True)
class Fields:
    """How many bits sign, exponent and mantissa have, from the most significant on."""

    sign: int
    exponent: int
    mantissa: int
    #: Whether only infinities and NaNs have the largest exponent.
    has_infinities: bool = True
    #: How much more the exponent of 1 is than half of all.
    shift: int = 0

    @property
    def item_size(self) -> int:
        """Bytes of an item."""
        return (self.sign + self.exponent + self.mantissa) // 8

    @property
    def bias(self) -> int:
        """The stored exponent of 1."""
        return (1 << (self.exponent - 1)) - 1 + self.shift

    @property
    def normal(self) -> range:
        """The stored exponents of normal numbers: all that stand for a power of 2.

        The first one is that of zeros and subnormal numbers, if there is a sign; the last one may
        be that of infinities and NaNs.
        """
        return range(self.sign, (1 << self.exponent) - self.has_infinities)

    def split(self, counts: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return how often words occur, by sign, exponent, and the bits below the exponent."""
        return counts.reshape(1 << self.sign, 1 << self.exponent, -1)


#: By the names of safetensors. Other dtypes have no exponent: integers, and packed types.
FIELDS = {
    "BF16": Fields(1, 8, 7),
    "F16": Fields(1, 5, 10),
    "F32": Fields(1, 8, 23),
    "F64": Fields(1, 11, 52),
    "F8_E4M3": Fields(1, 4, 3, has_infinities=False),
    "F8_E4M3FNUZ": Fields(1, 4, 3, has_infinities=False, shift=1),
    "F8_E5M2": Fields(1, 5, 2),
    "F8_E5M2FNUZ": Fields(1, 5, 2, has_infinities=False, shift=1),
    "F8_E8M0": Fields(0, 8, 0),
}


def bit_labels(dtype: str, count: int) -> list[str]:
    """Return what each bit is, the most significant one first: s, e7 to e0, m6 to m0."""
    fields = FIELDS.get(dtype)
    if fields is None:
        return [str(n) for n in reversed(range(count))]
    parts = (("s", fields.sign), ("e", fields.exponent), ("m", fields.mantissa))
    return [
        f"{name}{n}" if size > 1 else name for name, size in parts for n in reversed(range(size))
    ]


# Shannon, "A Mathematical Theory of Communication", 1948.
def entropy(counts: NDArray[Any]) -> float:
    """Return the order-0 entropy of counted symbols, in bits per symbol; 0 of no symbols."""
    found = counts[counts > 0].astype(np.float64)
    total = found.sum()
    # Rounding may leave -0.0 or a little less of a single symbol.
    return max(0.0, float(np.log2(total) - found @ np.log2(found) / total)) if total else 0.0


def conditional_entropy(pairs: NDArray[Any]) -> float:
    """Return the entropy of a symbol given another one, in bits.

    The counts are of pairs, of shape (given, symbols).
    """
    return max(0.0, entropy(pairs) - entropy(pairs.sum(1)))


def row_entropies(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Return the entropy of each row of counts, in bits per symbol; no row is empty."""
    numbers = counts.astype(np.float64)
    totals = numbers.sum(1)
    weighted = (numbers * np.log2(np.maximum(numbers, 1))).sum(1)
    return np.maximum(0.0, np.log2(totals) - weighted / totals)
