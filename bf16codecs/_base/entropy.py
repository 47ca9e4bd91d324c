"""Entropies of what was counted: Shannon, "A Mathematical Theory of Communication", 1948."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["conditional_entropy", "entropy", "row_entropies"]

Counts = NDArray[np.uint64]


def entropy(counts: NDArray[Any]) -> float:
    """Return the order-0 entropy of symbols that occur so often, in bits a symbol.

    Parameters
    ----------
    counts : ndarray
        How often each symbol occurs; any shape. Of no symbols the entropy is 0.
    """
    found = counts[counts > 0].astype(np.float64)
    total = found.sum()
    # Rounding may leave -0.0 or a little less of a single symbol.
    return max(0.0, float(np.log2(total) - found @ np.log2(found) / total)) if total else 0.0


def conditional_entropy(pairs: NDArray[Any]) -> float:
    """Return the entropy of a symbol of which another one is known, in bits a symbol.

    Parameters
    ----------
    pairs : ndarray, shape (known, symbols)
        How often each known symbol occurs with each other one.
    """
    return max(0.0, entropy(pairs) - entropy(pairs.sum(1)))


def row_entropies(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Return the entropy of each row, in bits a symbol.

    Parameters
    ----------
    counts : ndarray, shape (rows, symbols)
        How often each symbol occurs; no row is empty.
    """
    numbers = counts.astype(np.float64)
    totals = numbers.sum(1)
    weighted = (numbers * np.log2(np.maximum(numbers, 1))).sum(1)
    return np.maximum(0.0, np.log2(totals) - weighted / totals)
