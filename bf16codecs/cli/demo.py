"""What the `demo` command does with each codec."""

from __future__ import annotations

import filecmp
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bf16codecs.convert.convert import safetensors_to_zarr, zarr_to_safetensors
from bf16codecs.safetensors import read_header
from bf16codecs.store.choice import CodecChoice

__all__ = ["CODECS", "DemoResult", "measure"]

#: Codecs and levels in the order in which they are shown.
CODECS: list[tuple[str, str | None]] = [
    ("arithmetic", "fast"),
    ("arithmetic", "best"),
    ("huffman", None),
    ("zstd", None),
    ("split", None),
    ("none", None),
]

# The demo's model is small; repeated to this size, it shows the speeds of a large one.
_MEASURED_BYTES = 1 << 25
_REPEATS = 3


@dataclass(frozen=True)
class DemoResult:
    """Sizes and speeds of one codec."""

    stored_nbytes: int
    #: Bits per value, without the store's metadata.
    bits: float
    #: Bytes per second in memory.
    encode_rate: float
    decode_rate: float
    exact: bool


def measure(model: Path, folder: Path, codec: str, level: str | None) -> DemoResult:
    """Convert a model there and back in `folder`, and time the codec alone."""
    store, restored = folder / f"{codec}-{level}.zarr", folder / f"{codec}-{level}.safetensors"
    summary = safetensors_to_zarr(model, store, codec=codec, level=level)
    zarr_to_safetensors(store, restored)
    data = np.fromfile(model, np.uint8, offset=read_header(model).data_start)
    values = data.size // 2
    data = np.resize(data[: values * 2], _MEASURED_BYTES)
    encode: Callable[[Any], Any] = np.copy
    decode: Callable[[Any, Any], Any] = np.copyto
    coder = CodecChoice(codec, level).for_dtype("bfloat16")
    if coder is not None:
        encode, decode = coder.encode, lambda out, encoded: coder.decode(encoded, out=out)
    encoded, out = encode(data), np.zeros_like(data)
    encode_time = min(_seconds(lambda: encode(data)) for _ in range(_REPEATS))
    decode_time = min(_seconds(lambda: decode(out, encoded)) for _ in range(_REPEATS))
    return DemoResult(
        summary.stored_nbytes,
        16 * len(encoded) / data.size,
        data.size / encode_time,
        data.size / decode_time,
        filecmp.cmp(model, restored, shallow=False) and np.array_equal(out, data),
    )


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
