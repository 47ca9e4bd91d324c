"""Half precision: float32 numbers as float16 and BF16, and what they lose as float16.

NumPy rounds to the nearest float16, to the even one of two: numbers from 65520 on become infinite,
those up to 2^-25 zero, and those between these and 2^-14 subnormal. A NaN stays one, with its
sign and the highest bits of its payload, and becomes quiet: processors disagree about NaNs, and
restored files need one digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["HalfLoss", "from_bfloat16", "from_half", "round_to_bfloat16", "to_half"]

# The smallest float16 that is not subnormal: below it, relative errors grow up to 1.
_SMALLEST_NORMAL = 2.0**-14

_QUIET_NAN = 0x7E00
_QUIET_BFLOAT16 = np.uint16(0x40)

# Numbers that are compared at a time: in double precision they take some 40 bytes each.
_AT_A_TIME = 1 << 18


def to_half(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Return float32 numbers as float16."""
    with np.errstate(over="ignore", invalid="ignore"):
        halves = values.astype("<f2")
    is_nan = np.isnan(values)
    if is_nan.any():
        bits = values.view("<u4")[is_nan]
        halves.view("<u2")[is_nan] = bits >> 16 & 0x8000 | _QUIET_NAN | bits >> 13 & 0x3FF
    return halves


def from_half(halves: NDArray[np.float16]) -> NDArray[np.float32]:
    """Return float16 numbers as float32, which has all of them; NaNs become quiet."""
    with np.errstate(invalid="ignore"):
        values = halves.astype("<f4")
    is_nan = np.isnan(halves)
    if is_nan.any():
        values.view("<u4")[is_nan] |= np.uint32(_QUIET_NAN << 13)
    return values


@dataclass(frozen=True)
class HalfLoss:
    """The loss of finite float32 numbers that became float16.

    Attributes
    ----------
    absolute : float
        The largest error; infinite if a number became infinite.
    relative : float
        The largest relative error: 1 where a number became zero.
    relative_of_normal : float
        The same of numbers that became neither subnormal, nor zero, nor infinite: 2^-11 at most.
    to_zero, to_infinite : int
        How many numbers became zero, and infinite.
    """

    absolute: float = 0.0
    relative: float = 0.0
    relative_of_normal: float = 0.0
    to_zero: int = 0
    to_infinite: int = 0

    def __str__(self) -> str:
        return (
            f"largest error {self.absolute:.4g}, relative {self.relative:.4g}"
            f" ({self.relative_of_normal:.4g} of numbers that stay normal);"
            f" {self.to_zero} became zero, {self.to_infinite} infinite"
        )

    @classmethod
    def of(cls, values: NDArray[np.float32], halves: NDArray[np.float16]) -> HalfLoss:
        """Compare float32 numbers with what became of them."""
        loss = cls()
        for at in range(0, values.size, _AT_A_TIME):
            part = slice(at, at + _AT_A_TIME)
            loss = loss.joined(cls._of_few(values.ravel()[part], halves.ravel()[part]))
        return loss

    @classmethod
    def _of_few(cls, values: NDArray[np.float32], halves: NDArray[np.float16]) -> HalfLoss:
        counted = np.isfinite(values) & (values != 0)
        before = np.abs(values[counted].astype("f8"))
        after = np.abs(halves[counted].astype("f8"))
        error = np.abs(before - after)
        is_normal = (after >= _SMALLEST_NORMAL) & np.isfinite(after)
        relative = error / before
        return cls(
            absolute=float(error.max(initial=0)),
            relative=float(relative.max(initial=0)),
            relative_of_normal=float(relative[is_normal].max(initial=0)),
            to_zero=int(np.count_nonzero(after == 0)),
            to_infinite=int(np.count_nonzero(np.isinf(after))),
        )

    def described(self) -> str:
        """Say what a lossy store does not restore."""
        return f"lossy: FP32 in half precision, not the original: {self}"

    def joined(self, other: HalfLoss) -> HalfLoss:
        """Return what these numbers and others lost."""
        return HalfLoss(
            max(self.absolute, other.absolute),
            max(self.relative, other.relative),
            max(self.relative_of_normal, other.relative_of_normal),
            self.to_zero + other.to_zero,
            self.to_infinite + other.to_infinite,
        )


def round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of numbers rounded to BF16, to nearest, ties to even; an array in C order.

    A NaN keeps its upper half and becomes quiet; ml_dtypes' own conversion drops its payload.
    """
    bits = values.view(np.uint32)
    upper = bits >> 16
    rounded = ((upper & 1) + np.uint32(0x7FFF) + bits) >> 16
    result = rounded.astype(np.uint16)
    is_nan = np.isnan(values)
    if is_nan.any():
        result[is_nan] = upper[is_nan].astype(np.uint16) | _QUIET_BFLOAT16
    return result


def from_bfloat16(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Return the bits of bfloat16 numbers as float32: the same numbers, NaNs bit for bit."""
    return values.view(np.uint16).astype(np.uint32) << np.uint32(16)
