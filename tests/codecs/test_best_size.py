"""Sizes at level "best": limits in bits per item, and never above those of level "fast"."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import bf16codecs
from looping import for_each

BFLOAT16 = ml_dtypes.bfloat16


def sizes(array: NDArray) -> tuple[int, int]:
    """Return the sizes at levels "fast" and "best"; the latter has to decode."""
    dtype = array.dtype.name
    best = bf16codecs.BF16Arithmetic(dtype=dtype, level="best").encode(array)
    assert bf16codecs.decode(best) == array.tobytes()
    return len(bf16codecs.BF16Arithmetic(dtype=dtype).encode(array)), len(best)


def normal(rows: int, columns: int, seed: int = 0) -> NDArray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def with_constant_columns(columns: int, wide: int, rows: int) -> NDArray:
    array = np.ones((rows, columns))
    array[:, :wide] = normal(rows, wide)
    return array


def with_large_rows(every: int, factor: float) -> NDArray:
    array = normal(1024, 1024)
    array[::every] *= factor
    return array


# The lengths of rows are those at which a sample in equal distances would meet the same columns.
@for_each(
    "make, bits",
    [
        (lambda: with_constant_columns(8192, 512, 64), 1.5),
        (lambda: with_constant_columns(4096, 512, 128), 2.3),
        (lambda: with_constant_columns(1024, 512, 1024), 6.9),
        (lambda: with_large_rows(64, 2.0**18), 10.72),
        (lambda: np.round(normal(64, 8192) * 20) / 8, 7.4),
    ],
    ids=["512 of 8192 columns", "512 of 4096", "512 of 1024", "every 64th row", "rounded"],
)
def test_blocks_without_a_gain_do_without_the_model(make, bits):
    array = make()
    fast, best = sizes(array.astype(BFLOAT16))
    assert best <= fast
    assert best * 8 / array.size < bits


@for_each("factor", [2.0**4, 2.0**8, 2.0**-8])
def test_a_few_rows_of_another_scale_cost_little(factor):
    array = normal(4096, 200)
    plain = sizes(array.astype(BFLOAT16))[1]
    array[np.random.default_rng(1).choice(4096, 20, replace=False)] *= factor
    assert sizes(array.astype(BFLOAT16))[1] < plain * 1.004


@for_each("items, bits", [(256, 10.0), (512, 8.7), (1024, 8.0), (2048, 7.8), (4096, 7.6)])
def test_small_vectors_have_models(items, bits):
    """Weights of norms: 46 bytes are the frame's own."""
    array = (1 + 0.1 * normal(1, items)).astype(BFLOAT16).ravel()
    assert sizes(array)[1] * 8 / items < bits


@for_each("axis", [0, 1])
@for_each("factor", [2.0**-20, 2.0**-60])
def test_faint_rows_and_columns_differ_from_zeros(axis, factor):
    """Unused weights decay, but still have scales."""
    array = normal(512, 512)
    plain = sizes(array.astype(BFLOAT16))[1]
    faint = np.random.default_rng(1).choice(512, 150, replace=False)
    array[(slice(None),) * axis + (faint,)] *= factor
    assert sizes(array.astype(BFLOAT16))[1] < plain * 1.004


@for_each("columns", [96, 512, 1008, 4096])
def test_rows_of_plain_items_are_found(columns):
    rng = np.random.default_rng(columns)
    rows = 600_000 // columns
    scales = np.exp(rng.normal(0, 0.7, (rows, 1))) * np.exp(rng.normal(0, 0.7, (1, columns)))
    array = (normal(rows, columns) * scales).astype(BFLOAT16)
    codec = bf16codecs.BF16Arithmetic(level="best")
    assert len(codec.encode(array.ravel())) <= len(codec.encode(array)) * 1.001


@for_each("dtype", ["float8_e4m3fn", "float8_e5m2"])
@for_each("sigma", [0.003, 0.02, 1.0])
def test_coarse_numbers_are_no_larger_than_at_level_fast(dtype, sigma):
    rng = np.random.default_rng(3)
    scales = np.exp(rng.normal(0, 1, (400, 1))) * np.exp(rng.normal(0, 2, (1, 400)))
    fast, best = sizes((normal(400, 400) * sigma * scales).astype(dtype))
    assert best <= fast
