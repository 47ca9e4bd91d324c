"""Conversion between safetensors files and model stores."""

from bf16codecs.convert.pipeline import LOCAL, Engine
from bf16codecs.convert.rebasing import rebase_store
from bf16codecs.convert.restoring import (
    hdf5_to_safetensors,
    run_to_safetensors,
    zarr_to_safetensors,
)
from bf16codecs.convert.runs import append_to_run, safetensors_to_run
from bf16codecs.convert.storing import (
    DEFAULT_CHUNK_SIZE,
    DEFAULT_CODEC,
    safetensors_to_hdf5,
    safetensors_to_zarr,
)
from bf16codecs.convert.summary import Progress, Summary
from bf16codecs.convert.verifying import verify_store
from bf16codecs.store.opening import open_store

__all__ = [
    "DEFAULT_CHUNK_SIZE",
    "DEFAULT_CODEC",
    "LOCAL",
    "Engine",
    "Progress",
    "Summary",
    "append_to_run",
    "hdf5_to_safetensors",
    "open_store",
    "rebase_store",
    "run_to_safetensors",
    "safetensors_to_hdf5",
    "safetensors_to_run",
    "safetensors_to_zarr",
    "verify_store",
    "zarr_to_safetensors",
]
