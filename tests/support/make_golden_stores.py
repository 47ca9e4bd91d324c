"""Writes the golden stores of test_golden_stores.py.

    python tests/support/make_golden_stores.py

Golden stores hold the store layout: each was written by an early release and is read for ever. So
an existing one is never replaced; a new layout gets new names.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr

FOLDER = Path(__file__).resolve().parents[1] / "store" / "goldens"
CHUNK_SIZE = 4096  # several chunks for a matrix, the last one padded

#: Name of a store: what converts, and with which options.
STORES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "layout1-zarr3.zarr": (safetensors_to_zarr, {"codec": "arithmetic"}),
    "layout1-zarr2.zarr": (safetensors_to_zarr, {"codec": "huffman", "zarr_format": 2}),
    "layout1-zstd.zarr.zip": (safetensors_to_zarr, {"codec": "zstd"}),
    "layout1-best.zarr.zip": (safetensors_to_zarr, {"codec": "arithmetic", "level": "best"}),
    "layout1-none.zarr.zip": (safetensors_to_zarr, {"codec": "none"}),
    "layout1-arithmetic.h5": (safetensors_to_hdf5, {"codec": "arithmetic"}),
    "layout1-zstd.h5": (safetensors_to_hdf5, {"codec": "zstd"}),
    "layout1-none.h5": (safetensors_to_hdf5, {"codec": "none"}),
}

#: Of the same files, with FP32 tensors in half precision.
LOSSY_STORES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    f"layout2-lossy-{name}.zarr.zip": (safetensors_to_zarr, {"lossy": "float16", **options})
    for name, options in {
        "rle-zarr3": {"codec": "delta-rle"},
        "rle-zarr2": {"codec": "delta-rle", "zarr_format": 2},
        "deflate-zarr3": {"codec": "delta-deflate", "level": 6},
        "deflate-zarr2": {"codec": "delta-deflate", "level": 6, "zarr_format": 2},
        "huffman-zarr3": {"codec": "huffman"},
    }.items()
}

#: Name, dtype, shape; names that cannot be paths, forms that arrays do not keep.
SHARDS: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    "model-00001-of-00002.safetensors": [
        ("model.embed.weight", "BF16", (53, 96)),
        ("model.layers.0.norm.weight", "BF16", (5,)),
        ("master", "F32", (3, 40)),
        ("step", "I64", ()),
    ],
    "model-00002-of-00002.safetensors": [
        ("../Scale", "F8_E4M3", (4, 16)),
        ("packed", "F6_E2M3", (2, 4)),
        ("mask", "BOOL", (9,)),
        ("empty", "F16", (0, 3)),
    ],
}
_BITS = {"BF16": 16, "F32": 32, "I64": 64, "F8_E4M3": 8, "F6_E2M3": 6, "BOOL": 8, "F16": 16}


def _numbers(n: int, seed: int) -> np.ndarray:
    """Return `n` bytes of small bfloat16 numbers, by integer arithmetic alone."""
    items = np.arange(n // 2 + 1, dtype=np.uint64) + np.uint64(seed * 7919 + 1)
    items = items * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    items ^= items >> np.uint64(29)
    word = (items * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(32)
    exponent = np.uint64(118) + (word & np.uint64(3)) + (word >> np.uint64(2) & np.uint64(1))
    rest = word >> np.uint64(8) & np.uint64(0x807F)
    return (exponent << np.uint64(7) | rest).astype("<u2").view(np.uint8)[:n]


def shard(name: str) -> bytes:
    """Return the content of a safetensors file that the stores are made of."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "shard": name}}
    data = b""
    for seed, (tensor, dtype, shape) in enumerate(SHARDS[name]):
        n = int(np.prod(shape, dtype=int)) * _BITS[dtype] // 8
        raw = _numbers(n, seed)
        raw = raw & 1 if dtype == "BOOL" else raw
        header[tensor] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + n],
        }
        data += raw.tobytes()
    raw_header = json.dumps(header).encode()
    raw_header += b" " * (-len(raw_header) % 8)
    return len(raw_header).to_bytes(8, "little") + raw_header + data


def index() -> bytes:
    """Return the content of the index beside the shards."""
    files = {tensor: name for name, tensors in SHARDS.items() for tensor, _, _ in tensors}
    return json.dumps({"metadata": {}, "weight_map": files}, indent=2).encode()


def originals() -> dict[str, bytes]:
    """Return the files that every golden store restores."""
    return {"model.safetensors.index.json": index(), **{name: shard(name) for name in SHARDS}}


def main() -> None:
    """Write the stores that do not exist."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in originals().items():
            Path(folder, name).write_bytes(content)
        for name, (convert, options) in {**STORES, **LOSSY_STORES}.items():
            if (FOLDER / name).exists():
                print(f"{name}: kept", file=sys.stderr)
            else:
                convert(folder, FOLDER / name, chunk_size=CHUNK_SIZE, **options)


if __name__ == "__main__":
    main()
