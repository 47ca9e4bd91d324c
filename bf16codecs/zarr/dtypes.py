"""Zarr data types for bfloat16 and the float8 formats, which zarr-python lacks.

Names and fill values follow the zarr-extensions registry and tensorstore. Fill values keep their
exact bits: NaNs other than the canonical one are written in hexadecimal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsFloat, SupportsIndex, TypeGuard

import ml_dtypes
import numpy as np
from zarr.core.dtype.common import HasEndianness, HasItemSize, check_dtype_spec_v2
from zarr.dtype import ZDType, data_type_registry

try:
    from zarr.errors import DataTypeValidationError  # type: ignore[attr-defined]
except ImportError:  # before zarr 3.3
    from zarr.dtype import DataTypeValidationError

if TYPE_CHECKING:
    from zarr.core.dtype.common import DTypeJSON

__all__ = ["BFloat16", "Float8E4M3FN", "Float8E5M2", "register_data_types"]

_BITS = re.compile(r"(?:0x([0-9a-fA-F]+)|NaN\(0x([0-9a-fA-F]+)\))")


@dataclass(frozen=True, kw_only=True)
class _MLFloat(ZDType[Any, Any], HasItemSize):
    """A floating-point type of ml_dtypes."""

    _native: ClassVar[np.dtype[Any]]
    #: Bit pattern of the largest number, or of infinity; NaNs are above it.
    _largest_bits: ClassVar[int]
    _infinity_bits: ClassVar[int | None]
    _nan_bits: ClassVar[int]

    @property
    def item_size(self) -> int:
        """Bytes of one element."""
        return self._native.itemsize

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        """Make the Zarr data type of a NumPy data type."""
        if not cls._check_native_dtype(dtype):
            raise DataTypeValidationError(f"{dtype} is not {cls._zarr_v3_name}")
        return cls()

    def to_native_dtype(self) -> np.dtype[Any]:
        """Return the NumPy data type."""
        return self._native

    @classmethod
    def _from_json_v2(cls, data: DTypeJSON) -> Self:
        spec: Any = data
        known = check_dtype_spec_v2(data) and spec["object_codec_id"] is None
        if not known or spec["name"] != cls._zarr_v3_name:
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v3_name!r}")
        return cls()

    @classmethod
    def _from_json_v3(cls, data: DTypeJSON) -> Self:
        if data != cls._zarr_v3_name:
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v3_name!r}")
        return cls()

    def to_json(self, zarr_format: int) -> Any:
        """Return the data type as array metadata.

        Format 2 has no typestr for these types; like tensorstore, use their names.
        """
        if zarr_format == 2:
            return {"name": self._zarr_v3_name, "object_codec_id": None}
        return self._zarr_v3_name

    def _check_scalar(self, data: object) -> TypeGuard[SupportsFloat | SupportsIndex | str]:
        # Arrays of any size have __float__.
        number = isinstance(data, (SupportsFloat, SupportsIndex, str))
        return number and not isinstance(data, np.ndarray)

    def cast_scalar(self, data: object) -> Any:
        """Convert to a scalar of this type; a scalar of this type keeps its bits."""
        if isinstance(data, np.ndarray) and data.ndim == 0:
            data = data[()]
        if isinstance(data, self._native.type):
            return data
        if not self._check_scalar(data):
            raise TypeError(f"cannot convert {data!r} to {self._zarr_v3_name}")
        if isinstance(data, str):
            return self._scalar_from_str(data)
        return self._native.type(data)

    def default_scalar(self) -> Any:
        """Return zero, the default fill value."""
        return self._native.type(0)

    def from_json_scalar(self, data: Any, *, zarr_format: int) -> Any:
        """Read a fill value from array metadata: a number, or a string for NaNs and infinities."""
        if isinstance(data, bool) or not isinstance(data, (int, float, str)):
            raise TypeError(f"{data!r} is not a fill value of {self._zarr_v3_name}")
        return self.cast_scalar(data)

    def to_json_scalar(self, data: object, *, zarr_format: int) -> float | str:
        """Return a fill value as array metadata, from which reading restores the same bits."""
        scalar = self.cast_scalar(data)
        bits = int(np.asarray(scalar).view(f"u{self.item_size}"))
        if bits == self._nan_bits:
            return "NaN"
        magnitude = bits & ~(1 << (8 * self.item_size - 1))
        if magnitude > self._largest_bits:
            # Format 2 specifies no such notation, and tensorstore reads "0x7fff" as the number
            # 32767 there. It refuses "NaN(0x7fff)", which is better than wrong data.
            template = "NaN(0x{:0{}x})" if zarr_format == 2 else "0x{:0{}x}"
            return template.format(bits, 2 * self.item_size)
        if magnitude == self._infinity_bits:
            return "Infinity" if bits == magnitude else "-Infinity"
        return float(scalar)

    def _scalar_from_str(self, data: str) -> Any:
        if data == "NaN":
            return self._scalar_from_bits(self._nan_bits)
        if data in ("Infinity", "-Infinity") and self._infinity_bits is not None:
            return self._native.type(float(data))
        match = _BITS.fullmatch(data)
        digits = match and (match[1] or match[2])
        if not digits or len(digits) != 2 * self.item_size:
            raise ValueError(f"{data!r} is not a value of {self._zarr_v3_name}")
        return self._scalar_from_bits(int(digits, 16))

    def _scalar_from_bits(self, bits: int) -> Any:
        return np.array(bits, f"u{self.item_size}").view(self._native)[()]


@dataclass(frozen=True, kw_only=True)
class BFloat16(_MLFloat, HasEndianness):
    """The Zarr data type ``bfloat16``.

    Examples
    --------
    >>> import zarr
    >>> array = zarr.create_array({}, shape=(3,), dtype="bfloat16", fill_value="0x7fff")
    >>> array.dtype
    dtype(bfloat16)
    >>> array.metadata.to_dict()["fill_value"]
    '0x7fff'
    """

    dtype_cls = type(np.dtype(ml_dtypes.bfloat16))
    _zarr_v3_name = "bfloat16"
    _native = np.dtype(ml_dtypes.bfloat16)
    _largest_bits = _infinity_bits = 0x7F80
    _nan_bits = 0x7FC0

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        """Make the Zarr data type of a NumPy data type."""
        native = super().from_native_dtype(dtype)
        if dtype == cls._native:
            return native
        return cls(endianness="little" if native.endianness == "big" else "big")

    def to_native_dtype(self) -> np.dtype[Any]:
        """Return the NumPy data type."""
        return self._native.newbyteorder("<" if self.endianness == "little" else ">")

    @classmethod
    def _from_json_v2(cls, data: DTypeJSON) -> Self:
        super()._from_json_v2(data)
        return cls(endianness="little")

    def to_json(self, zarr_format: int) -> Any:
        """Return the data type as array metadata."""
        if zarr_format == 2 and self.endianness == "big":
            raise ValueError("Zarr format 2 has no name for big-endian bfloat16")
        return super().to_json(zarr_format)


@dataclass(frozen=True, kw_only=True)
class Float8E4M3FN(_MLFloat):
    """The Zarr data type ``float8_e4m3fn``: no infinities, one NaN of either sign."""

    dtype_cls = type(np.dtype(ml_dtypes.float8_e4m3fn))
    _zarr_v3_name = "float8_e4m3fn"
    _native = np.dtype(ml_dtypes.float8_e4m3fn)
    _largest_bits = 0x7E
    _infinity_bits = None
    _nan_bits = 0x7F


@dataclass(frozen=True, kw_only=True)
class Float8E5M2(_MLFloat):
    """The Zarr data type ``float8_e5m2``."""

    dtype_cls = type(np.dtype(ml_dtypes.float8_e5m2))
    _zarr_v3_name = "float8_e5m2"
    _native = np.dtype(ml_dtypes.float8_e5m2)
    _largest_bits = _infinity_bits = 0x7C
    _nan_bits = 0x7E


def register_data_types() -> None:
    """Register the data types with zarr, except those whose name is taken."""
    # Not `get`: from zarr 3.4.1 on, it loads entry points, and this call may come from one.
    for cls in (BFloat16, Float8E4M3FN, Float8E5M2):
        if cls._zarr_v3_name not in data_type_registry.contents:
            data_type_registry.register(cls._zarr_v3_name, cls)
