"""Metadata documents of arrays, as zarr would write them.

zarr itself takes longer to be imported than a conversion of 500 MB takes; tests compare the two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numcodecs.abc import Codec

from bf16codecs import _core
from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._base.names import BLOCKS_ID
from bf16codecs.codecs import FrameCodec
from bf16codecs.store.delta import DeltaChain

__all__ = ["array_documents"]


def array_documents(
    array: ArrayPlan, codec: Codec | DeltaChain | None, zarr_format: int
) -> dict[str, Any]:
    """Return the metadata of an array by the names of their files, without attributes.

    A codec of numcodecs that is none of this package's is Zstandard.
    """
    if zarr_format == 2:
        return {".zarray": _format_2(array, codec), ".zattrs": {}}
    return {"zarr.json": _format_3(array, codec)}


def _format_3(array: ArrayPlan, codec: Codec | DeltaChain | None) -> dict[str, Any]:
    document = {
        "shape": list(array.shape),
        "data_type": array.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(array.chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": _fill_value(array),
        "codecs": _codecs(array, codec),
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    if array.dimension_names:
        document["dimension_names"] = array.dimension_names
    return document


def _codecs(array: ArrayPlan, codec: Codec | DeltaChain | None) -> list[dict[str, Any]]:
    if isinstance(codec, FrameCodec):
        return [{"name": BLOCKS_ID, "configuration": {"codec": dict(codec)}}]
    items: dict[str, Any] = {"name": "bytes"}
    if array.item_size > 1:
        items["configuration"] = {"endian": "little"}
    if codec is None:
        return [items]
    if isinstance(codec, DeltaChain):
        return [items, *codec.format_3()]
    zstd = {"level": codec.level, "checksum": codec.checksum}
    return [items, {"name": "zstd", "configuration": zstd}]


def _format_2(array: ArrayPlan, codec: Codec | DeltaChain | None) -> dict[str, Any]:
    filters, compressor = codec.format_2() if isinstance(codec, DeltaChain) else (None, codec)
    dtype = np.dtype(array.dtype)
    return {
        "shape": list(array.shape),
        "chunks": list(array.chunks),
        # NumPy calls those of ml_dtypes, which are not its own, by their size alone.
        "dtype": dtype.newbyteorder("<").str if dtype.isbuiltin == 1 else array.dtype,
        "fill_value": _fill_value(array),
        "order": "C",
        "filters": None if filters is None else [own.get_config() for own in filters],
        "dimension_separator": ".",
        "compressor": None if compressor is None else _compressor(compressor),
        "zarr_format": 2,
    }


def _compressor(codec: Codec) -> dict[str, Any]:
    config: dict[str, Any] = codec.get_config()
    if config["id"] == "zstd" and not config["checksum"]:
        del config["checksum"]  # a key that other libraries do not know
    return config


def _fill_value(array: ArrayPlan) -> Any:
    """Return the fill value as JSON, which has no NaN."""
    if np.dtype(array.dtype).kind == "c":
        return ["NaN", "NaN"]
    return "NaN" if array.dtype in _core.DTYPES else array.fill_value.item()
