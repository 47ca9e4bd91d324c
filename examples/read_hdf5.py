"""Read a model from HDF5: with this package, and with h5py alone.

    python examples/read_hdf5.py [MODEL.h5]

By default, it converts the package's demo model.
"""

import importlib.resources
import json
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

from bf16codecs import hdf5  # registers the filter with h5py
from bf16codecs.convert import safetensors_to_hdf5


def show(path: Path) -> None:
    with h5py.File(path) as file:
        paths = json.loads(file.attrs["bf16codecs"])["tensors"]
        name, dataset_path = max(paths.items(), key=lambda item: file[item[1]].size)
        dataset = file[dataset_path]
        stored = dataset.id.get_storage_size()
        print(f"{len(paths)} tensors; {name}: shape {dataset.shape}, stored in {stored} bytes")

        # Two rows, bit for bit, in the tensor's data type.
        rows = hdf5.read_tensor(dataset, np.s_[:2])
        print(f"as {rows.dtype}: {rows[:, :3].ravel()}")

        # h5py does not support bfloat16, and converts it to float32.
        converted = dataset[:2]
        print(f"as {converted.dtype}, the same numbers:", bool((converted == rows).all()))


def main() -> None:
    if len(sys.argv) > 1:
        show(Path(sys.argv[1]))
        return
    demo = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.h5"
        safetensors_to_hdf5(Path(str(demo)), path)
        show(path)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: read_hdf5.py [MODEL.h5]")
    try:
        main()
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"read_hdf5.py: {' '.join(str(error).split())}")  # libhdf5's may span lines
