"""Convert a model to a Zarr store, read one tensor with plain zarr, and restore the file.

    python examples/convert_model.py [MODEL.safetensors]

By default, it converts the package's demo model.
"""

import filecmp
import importlib.resources
import sys
import tempfile
from pathlib import Path

import zarr

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr, zarr_to_safetensors


def main() -> None:
    demo = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(str(demo))
    with tempfile.TemporaryDirectory() as folder:
        store, restored = Path(folder) / "model.zarr", Path(folder) / "restored.safetensors"

        summary = safetensors_to_zarr(model, store)
        print(f"{summary.tensors} tensors, {summary.nbytes} -> {summary.stored_nbytes} bytes")

        group = zarr.open_group(store, mode="r")
        paths = group.attrs["bf16codecs"]["tensors"]
        name, path = max(paths.items(), key=lambda item: group[item[1]].size)
        array = group[path]
        print(f"{name}: {array.dtype} {array.shape}, first values {array[:1].ravel()[:3]}")

        zarr_to_safetensors(store, restored)
        print("identical:", filecmp.cmp(model, restored, shallow=False))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: convert_model.py [MODEL.safetensors]")
    try:
        main()
    except (bf16codecs.errors.BF16CodecsError, OSError, ValueError) as error:
        sys.exit(f"convert_model.py: {error}")
