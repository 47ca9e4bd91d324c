"""What the bits of a data type mean, against what its numbers are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bf16codecs._dtypes import DTYPE_NAMES
from bf16codecs._fields import FIELDS


@pytest.mark.parametrize("name", FIELDS)
def test_exponents_are_those_of_the_numbers(name: str) -> None:
    fields, dtype = FIELDS[name], DTYPE_NAMES[name]
    item = np.dtype(getattr(ml_dtypes, dtype, dtype))
    # Each exponent, with a mantissa of zeros.
    patterns = np.arange(1 << fields.exponent) << fields.mantissa
    values = patterns.astype(f"<u{fields.item_size}").view(item).astype(np.float64)
    for stored, value in enumerate(values.tolist()):
        if stored in fields.normal:
            assert value == 2.0 ** (stored - fields.bias)
        else:
            assert value == 0 if stored == 0 else not np.isfinite(value)
