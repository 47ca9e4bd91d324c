"""The model store: a model's tensors as arrays of one Zarr group or HDF5 file.

docs/store.md is the normative description of its layout.
"""

from bf16codecs.errors import StoreError

__all__ = ["StoreError"]
