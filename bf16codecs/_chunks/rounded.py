"""FP32 arrays read as BF16, and the other way round, as if they were stored so."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from bf16codecs._chunks.array import ArrayReader
from bf16codecs._chunks.converted import ConvertedArray

__all__ = ["RoundedArray", "UnroundedArray", "round_to_bfloat16"]

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


class RoundedArray(ConvertedArray):
    """The rounding of an FP32 array: see `round_to_bfloat16`.

    Parameters
    ----------
    array
        What is rounded.
    """

    def __init__(self, array: ArrayReader) -> None:
        super().__init__(array, np.dtype(ml_dtypes.bfloat16), round_to_bfloat16)


class UnroundedArray(ConvertedArray):
    """A BF16 array as FP32: the same numbers, NaNs bit for bit.

    Parameters
    ----------
    array
        What is widened.
    """

    def __init__(self, array: ArrayReader) -> None:
        super().__init__(array, np.dtype(np.float32), _widen)


def _widen(values: NDArray[np.generic]) -> NDArray[np.uint32]:
    return values.view(np.uint16).astype(np.uint32) << np.uint32(16)
