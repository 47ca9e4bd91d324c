"""BF16 and FP32: the rounding of one, and the numbers of the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["from_bfloat16", "round_to_bfloat16"]

_QUIET = np.uint16(0x40)


def round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; of a NaN, keep the upper half and make it quiet.

    Parameters
    ----------
    values
        In C order, of any shape.

    Returns
    -------
    ndarray of uint16
        The bits of the bfloat16 numbers, of the same shape. Not ml_dtypes' conversion, which drops
        what a NaN holds.
    """
    bits = values.view(np.uint32)
    upper = bits >> 16
    rounded = ((upper & 1) + np.uint32(0x7FFF) + bits) >> 16
    result = rounded.astype(np.uint16)
    is_nan = np.isnan(values)
    if is_nan.any():
        result[is_nan] = upper[is_nan].astype(np.uint16) | _QUIET
    return result


def from_bfloat16(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Return the bits of bfloat16 numbers as float32: the same numbers, NaNs bit for bit."""
    return values.view(np.uint16).astype(np.uint32) << np.uint32(16)
