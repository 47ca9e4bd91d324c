"""Codecs and data types for Zarr format 3.

Entry points name these classes, so that zarr finds them without an import of this package.
Importing both this package and zarr, in either order, registers them. Users pass
`bf16codecs.BF16Huffman` and its siblings to zarr, which resolves them to these classes in format 3.
"""

# Before any of its submodules: otherwise, a thread that imports a submodule and one that imports
# zarr may deadlock.
import zarr  # noqa: F401

from bf16codecs.zarr.blocks import BF16BlocksCodec
from bf16codecs.zarr.codecs import (
    BF16ArithmeticCodec,
    BF16HuffmanCodec,
    BF16SplitCodec,
    BF16ZstdCodec,
    DeltaCodec,
    RunLengthCodec,
    register,
)
from bf16codecs.zarr.dtypes import BFloat16, Float8E4M3FN, Float8E5M2

register()

__all__ = [
    "BF16ArithmeticCodec",
    "BF16BlocksCodec",
    "BF16HuffmanCodec",
    "BF16SplitCodec",
    "BF16ZstdCodec",
    "BFloat16",
    "DeltaCodec",
    "Float8E4M3FN",
    "Float8E5M2",
    "RunLengthCodec",
    "register",
]
