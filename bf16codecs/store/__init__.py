"""The model store: a model's tensors as arrays of one Zarr group or HDF5 file.

docs/store.md is the normative description of its layout.
"""

from typing import TYPE_CHECKING

from bf16codecs._base.lazy import lazy_names
from bf16codecs.errors import StoreError

if TYPE_CHECKING:
    from bf16codecs.store.attributes import StoredFile
    from bf16codecs.store.choice import CodecChoice
    from bf16codecs.store.layout import ATTRIBUTES_KEY, LAYOUT_VERSION, StoreInfo
    from bf16codecs.store.plan import plan_arrays, plan_bytes
    from bf16codecs.store.reader import ModelReader
    from bf16codecs.store.whole import stored_arrays
    from bf16codecs.store.writer import ModelWriter

__all__ = [
    "ATTRIBUTES_KEY",
    "LAYOUT_VERSION",
    "CodecChoice",
    "ModelReader",
    "ModelWriter",
    "StoreError",
    "StoreInfo",
    "StoredFile",
    "plan_arrays",
    "plan_bytes",
    "stored_arrays",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bf16codecs.store.reader": ["ModelReader"],
        "bf16codecs.store.choice": ["CodecChoice"],
        "bf16codecs.store.attributes": ["StoredFile"],
        "bf16codecs.store.layout": ["ATTRIBUTES_KEY", "LAYOUT_VERSION", "StoreInfo"],
        "bf16codecs.store.plan": ["plan_arrays", "plan_bytes"],
        "bf16codecs.store.whole": ["stored_arrays"],
        "bf16codecs.store.writer": ["ModelWriter"],
    },
)
