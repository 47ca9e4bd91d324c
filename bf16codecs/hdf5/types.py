"""HDF5's floating-point types for the data types of ml_dtypes.

They equal the native types of HDF5 2.0; older libraries read them as custom floating-point types.
h5py itself would write such arrays as opaque bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import h5py
import numpy as np

__all__ = ["ItemType", "file_type", "item_type"]

# Bytes; positions and sizes in bits (sign at, exponent at, its size, mantissa at, its size); and
# the exponent's bias.
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
    """Return the HDF5 type of an array's items.

    Raises
    ------
    TypeError
        If the items are not numbers or booleans.
    """
    if dtype.name in _FLOATS and dtype.isnative:
        return _float_type(dtype.name)
    if dtype.kind not in "biufc":
        raise TypeError(f"tensors must be numbers or booleans, not {dtype}")
    return h5py.h5t.py_create(dtype, logical=True)


class ItemType(NamedTuple):
    """How the items of a dataset are read into memory."""

    dtype: np.dtype[Any]
    #: What HDF5 is to convert them to: their own type where that changes nothing.
    memory: Any
    #: Whether the array's bytes are the dataset's.
    has_own_bytes: bool

    @property
    def copied(self) -> np.dtype[Any]:
        """Data type to read the items as: NumPy copies every byte of it.

        Of a struct, NumPy copies the members, and leaves the gaps between them as the memory was.
        """
        return self.dtype if self.dtype.names is None else np.dtype(f"V{self.dtype.itemsize}")


def item_type(type_id: Any) -> ItemType:
    """Return what the items of a dataset of any program become.

    Types of HDF5 have more properties than NumPy's: padding, precision, the bias of an exponent.
    So its type is the one that decides, and what is not known to have NumPy's bytes, HDF5 converts.

    Parameters
    ----------
    type_id : h5py.h5t.TypeID
        The dataset's type.

    Raises
    ------
    TypeError
        If NumPy has no such items, or only as Python objects, or as further axes of the array.
    """
    for name in _FLOATS:
        own = _float_type(name)
        if type_id.equal(own):
            return ItemType(np.dtype(name), type_id, True)
        if type_id.get_size() == own.get_size() and type_id.equal(_big_endian(name)):
            return ItemType(np.dtype(name), own, False)
    dtype = _numpy_dtype(type_id)
    memory = h5py.h5t.py_create(dtype, logical=True)
    if memory.dtype != dtype:
        # Complex numbers of big-endian long doubles, as members, too: h5py makes native ones.
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
    except ValueError as e:  # no float of NumPy's has as many bits, or such exponents
        raise TypeError(str(e)) from e
    if dtype.hasobject or dtype.subdtype is not None:
        raise TypeError(f"its items are no numbers but {dtype}")
    # h5py's own dtypes are equal to NumPy's, and not the same: PyTorch takes only those.
    return np.dtype(dtype.name) if dtype.kind in "iufc" and dtype.isnative else dtype


def _is_plain(type_id: Any) -> bool:
    """Tell whether items are bytes without a meaning to HDF5, or bits that are all in use."""
    if isinstance(type_id, h5py.h5t.TypeOpaqueID):
        return True
    return isinstance(type_id, h5py.h5t.TypeBitfieldID) and any(map(type_id.equal, _BITS))
