"""Lossless compression of model weights in Zarr and HDF5."""

import os as _os
import warnings as _warnings
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from numcodecs.registry import register_codec as _register_codec

from bf16codecs import errors
from bf16codecs import zarr as _zarr
from bf16codecs._core import active_isa, get_num_threads, set_num_threads
from bf16codecs._core import isas as _isas
from bf16codecs._version import __version__
from bf16codecs.codecs import (
    CODECS as _CODECS,
)
from bf16codecs.codecs import (
    BF16Arithmetic,
    BF16Huffman,
    BF16Split,
    BF16Zstd,
    RunLength,
    bound,
    decode,
    encode_delta,
    inspect,
)

if _TYPE_CHECKING:
    from bf16codecs.model import LazyTensor, Model, Run, open_model, open_run

__all__ = [
    "BF16Arithmetic",
    "BF16Huffman",
    "BF16Split",
    "BF16Zstd",
    "LazyTensor",
    "Model",
    "Run",
    "RunLength",
    "__version__",
    "active_isa",
    "bound",
    "decode",
    "encode_delta",
    "errors",
    "get_num_threads",
    "inspect",
    "open_model",
    "open_run",
    "set_num_threads",
]

for _codec in (*_CODECS.values(), RunLength):
    _register_codec(_codec)
_zarr.register()

# No error: a variable that is set for a fleet must not stop its older machines.
_wanted_isa = _os.environ.get("BF16CODECS_ISA")
if _wanted_isa and _wanted_isa != active_isa():
    _warnings.warn(
        f"BF16CODECS_ISA is {_wanted_isa!r:.80}, which this machine does not have: it has"
        f" {', '.join(_isas())}; {active_isa()} is used",
        RuntimeWarning,
        stacklevel=2,
    )


def __getattr__(name: str) -> _Any:
    # Imported on first use: zarr's workers need only the codecs.
    if name in ("LazyTensor", "Model", "Run", "open_model", "open_run"):
        from bf16codecs import model

        return getattr(model, name)
    if name in ("dask", "hdf5", "torch"):
        return _import_module(f"bf16codecs.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
