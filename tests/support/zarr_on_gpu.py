"""Arrays that zarr reads to a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd
from bf16codecs.zarr import BF16BlocksCodec
from lazy_models import weights

CODECS = {
    "arithmetic": BF16Arithmetic("auto"),
    "best": BF16Arithmetic("auto", level="best"),
    "huffman": BF16Huffman("auto"),
    "split": BF16Split("auto"),
    "split by byte": BF16Split("auto", by="byte"),
    "zstd": BF16Zstd(dtype="auto"),
    "no checksum": BF16Arithmetic("auto", checksum=False),
}
WEIGHTS = weights((700, 512))
ON_THE_HOST = {"buffer": "zarr.buffer.cpu.Buffer", "ndbuffer": "zarr.buffer.cpu.NDBuffer"}


def made(data: np.ndarray, codec: Any, kind: str, **options: Any) -> dict[str, Any]:
    """Write an array, of one chunk by default, with zarr's buffers on the host."""
    store: dict[str, Any] = {}
    options = {"chunks": tuple(max(1, n) for n in data.shape), **options}
    if kind == "blocks":
        options = {"serializer": BF16BlocksCodec(codec), "compressors": None, **options}
    else:
        options = {"compressors": codec, **options}
    with zarr.config.set(ON_THE_HOST):
        zarr.create_array(store, data=data, fill_value=1, **options)
    return store


def host_bytes(cupy: Any, array: Any) -> bytes:
    """Return the bytes of an array on the GPU."""
    assert isinstance(array, cupy.ndarray)
    return cupy.asnumpy(array).tobytes()
