"""How numbers differ: of blocks, of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Spread"]

_PARTS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Spread:
    """How something differs from block to block, or from row to row.

    Attributes
    ----------
    count : int
        Of how many.
    mean, deviation : float
        Mean, and standard deviation.
    quantiles : tuple of float
        The least; what 5, 25, 50, 75 and 95 % are below; and the most.
    """

    count: int
    mean: float
    deviation: float
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, numbers: NDArray[np.float64]) -> Spread | None:
        """Return that of some numbers; None if there are none."""
        if not numbers.size:
            return None
        # As np.quantile, which takes ten times as long of few numbers, of which there are many.
        places = np.multiply(_PARTS, numbers.size - 1)
        quantiles = tuple(np.interp(places, np.arange(numbers.size), np.sort(numbers)).tolist())
        return cls(numbers.size, float(numbers.mean()), float(numbers.std()), quantiles)
