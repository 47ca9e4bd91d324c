"""Write the stores that the page offers: the model of ``bf16codecs demo``, and one to measure with.

python samples.py FOLDER
"""

import importlib.resources
import json
import struct
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

from bf16codecs.convert import safetensors_to_zarr

ROWS, COLUMNS = 4096, 2048


def write_weights(path: Path) -> None:
    """Write 16 MiB of numbers as weights are: normal, each row with a scale of its own."""
    rng = np.random.default_rng(1)
    scales = rng.uniform(0.01, 0.04, (ROWS, 1))
    weights = (rng.standard_normal((ROWS, COLUMNS)) * scales).astype(ml_dtypes.bfloat16)
    entry = {"dtype": "BF16", "shape": weights.shape, "data_offsets": [0, weights.nbytes]}
    header = json.dumps({"weights": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + weights.tobytes())


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    demo = importlib.resources.files("bf16codecs") / "data" / "demo.safetensors"
    with importlib.resources.as_file(demo) as path:
        safetensors_to_zarr(path, folder / "demo.zarr", overwrite=True)
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "weights.safetensors"
        write_weights(weights)
        for codec, level in (("arithmetic", "fast"), ("arithmetic", "best"), ("huffman", None)):
            store = folder / f"weights-{level or codec}.zarr"
            safetensors_to_zarr(weights, store, codec=codec, level=level, overwrite=True)


if __name__ == "__main__":
    main()
