"""Makes safetensors files for tests: small models of every dtype, with awkward names and bits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bf16codecs.safetensors import DTYPE_BITS

#: Names that must be escaped to become paths.
TRICKY_NAMES = [
    "",
    ".",
    "..",
    "../../x",
    "/a",
    "a",
    "a.b",
    "a.b.c",
    "a/",
    "a//b",
    "a\\b",
    "a..b",
    "A.b",
    "B",
    "b",
    "c/0",
    "c.0",
    "c.0.0",
    "zarr.json",
    ".zarray",
    "safetensors",
    "safetensors.header.0",
    "__reserved",
    "con",
    "nul.x",
    "C:\\x",
    "~",
    "%41",
    "=41",
    "a=",
    "new\nline",
    "nul\0byte",
    "[bold]x[/bold]",
    "\u00e9",
    "e\u0301",
    "\U0001f600",
    "x" * 300,
    "x" * 299 + "X",
    "y." * 600,
    "\u6a21" * 100,
]


def nbytes(dtype: str, shape: Iterable[int]) -> int:
    """Return the size of a tensor's data."""
    return math.prod(shape) * DTYPE_BITS[dtype] // 8


def file_bytes(header: bytes | Mapping[str, Any], data: bytes = b"") -> bytes:
    """Join a header and data to a safetensors file."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(dtype: str, shape: Iterable[int], start: int = 0) -> dict[str, Any]:
    """Return a tensor's entry in a header."""
    shape = list(shape)
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + nbytes(dtype, shape)]}


def write_model(
    path: Path, tensors: Iterable[tuple[str, str, tuple[int, ...]]], seed: int = 0
) -> Path:
    """Write a file of random bytes: NaNs of every payload, negative zeros; booleans are 0 or 1."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape in tensors:
        header[name] = entry(dtype, shape, offset)
        offset = header[name]["data_offsets"][1]
    data = np.random.default_rng(seed).integers(0, 256, offset, dtype=np.uint8)
    for tensor in header.values():
        if tensor.get("dtype") == "BOOL":
            data[slice(*tensor["data_offsets"])] &= 1
    path.write_bytes(file_bytes(header, data.tobytes()))
    return path


def every_dtype(path: Path) -> Path:
    """Write a model with every dtype in several shapes, scalars and empty tensors among them."""
    tensors = []
    for dtype, bits in DTYPE_BITS.items():
        shapes: list[tuple[int, ...]] = [(7, 24), (3, 0, 2)]
        shapes += [(), (4, 3, 5)] if bits % 8 == 0 else [(8, 3)]
        tensors += [(f"{dtype}.{i}", dtype, shape) for i, shape in enumerate(shapes)]
    return write_model(path, tensors)
