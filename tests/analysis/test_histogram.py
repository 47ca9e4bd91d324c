"""Histograms of values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bf16codecs.analysis import Histogram
from bf16codecs.analysis.counts import Counts
from looping import for_each

DTYPES = [
    "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
    "bool", "int8", "uint8", "int16", "int32", "int64",
]  # fmt: skip


def histogram(values):
    counts = Counts(values.dtype.itemsize)
    counts.add(values.reshape(-1).view(np.uint8), np.empty(0, np.uint8))
    return Histogram.of(values.dtype, counts)


def test_bins_hold_what_numpy_counts():
    values = np.random.default_rng(0).standard_normal(100_000).astype(ml_dtypes.bfloat16)
    found = histogram(values)
    edges = found.least + found.width * np.arange(len(found.counts) + 1)
    np.testing.assert_array_equal(found.counts, np.histogram(values.astype(float), edges)[0])
    assert found.below == np.count_nonzero(values < edges[0])
    assert found.above == np.count_nonzero(values > edges[-1])
    assert 0 < found.below + found.above <= 0.0011 * values.size
    assert 40 < len(found.counts) <= 82


def test_no_bin_is_empty_because_the_dtype_has_no_number_there():
    # Between 1 and 2, a bfloat16 number is a multiple of 1/128.
    values = np.linspace(1, 1.25, 1000).astype(ml_dtypes.bfloat16)
    found = histogram(values)
    assert found.width == 1 / 128
    assert 0 not in found.counts


@for_each("dtype", DTYPES)
@pytest.mark.filterwarnings("error")
def test_all_bits_of_all_dtypes(dtype):
    item = np.dtype(getattr(ml_dtypes, dtype, dtype))
    raw = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, 8000, np.uint8)
    found = histogram(raw.view(item))
    total = sum(found.counts) + found.below + found.above + found.not_finite
    assert total == 8000 // item.itemsize
    zeros = histogram(np.zeros(10, item))
    assert sum(zeros.counts) == 10
    assert zeros.width > 0


FLOATS = [name for name in DTYPES if "float" in name]
FLOATS += ["float8_e4m3fnuz", "float8_e5m2fnuz"]


@for_each("dtype", FLOATS)
@for_each("end", ["min", "max"])
@pytest.mark.filterwarnings("error")
def test_the_least_and_the_largest_number_alone(dtype, end):
    item = np.dtype(getattr(ml_dtypes, dtype, dtype))
    limits = ml_dtypes.finfo(item)
    value = getattr(limits, end)
    found = histogram(np.full(7, value, item))
    assert found.counts == (7,)
    # E8M0 has powers of two alone, so the least one is as far from the next as from zero.
    near = 1 if dtype == "float8_e8m0fnu" else 0.25
    if dtype != "float64":  # clipped, so that widths stay finite
        middle = found.least + found.width / 2
        assert middle == pytest.approx(float(value), rel=0.01)
    assert 0 < found.width <= near * abs(float(value))


def test_one_value_and_none():
    ones = histogram(np.ones(7, ml_dtypes.bfloat16))
    assert ones.counts == (7,)
    assert ones.least < 1 < ones.least + ones.width
    assert histogram(np.full(7, np.nan, np.float32)) is None
    assert histogram(np.empty(0, np.float16)) is None
