"""Lossless compression of model weights in Zarr and HDF5."""

from bf16codecs._base.lazy import lazy_names as _lazy_names
from bf16codecs._base.registration import register_when_imported as _register_when_imported
from bf16codecs._base.version import __version__

# Of `typing`, which takes longer to import than all of this: before commands can handle signals.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from bf16codecs import errors
    from bf16codecs._base.threads import *
    from bf16codecs._core import active_isa, get_num_threads
    from bf16codecs.codecs import *
    from bf16codecs.model import *

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
    "safe_open",
    "set_num_threads",
]

# Nothing is imported before it is used: commands begin in a tenth of the time that zarr takes.
__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "bf16codecs._core": "active_isa get_num_threads",
        "bf16codecs._base.threads": "set_num_threads",
        "bf16codecs.codecs": (
            "BF16Arithmetic BF16Huffman BF16Split BF16Zstd RunLength"
            " bound decode encode_delta inspect"
        ),
        "bf16codecs.model": "LazyTensor Model Run open_model open_run safe_open",
    },
    submodules=[
        *("bench", "cli", "codecs", "convert", "errors", "hdf5", "model", "safetensors", "store"),
        "zarr",
    ],
    unlisted=["dask", "gguf", "torch"],
)
_register_when_imported()
del TYPE_CHECKING
