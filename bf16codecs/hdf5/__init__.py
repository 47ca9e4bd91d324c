"""HDF5: this package's filter for h5py, and exact reading and writing of tensors.

Importing this package registers the filter with h5py's libhdf5. Other programs load the same plugin
from `PLUGIN_PATH`: see docs/hdf5_filter.md.
"""

from bf16codecs.hdf5.filters import (
    FILTER_ID,
    PLUGIN_PATH,
    Arithmetic,
    FrameFilter,
    Huffman,
    Split,
    Zstd,
    register,
)
from bf16codecs.hdf5.tensors import read_tensor, write_tensor

__all__ = [
    "FILTER_ID",
    "PLUGIN_PATH",
    "Arithmetic",
    "FrameFilter",
    "Huffman",
    "Split",
    "Zstd",
    "read_tensor",
    "register",
    "write_tensor",
]
