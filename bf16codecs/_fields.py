"""What the bits of an item mean: sign, exponent and mantissa of each data type."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIELDS", "Fields"]


@dataclass(frozen=True)
class Fields:
    """How many bits sign, exponent and mantissa have, from the most significant on."""

    sign: int
    exponent: int
    mantissa: int

    @property
    def item_size(self) -> int:
        """Bytes of an item."""
        return (self.sign + self.exponent + self.mantissa) // 8


#: By the names of safetensors. What is not here has no exponent: integers, and packed types.
FIELDS = {
    "BF16": Fields(1, 8, 7),
    "F16": Fields(1, 5, 10),
    "F32": Fields(1, 8, 23),
    "F64": Fields(1, 11, 52),
    "F8_E4M3": Fields(1, 4, 3),
    "F8_E4M3FNUZ": Fields(1, 4, 3),
    "F8_E5M2": Fields(1, 5, 2),
    "F8_E5M2FNUZ": Fields(1, 5, 2),
    "F8_E8M0": Fields(0, 8, 0),
}
