"""Synthetic weights: normal numbers, plain, pruned, or quantised once and multiplied out again.

The formulas are those of the libraries that quantise: compressed-tensors, bitsandbytes, GGUF, HQQ
and the Open Compute Project's MX formats. Each returns what its weights are in binary32, which is
then rounded to the data type of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["RECIPES", "as_bfloat16", "matrices"]

Floats = NDArray[np.float32]
Recipe = Callable[[Floats], Floats]

#: NF4's levels, and the magnitudes of FP4 (E2M1).
NF4 = np.array(
    [-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
     -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725,
     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
     0.7229568362236023, 1],
    np.float32,
)  # fmt: skip
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_MOST_E2M1, _MOST_E4M3 = np.float32(6), np.float32(448)


def grouped(weights: Floats, height: int, width: int) -> Floats:
    """Return the groups of a matrix, `height` x `width` each, as rows; 0 means all there are."""
    rows, columns = weights.shape
    height, width = height or rows, width or columns
    parts = weights.reshape(rows // height, height, columns // width, width)
    return parts.swapaxes(1, 2).reshape(-1, height * width)


def ungrouped(groups: Floats, shape: tuple[int, int], height: int, width: int) -> Floats:
    """Undo `grouped`."""
    rows, columns = shape
    height, width = height or rows, width or columns
    parts = groups.reshape(rows // height, columns // width, height, width)
    return np.ascontiguousarray(parts.swapaxes(1, 2).reshape(shape))


def _by_group(height: int, width: int, quantise: Recipe) -> Recipe:
    def recipe(weights: Floats) -> Floats:
        groups = quantise(grouped(weights, height, width))
        return ungrouped(groups, weights.shape, height, width)

    return recipe


def _largest(groups: Floats) -> Floats:
    return np.maximum(np.abs(groups).max(axis=1, keepdims=True), np.float32(1e-30))


def _float8(groups: Floats, power_of_two: bool = False) -> Floats:
    scales = _largest(groups) / _MOST_E4M3
    if power_of_two:
        scales = np.exp2(np.ceil(np.log2(scales)))
    codes = (groups / scales).astype(ml_dtypes.float8_e4m3fn)
    return codes.astype(np.float32) * scales


def _float8_e5m2(groups: Floats) -> Floats:
    scales = _largest(groups) / np.float32(57344)
    codes = (groups / scales).astype(ml_dtypes.float8_e5m2)
    return codes.astype(np.float32) * scales


def _symmetric(groups: Floats, most: int, scale_dtype: str = "float32") -> Floats:
    scales = (_largest(groups) / np.float32(most)).astype(scale_dtype).astype(np.float32)
    codes = np.rint(groups / np.where(scales == 0, np.float32(1), scales))
    return _codes(codes, -most, most) * scales


def _codes(numbers: Floats, least: float, most: float) -> Floats:
    """Return whole numbers within bounds in binary32, and none that is a negative zero."""
    return np.clip(numbers, np.float32(least), np.float32(most)) + np.float32(0)


def _with_zero_points(groups: Floats, bits: int) -> Floats:
    low = np.minimum(groups.min(axis=1, keepdims=True), 0)
    high = np.maximum(groups.max(axis=1, keepdims=True), 0)
    scales = np.maximum((high - low) / np.float32(2**bits - 1), np.float32(1e-30))
    zeros = np.rint(-low / scales)
    codes = _codes(np.rint(groups / scales) + zeros, 0, 2**bits - 1)
    return (codes - zeros) * scales


def _k_quant(weights: Floats, bits: int, width: int, scale_bits: int) -> Floats:
    """Return what GGUF's K-quants with minimums make of each 256 weights."""
    most, most_scale = np.float32(2**bits - 1), 2**scale_bits - 1
    groups = weights.reshape(-1, 256 // width, width)
    low = np.minimum(groups.min(axis=2, keepdims=True), 0)
    scales, minimums = (
        _super_block(numbers, most_scale)
        for numbers in ((groups.max(axis=2, keepdims=True) - low) / most, -low)
    )
    codes = np.rint((groups + minimums) / np.where(scales == 0, np.float32(1), scales))
    return (scales * np.clip(codes, 0, most) - minimums).reshape(weights.shape)


def _super_block(numbers: Floats, most: int) -> Floats:
    """Round to integers times a number of binary16 that all have in common."""
    unit = (numbers.max(axis=1, keepdims=True) / np.float32(most)).astype(np.float16)
    units = unit.astype(np.float32)
    codes = np.clip(np.rint(numbers / np.where(units == 0, np.float32(1), units)), 0, most)
    return units * codes


def _hqq(groups: Floats, bits: int, dtype: DTypeLike) -> Floats:
    """Return differences of codes and zero points that are no integers, in a dtype's arithmetic."""
    low, most = groups.min(axis=1, keepdims=True), 2**bits - 1
    scales = np.maximum((groups.max(axis=1, keepdims=True) - low) / np.float32(most), 1e-30)
    scale, zero = scales.astype(dtype), (-low / scales).astype(dtype)
    codes = np.rint(groups / scale.astype(np.float32) + zero.astype(np.float32))
    return ((np.clip(codes, 0, most).astype(dtype) - zero) * scale).astype(np.float32)


def _nearest(groups: Floats, scales: Floats, levels: Floats) -> Floats:
    middles = (levels[1:] + levels[:-1]) / 2
    return levels[np.searchsorted(middles, groups / scales)] * scales


def _nf4(groups: Floats) -> Floats:
    return _nearest(groups, _largest(groups), NF4)


def _e2m1(groups: Floats, scales: Floats) -> Floats:
    return np.copysign(_nearest(np.abs(groups), scales, E2M1), groups)


def _mxfp4(groups: Floats) -> Floats:
    return _e2m1(groups, np.exp2(np.floor(np.log2(_largest(groups))) - 2))


def _nvfp4(weights: Floats) -> Floats:
    of_all = np.abs(weights).max() / (_MOST_E2M1 * _MOST_E4M3)
    groups = grouped(weights, 1, 16)
    scales = (_largest(groups) / _MOST_E2M1 / of_all).astype(ml_dtypes.float8_e4m3fn)
    numbers = np.maximum(scales.astype(np.float32), np.float32(2**-9)) * of_all
    return ungrouped(_e2m1(groups, numbers), weights.shape, 1, 16)


def _ternary(weights: Floats) -> Floats:
    scale = np.abs(weights).mean()
    return _codes(np.rint(weights / scale), -1, 1) * scale


def _pruned(weights: Floats, share: float) -> Floats:
    return np.where(np.abs(weights) < np.quantile(np.abs(weights), share), np.float32(0), weights)


def _two_of_four(weights: Floats) -> Floats:
    fours = weights.reshape(-1, 4)
    smallest = np.argsort(np.abs(fours), axis=1, kind="stable")[:, :2]
    pruned = fours.copy()
    np.put_along_axis(pruned, smallest, np.float32(0), axis=1)
    return pruned.reshape(weights.shape)


#: What can be made of weights, by names.
RECIPES: dict[str, Recipe] = {
    "gaussian": lambda weights: weights,
    "fp8-tiles": _by_group(128, 128, _float8),
    "fp8-tiles-pow2": _by_group(128, 128, partial(_float8, power_of_two=True)),
    "fp8-rows": _by_group(1, 0, _float8),
    "fp8-tensor": _by_group(0, 0, _float8),
    "fp8-e5m2-rows": _by_group(1, 0, _float8_e5m2),
    "int8-rows": _by_group(1, 0, partial(_symmetric, most=127)),
    "int8-columns": _by_group(0, 1, partial(_symmetric, most=127)),
    "int8-g128": _by_group(1, 128, partial(_symmetric, most=127)),
    "int8-zero-points": _by_group(1, 0, partial(_with_zero_points, bits=8)),
    "int6-g16": _by_group(1, 16, partial(_symmetric, most=31, scale_dtype="float16")),
    "int5-g32": _by_group(1, 32, partial(_symmetric, most=15, scale_dtype="float16")),
    "int4-g128": _by_group(1, 128, partial(_symmetric, most=7)),
    "int4-g32": _by_group(1, 32, partial(_symmetric, most=7, scale_dtype="bfloat16")),
    "int4-zero-points": _by_group(1, 128, partial(_with_zero_points, bits=4)),
    "int3-g128": _by_group(1, 128, partial(_symmetric, most=3)),
    "q4-k": partial(_k_quant, bits=4, width=32, scale_bits=6),
    "q5-k": partial(_k_quant, bits=5, width=32, scale_bits=6),
    "q2-k": partial(_k_quant, bits=2, width=16, scale_bits=4),
    "hqq-g64": _by_group(1, 64, partial(_hqq, bits=4, dtype=np.float16)),
    "nf4": _by_group(1, 64, _nf4),
    "mxfp4": _by_group(1, 32, _mxfp4),
    "nvfp4": _nvfp4,
    "ternary": _ternary,
    "pruned-50": partial(_pruned, share=0.5),
    "pruned-90": partial(_pruned, share=0.9),
    "pruned-2-4": _two_of_four,
}

_SIGMAS = (0.011, 0.02, 0.033, 0.048)


def matrices(name: str, shape: tuple[int, int] = (4096, 4096)) -> list[tuple[str, Floats]]:
    """Return four matrices of a recipe, of normal numbers with a standard deviation each.

    Parameters
    ----------
    name : str
        One of `RECIPES`.
    shape : tuple of int
        Rows and columns: multiples of 128.
    """
    rng = np.random.default_rng(0)
    made = []
    for sigma in _SIGMAS:
        normal = rng.standard_normal(shape[0] * shape[1], np.float32).reshape(shape)
        made.append((f"sigma {sigma}", RECIPES[name](normal * np.float32(sigma))))
    return made


def as_bfloat16(values: Floats) -> NDArray[np.uint8]:
    """Round finite numbers to bfloat16, and return their bytes.

    Raises TypeError for any other type than float32, whose bits are no such numbers.
    """
    if values.dtype != np.float32:
        raise TypeError(f"synthetic weights are float32, not {values.dtype}")
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return rounded.astype("<u2").view(np.uint8)
