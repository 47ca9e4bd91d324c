"""HDF5 floating-point types for the data types of ml_dtypes.

They equal the native types of HDF5 2.0; older libraries read them as custom floating-point types.
h5py would write such arrays as opaque bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import h5py
import numpy as np

__all__ = ["ItemType", "file_type", "item_type"]

# Size in bytes; bit positions and sizes (sign position, exponent position and size, mantissa
# position and size); exponent bias.
_FLOATS: dict[str, tuple[int, tuple[int, int, int, int, int], int]] = {
    "bfloat16": (2, (15, 7, 8, 0, 7), 127),
    "float8_e4m3fn": (1, (7, 3, 4, 0, 3), 7),
    "float8_e5m2": (1, (7, 2, 5, 0, 2), 15),
}
_BITS = [getattr(h5py.h5t, f"STD_B{n}{order}") for n in (8, 16, 32, 64) for order in ("LE", "BE")]


@cache
def _float_type(name: str) -> Any:
    size, fields, bias = _FLOATS[name]
    float_type = h5py.h5t.IEEE_F32LE.copy()
    float_type.set_fields(*fields)
    float_type.set_size(size)
    float_type.set_ebias(bias)
    float_type.lock()
    return float_type


@cache
def _big_endian(name: str) -> Any:
    float_type = _float_type(name).copy()
    float_type.set_order(h5py.h5t.ORDER_BE)
    float_type.lock()
    return float_type


def file_type(dtype: np.dtype[Any]) -> Any:
    """Return the HDF5 type of a data type; raise TypeError if it is not of numbers or booleans."""
    if dtype.name in _FLOATS and dtype.isnative:
        return _float_type(dtype.name)
    if dtype.kind not in "biufc":
        raise TypeError(f"tensors must be numbers or booleans, not {dtype}")
    return h5py.h5t.py_create(dtype, logical=True)


class ItemType(NamedTuple):
    """Data types of a dataset's items, in NumPy and in HDF5."""

    dtype: np.dtype[Any]
    #: HDF5's type to read them as: the dataset's type if no conversion is needed.
    memory: Any
    #: Whether the bytes of the array are those of the dataset, without conversion.
    has_same_bytes: bool

    @property
    def copied(self) -> np.dtype[Any]:
        """Data type of which NumPy copies every byte; of structs, it skips the padding."""
        return self.dtype if self.dtype.names is None else np.dtype(f"V{self.dtype.itemsize}")


def item_type(type_id: Any) -> ItemType:
    """Return the NumPy and HDF5 types to read the items of any dataset's `h5py.h5t.TypeID` as.

    HDF5's types have more properties than NumPy's: padding, precision, exponent bias. HDF5 converts
    all items whose bytes are not known to be those of a NumPy type. Raises TypeError if NumPy has
    no such items, or only as Python objects, or as further axes of the array.
    """
    for name in _FLOATS:
        float_type = _float_type(name)
        if type_id.equal(float_type):
            return ItemType(np.dtype(name), type_id, True)
        if type_id.get_size() == float_type.get_size() and type_id.equal(_big_endian(name)):
            return ItemType(np.dtype(name), float_type, False)
    dtype = _numpy_dtype(type_id)
    memory = h5py.h5t.py_create(dtype, logical=True)
    if memory.dtype != dtype:
        # Big-endian complex long doubles, also as members: h5py makes native ones.
        dtype = np.dtype(memory.dtype)
    if type_id.equal(memory) or _is_plain(type_id):
        return ItemType(dtype, type_id, True)
    try:
        h5py.h5t.find(type_id, memory)
    except (TypeError, RuntimeError, ValueError, OSError) as e:
        raise TypeError(f"HDF5 cannot convert its items to {dtype}") from e
    return ItemType(dtype, memory, False)


def _numpy_dtype(type_id: Any) -> np.dtype[Any]:
    try:
        dtype = np.dtype(type_id.dtype)
    except ValueError as e:  # NumPy has no float with so many bits, or such exponents
        raise TypeError(str(e)) from e
    if dtype.hasobject or dtype.subdtype is not None:
        raise TypeError(f"its items are not numbers but {dtype}")
    # h5py's dtypes equal NumPy's but are other objects, which PyTorch refuses.
    return np.dtype(dtype.name) if dtype.kind in "iufc" and dtype.isnative else dtype


def _is_plain(type_id: Any) -> bool:
    """Tell whether items are opaque bytes, or bit fields without padding."""
    if isinstance(type_id, h5py.h5t.TypeOpaqueID):
        return True
    return isinstance(type_id, h5py.h5t.TypeBitfieldID) and any(map(type_id.equal, _BITS))
