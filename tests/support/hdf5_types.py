"""HDF5 types that other programs write and NumPy lacks."""

from __future__ import annotations

import ctypes
from typing import Any

import h5py
import ml_dtypes  # noqa: F401  (makes "bfloat16" known to numpy.dtype)
from h5py import h5t


def compound(size: int, **members: tuple[int, Any]) -> Any:
    made = h5t.create(h5t.COMPOUND, size)
    for name, (offset, member) in members.items():
        made.insert(name.encode(), offset, member)
    return made


def floating(size: int, fields: tuple[int, ...], bias: int) -> Any:
    made = h5t.IEEE_F32LE.copy()
    made.set_fields(*fields)
    made.set_size(size)
    made.set_ebias(bias)
    made.set_order(h5t.ORDER_LE)
    return made


def integer(base: Any, precision: int, offset: int = 0) -> Any:
    made = base.copy()
    made.set_precision(precision)
    made.set_offset(offset)
    return made


def text(size: int, pad: int, charset: int = h5t.CSET_ASCII) -> Any:
    made = h5t.C_S1.copy()
    made.set_size(size)
    made.set_strpad(pad)
    made.set_cset(charset)
    return made


def enumeration(base: Any, **values: int) -> Any:
    made = h5t.enum_create(base)
    for name, value in values.items():
        made.enum_insert(name.encode(), value)
    return made


def tagged(size: int) -> Any:
    made = h5t.create(h5t.OPAQUE, size)
    made.set_tag(b"a tag")
    return made


def resized(base: Any, precision: int, size: int) -> Any:
    made = integer(base, precision)
    made.set_size(size)
    return made


def set_chunk_options() -> Any:
    """Return libhdf5's `H5Pset_chunk_opts`, which h5py does not wrap; None if it is not found."""
    try:
        function = ctypes.CDLL(h5py.h5p.__file__).H5Pset_chunk_opts
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int64, ctypes.c_uint]
    return function


F32, F32BE, I32 = h5t.IEEE_F32LE, h5t.IEEE_F32BE, h5t.STD_I32LE
BFLOAT16 = floating(2, (15, 7, 8, 0, 7), 127)

#: Types whose values h5py returns.
TYPES = {
    "complex of a padded struct": compound(12, r=(0, F32), i=(8, F32)),
    "complex, padded in front": compound(16, r=(8, F32), i=(12, F32)),
    "complex, big-endian": compound(8, r=(0, F32BE), i=(4, F32BE)),
    "complex of big-endian parts, padded": compound(12, r=(0, F32BE), i=(8, F32BE)),
    "compound": compound(8, a=(0, F32), b=(4, I32)),
    "compound, padded": compound(16, a=(0, F32), b=(8, I32)),
    "compound, packed": compound(5, a=(0, h5t.STD_I8LE), b=(1, F32BE)),
    "compound of what NumPy has not": compound(8, a=(0, BFLOAT16), b=(4, I32)),
    "nested": compound(32, z=(8, compound(12, r=(0, F32), i=(8, F32))), n=(24, I32)),
    "compound with an array": compound(24, a=(0, h5t.array_create(F32BE, (2, 2))), b=(20, I32)),
    "text, ended by a zero": text(5, h5t.STR_NULLTERM),
    "text, filled with zeros": text(5, h5t.STR_NULLPAD),
    "text, filled with blanks": text(5, h5t.STR_SPACEPAD),
    "text in UTF-8": text(5, h5t.STR_NULLPAD, h5t.CSET_UTF8),
    "bool": enumeration(h5t.STD_I8LE, FALSE=0, TRUE=1),
    "bool of 16 bits": enumeration(h5t.STD_I16LE, FALSE=0, TRUE=1),
    "enumeration": enumeration(h5t.STD_I16LE, A=0, B=1),
    "enumeration, big-endian": enumeration(h5t.STD_I32BE, A=0, B=1),
    "12 of 16 bits": integer(h5t.STD_I16LE, 12),
    "12 of 16 bits, shifted": integer(h5t.STD_I16LE, 12, 3),
    "31 of 32 bits, big-endian, without sign": integer(h5t.STD_U32BE, 31),
    "float of 24 bits": floating(3, (23, 16, 7, 0, 16), 63),
    "float of 14 of 16 bits": floating(2, (13, 8, 5, 0, 8), 15),
    "half with another bias": floating(2, (15, 10, 5, 0, 10), 14),
    "half with its sign below": floating(2, (0, 11, 5, 1, 10), 15),
    "half, big-endian": h5t.IEEE_F16BE,
    "long double": h5t.NATIVE_LDOUBLE,
    "float of six bits": floating(1, (5, 2, 3, 0, 2), 3),
}
#: Types without numbers, or of which h5py returns none.
WITHOUT_NUMBERS = {
    "text of any length": text(h5t.VARIABLE, h5t.STR_NULLTERM),
    "sequence": h5t.vlen_create(F32),
    "reference": h5t.STD_REF_OBJ,
    "reference to a region": h5t.STD_REF_DSETREG,
    "compound with text": compound(16, a=(0, F32), t=(8, text(h5t.VARIABLE, h5t.STR_NULLTERM))),
    "array": h5t.array_create(F32, (3,)),
    "time": h5t.UNIX_D32LE,
    "float of larger exponents than NumPy's": floating(4, (31, 15, 16, 0, 15), 40000),
    "integer of 24 bits": resized(h5t.STD_I32LE, 24, 3),
}
