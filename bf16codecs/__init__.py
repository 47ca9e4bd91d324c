"""Lossless compression of model weights in Zarr and HDF5."""

from numcodecs.registry import register_codec as _register_codec

from bf16codecs import errors
from bf16codecs import zarr as _zarr
from bf16codecs._core import active_isa, get_num_threads, set_num_threads
from bf16codecs._version import __version__
from bf16codecs.codecs import (
    CODECS as _CODECS,
)
from bf16codecs.codecs import (
    BF16Arithmetic,
    BF16Huffman,
    BF16Split,
    BF16Zstd,
    bound,
    decode,
    inspect,
)

__all__ = [
    "BF16Arithmetic",
    "BF16Huffman",
    "BF16Split",
    "BF16Zstd",
    "__version__",
    "active_isa",
    "bound",
    "decode",
    "errors",
    "get_num_threads",
    "inspect",
    "set_num_threads",
]

for _codec in _CODECS.values():
    _register_codec(_codec)
_zarr.register()
