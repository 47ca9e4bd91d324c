"""Conversion between safetensors files and model stores."""

from typing import TYPE_CHECKING

from bf16codecs._base.lazy import lazy_names

if TYPE_CHECKING:
    from bf16codecs.convert.fleet.plan import *
    from bf16codecs.convert.fleet.planning import *
    from bf16codecs.convert.fleet.running import *
    from bf16codecs.convert.hugging_face.packing import *
    from bf16codecs.convert.rebasing import *
    from bf16codecs.convert.restore import *
    from bf16codecs.convert.runs.dropping import *
    from bf16codecs.convert.runs.series import *
    from bf16codecs.convert.runs.undoing import *
    from bf16codecs.convert.store import *
    from bf16codecs.convert.summary import *
    from bf16codecs.convert.verify import *
    from bf16codecs.store.choice import *
    from bf16codecs.store.opening import *

__all__ = [
    "DEFAULT_CHUNK_SIZE",
    "DEFAULT_CODEC",
    "Conversion",
    "ConversionResult",
    "DroppedSteps",
    "FolderSummary",
    "Progress",
    "Summary",
    "UndoneAppend",
    "append_to_run",
    "convert_fleet",
    "drop_steps",
    "hdf5_to_safetensors",
    "open_store",
    "pack_hugging_face",
    "parse_plan",
    "plan_fleet",
    "plan_text",
    "rebase_store",
    "run_to_safetensors",
    "safetensors_to_hdf5",
    "safetensors_to_run",
    "safetensors_to_zarr",
    "undo_append",
    "unpack_hugging_face",
    "verify_store",
    "zarr_to_safetensors",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bf16codecs.convert.fleet.plan": "Conversion parse_plan plan_text",
        "bf16codecs.convert.fleet.planning": "plan_fleet",
        "bf16codecs.convert.fleet.running": "ConversionResult convert_fleet",
        "bf16codecs.convert.hugging_face.packing": (
            "FolderSummary pack_hugging_face unpack_hugging_face"
        ),
        "bf16codecs.convert.rebasing": "rebase_store",
        "bf16codecs.convert.restore": "hdf5_to_safetensors run_to_safetensors zarr_to_safetensors",
        "bf16codecs.convert.runs.dropping": "DroppedSteps drop_steps",
        "bf16codecs.convert.runs.series": "append_to_run safetensors_to_run",
        "bf16codecs.convert.store": "safetensors_to_hdf5 safetensors_to_zarr",
        "bf16codecs.convert.summary": "Progress Summary",
        "bf16codecs.convert.runs.undoing": "UndoneAppend undo_append",
        "bf16codecs.convert.verify": "verify_store",
        "bf16codecs.store.choice": "DEFAULT_CHUNK_SIZE DEFAULT_CODEC",
        "bf16codecs.store.opening": "open_store",
    },
)
