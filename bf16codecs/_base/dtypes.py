"""The data types of safetensors, and what NumPy and PyTorch call them."""

from __future__ import annotations

__all__ = ["ARRAY_DTYPES", "DTYPE_BITS", "DTYPE_NAMES"]

# Bits of an item, and its name in NumPy with ml_dtypes, and in PyTorch. In the order by which
# safetensors sorts tensors, from the last to the first.
_DTYPES: dict[str, tuple[int, str | None]] = {
    "BOOL": (8, "bool"),
    "F4": (4, None),
    "F6_E2M3": (6, None),
    "F6_E3M2": (6, None),
    "U8": (8, "uint8"),
    "I8": (8, "int8"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "I16": (16, "int16"),
    "U16": (16, "uint16"),
    "F16": (16, "float16"),
    "BF16": (16, "bfloat16"),
    "I32": (32, "int32"),
    "U32": (32, "uint32"),
    "F32": (32, "float32"),
    "C64": (64, "complex64"),
    "F64": (64, "float64"),
    "I64": (64, "int64"),
    "U64": (64, "uint64"),
}

DTYPE_BITS = {name: bits for name, (bits, _) in _DTYPES.items()}
DTYPE_NAMES = {name: item for name, (_, item) in _DTYPES.items() if item is not None}
#: Those that Zarr and HDF5 arrays have; all others are stored as their bytes.
ARRAY_DTYPES = {
    name: item
    for name, item in DTYPE_NAMES.items()
    if name not in ("F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
}
