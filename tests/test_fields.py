"""The fields of each data type's bits, against NumPy's numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from bf16codecs._base.fields import FIELDS

#: NumPy's names of the data types, with ml_dtypes.
ITEMS = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


def test_exponents_are_those_of_the_numbers() -> None:
    assert FIELDS.keys() == ITEMS.keys()
    for name, fields in FIELDS.items():
        item = np.dtype(getattr(ml_dtypes, ITEMS[name], ITEMS[name]))
        # Each exponent, with a mantissa of zeros.
        patterns = np.arange(1 << fields.exponent) << fields.mantissa
        values = patterns.astype(f"<u{fields.item_size}").view(item).astype(np.float64)
        for stored, value in enumerate(values.tolist()):
            if stored in fields.normal:
                assert value == 2.0 ** (stored - fields.bias), (name, stored)
            else:
                assert value == 0 if stored == 0 else not np.isfinite(value), (name, stored)
