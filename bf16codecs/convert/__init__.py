"""Conversion between safetensors files and model stores."""

from bf16codecs.convert.convert import (
    DEFAULT_CHUNK_SIZE,
    DEFAULT_CODEC,
    Summary,
    hdf5_to_safetensors,
    open_store,
    safetensors_to_hdf5,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)

__all__ = [
    "DEFAULT_CHUNK_SIZE",
    "DEFAULT_CODEC",
    "Summary",
    "hdf5_to_safetensors",
    "open_store",
    "safetensors_to_hdf5",
    "safetensors_to_zarr",
    "verify_store",
    "zarr_to_safetensors",
]
