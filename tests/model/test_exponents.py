"""Exponents that are counted, and the values that they are counted of."""

from __future__ import annotations

import numpy as np

from bf16codecs._base import dtypes as _dtypes
from bf16codecs._base import fields as _fields
from bf16codecs.model.exponents import Exponents


class Values:
    """A tensor that records the parts that are requested."""

    def __init__(self, dtype, values):
        self._dtype, self._values = dtype, np.asarray(values)
        self.size, self.asked = self._values.size, []

    def get_dtype(self):
        return self._dtype

    def sample(self, nbytes, parts):
        self.asked.append((nbytes, parts))
        return self._values.reshape(-1).view(np.uint8)


def made(dtype, numbers):
    return Values(dtype, np.array(numbers).astype(_dtypes.DTYPE_NAMES[dtype]))


def test_powers_of_two():
    """1, 2 and 4 have the exponents 0, 1 and 2 in every dtype."""
    for dtype in _fields.FIELDS:
        found = Exponents.of([made(dtype, [1.0, 2.0, 2.0, 4.0])])
        first, counts = found.normal()
        assert (first, counts.tolist()) == (0, [1, 2, 1]), dtype
        assert (found.seen, found.total, found.bits) == (4, 4, 1.5), dtype
        assert (found.small, found.not_finite) == (0, 0), dtype


def test_zeros_and_special_values_are_counted_apart():
    for dtype in ("BF16", "F16", "F32", "F64", "F8_E5M2"):
        found = Exponents.of([made(dtype, [0.0, -0.0, np.nan, np.inf, -np.inf, -0.5])])
        assert (found.small, found.not_finite) == (2, 3), dtype
        assert found.normal()[0] == -1, dtype
        assert found.normal()[1].tolist() == [1], dtype


def test_nothing_normal():
    found = Exponents.of([made("BF16", [np.nan] * 3)])
    assert (found.normal()[1].size, found.not_finite, found.bits) == (0, 3, 0)


def test_integers_and_empty_tensors_have_none():
    assert Exponents.of([]) is None
    assert Exponents.of([Values("I64", [1, 2]), made("F32", [])]) is None


def test_parts_are_spread_by_size_over_the_dtype_that_has_most():
    tensors = [
        made("BF16", np.ones(60)),
        made("F32", np.ones(9)),
        made("BF16", np.ones(1)),
        made("BF16", np.ones(19)),
    ]
    found = Exponents.of(tensors, is_all=False)
    assert (found.dtype, found.total) == ("BF16", None)
    assert [t.asked for t in tensors] == [[(6 << 15, 6)], [], [], [(2 << 15, 2)]]
