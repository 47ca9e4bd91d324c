"""HDF5's floating-point types for the data types of ml_dtypes.

They equal the native types of HDF5 2.0; older libraries read them as custom floating-point types.
h5py itself would write such arrays as opaque bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import h5py
import numpy as np

__all__ = ["array_dtype", "file_type"]

# Bytes; positions and sizes in bits (sign at, exponent at, its size, mantissa at, its size); and
# the exponent's bias.
_FLOATS: dict[str, tuple[int, tuple[int, int, int, int, int], int]] = {
    "bfloat16": (2, (15, 7, 8, 0, 7), 127),
    "float8_e4m3fn": (1, (7, 3, 4, 0, 3), 7),
    "float8_e5m2": (1, (7, 2, 5, 0, 2), 15),
}


@cache
def _float_type(name: str) -> Any:
    size, fields, bias = _FLOATS[name]
    float_type = h5py.h5t.IEEE_F32LE.copy()
    float_type.set_fields(*fields)
    float_type.set_size(size)
    float_type.set_ebias(bias)
    float_type.lock()
    return float_type


def file_type(dtype: np.dtype[Any]) -> Any:
    """Return the HDF5 type of an array's items.

    Raises
    ------
    TypeError
        If the items are not numbers or booleans.
    """
    if dtype.name in _FLOATS:
        return _float_type(dtype.name)
    if dtype.kind not in "biufc":
        raise TypeError(f"tensors must be numbers or booleans, not {dtype}")
    return h5py.h5t.py_create(dtype, logical=True)


def array_dtype(type_id: Any) -> np.dtype[Any]:
    """Return the NumPy data type whose items have exactly the bytes of an HDF5 type."""
    for name in _FLOATS:
        if type_id.equal(_float_type(name)):
            return np.dtype(name)
    dtype = np.dtype(type_id.dtype)
    # h5py's own dtypes are equal to NumPy's, and not the same: PyTorch takes only those.
    return np.dtype(dtype.name) if dtype.kind in "iufc" and dtype.isnative else dtype
