"""Model stores for the tests of reading."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from bf16codecs.convert import safetensors_to_zarr
from models import file_bytes

NAMES = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "bool": "BOOL",
    "complex64": "C64",
    **{f"int{n}": f"I{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}": f"U{n}" for n in (8, 16, 32, 64)},
}


def weights(shape: tuple[int, ...], dtype: str = "bfloat16", seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(0, 0.02, shape).astype(dtype)


def write_safetensors(
    path: Path, arrays: dict[str, NDArray[Any]], metadata: dict[str, str] | None = None
) -> Path:
    """Write arrays of any dtype to a file, in their order."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    ends = itertools.accumulate((a.nbytes for a in arrays.values()), initial=0)
    for (name, array), (start, stop) in zip(arrays.items(), itertools.pairwise(ends), strict=True):
        dtype, shape = NAMES[array.dtype.name], list(array.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
    path.write_bytes(file_bytes(header, b"".join(a.tobytes() for a in arrays.values())))
    return path


def write_store(path: Path, arrays: dict[str, NDArray[Any]], **options: Any) -> Path:
    """Write arrays as a model store."""
    source = write_safetensors(path.with_name(path.name + ".safetensors"), arrays)
    safetensors_to_zarr(source, path, verify=False, overwrite=True, **options)
    source.unlink()
    return path


def in_memory(folder: Path) -> MemoryStore:
    """Copy a store in a folder to one of zarr's in memory."""
    make = default_buffer_prototype().buffer.from_bytes
    return MemoryStore(
        {
            path.relative_to(folder).as_posix(): make(path.read_bytes())
            for path in folder.rglob("*")
            if path.is_file()
        }
    )


def write_shards(folder: Path, shards: list[dict[str, NDArray[Any]]]) -> Path:
    """Write a sharded model with its index, as Hugging Face does."""
    folder.mkdir()
    weight_map = {}
    for i, arrays in enumerate(shards, 1):
        name = f"model-{i:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / name, arrays, {"format": "pt"})
        weight_map.update(dict.fromkeys(arrays, name))
    total = sum(a.nbytes for arrays in shards for a in arrays.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder
