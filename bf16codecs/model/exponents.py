"""Counts of exponents in a sample of values, for a histogram."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.fields import FIELDS, entropy

__all__ = ["Exponents", "Sampled"]

# The number and the size of the parts in which exponents are counted: 256 KiB in all.
_PARTS, _PART_BYTES = 8, 1 << 15


class Sampled(Protocol):
    """A tensor whose values are sampled."""

    @property
    def size(self) -> int:
        """Number of elements."""

    def get_dtype(self) -> str:
        """Return the dtype by its name in safetensors."""

    def sample(self, nbytes: int, parts: int) -> Bytes:
        """Read about `nbytes` bytes in `parts` parts."""


@dataclass
class Exponents:
    """Counts of stored (biased) exponents in some values of a dtype of safetensors."""

    dtype: str
    #: The number of all values, counted or not; None if it is not known.
    total: int | None
    counts: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(1 << FIELDS[self.dtype].exponent, np.uint64)

    @classmethod
    def of(cls, tensors: Sequence[Sampled], is_all: bool = True) -> Exponents | None:
        """Count exponents in a few evenly spread parts of the most frequent floating-point dtype.

        `is_all` is false if the model has more tensors than these. The result is None without
        floating-point numbers. Raises BF16CodecsError, OSError or ValueError if they cannot be
        read.
        """
        sizes = Counter[str]()
        for tensor in tensors:
            sizes[tensor.get_dtype()] += tensor.size * (tensor.get_dtype() in FIELDS)
        dtype, total = max(sizes.items(), key=lambda item: item[1], default=("", 0))
        if not total:
            return None
        found = cls(dtype, total if is_all else None)
        chosen = [tensor for tensor in tensors if tensor.get_dtype() == dtype]
        middles = (np.arange(_PARTS) + 0.5) / _PARTS * total
        indices = np.searchsorted(np.cumsum([tensor.size for tensor in chosen]), middles, "right")
        for i, parts in Counter(indices.tolist()).items():
            found.add(chosen[i].sample(parts * _PART_BYTES, parts))
        return found

    def add(self, data: Bytes) -> None:
        """Count the exponents of little-endian values."""
        fields = FIELDS[self.dtype]
        is_byte = fields.item_size == 1
        counts = np.zeros(256 if is_byte else 65536, np.uint64)
        if is_byte:
            _core.count_bytes(data, counts)
        else:
            _core.count_words(data, counts, fields.item_size - 2, fields.item_size)
        self.counts += fields.split(counts).sum((0, 2))

    @property
    def seen(self) -> int:
        """The number of values that were counted."""
        return int(self.counts.sum())

    @property
    def bits(self) -> float:
        """The entropy of the exponents, in bits per value."""
        return entropy(self.counts)

    @property
    def small(self) -> int:
        """The number of values that are zero or subnormal."""
        return int(self.counts[0]) if FIELDS[self.dtype].sign else 0

    @property
    def not_finite(self) -> int:
        """The number of values that are infinite or NaN, if the dtype has infinities."""
        return int(self.counts[-1]) if FIELDS[self.dtype].has_infinities else 0

    def normal(self) -> tuple[int, NDArray[np.uint64]]:
        """Return the least exponent of normal numbers, and the counts of exponents from it on.

        Zeros, subnormal numbers, infinities and NaNs are left out.
        """
        fields = FIELDS[self.dtype]
        first = fields.normal.start
        found = np.flatnonzero(self.counts[first : fields.normal.stop])
        if not found.size:
            return 0, self.counts[:0]
        start, stop = first + int(found[0]), first + int(found[-1]) + 1
        return start - fields.bias, self.counts[start:stop]
