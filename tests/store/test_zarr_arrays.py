"""Metadata of arrays equal those that zarr writes, for every type, shape and codec."""

from __future__ import annotations

import json
from typing import Any

import pytest
import zarr
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

import tiers
from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs.codecs import FrameCodec
from bf16codecs.store.choice import CODEC_NAMES, PLAIN_ZSTD, CodecChoice
from bf16codecs.store.delta import DeltaChain
from bf16codecs.store.zarr.documents import array_documents
from bf16codecs.zarr import BF16BlocksCodec
from lazy_models import NAMES
from looping import noted

formats = pytest.mark.parametrize("zarr_format", [2, 3])

FORMS = [((), ()), ((5,), (5,)), ((5, 7), (2, 7)), ((0, 3), (1, 3)), ((2, 3, 4, 5), (1, 1, 4, 5))]


def of_zarr(array: ArrayPlan, codec: Any, zarr_format: int) -> dict[str, Any]:
    """Let zarr write the metadata of an array."""
    options: dict[str, Any] = {"compressors": codec, "chunk_key_encoding": {"name": "v2"}}
    if isinstance(codec, DeltaChain) and zarr_format == 2:
        options["filters"], options["compressors"] = codec.format_2()
    if zarr_format == 3:
        options["chunk_key_encoding"] = {"name": "default", "separator": "."}
        options["dimension_names"] = array.dimension_names
        if isinstance(codec, FrameCodec):
            options.update(serializer=BF16BlocksCodec(codec), compressors=None)
        elif isinstance(codec, DeltaChain):
            options["compressors"] = codec.format_3()
        elif codec is not None:
            options["compressors"] = ZstdCodec(level=codec.level, checksum=codec.checksum)
    store = MemoryStore()
    zarr.create_array(
        store,
        shape=array.shape,
        chunks=array.chunks,
        dtype=array.dtype,
        fill_value=array.fill_value,
        zarr_format=zarr_format,
        **options,
    )
    documents = {key: json.loads(value.to_bytes()) for key, value in store._store_dict.items()}
    documents.pop(".zattrs", None)
    return documents


def check(array: ArrayPlan, codec: Any, zarr_format: int) -> None:
    with noted(array, codec):
        ours = array_documents(array, codec, zarr_format)
        assert ours.pop(".zattrs", {}) == {}
        assert json.loads(json.dumps(ours)) == of_zarr(array, codec, zarr_format)


@formats
def test_arrays_of_models(zarr_format: int) -> None:
    codecs = (*CODEC_NAMES, PLAIN_ZSTD)
    for i, dtype in enumerate(NAMES):
        for j, (shape, chunks) in enumerate(FORMS):
            array = ArrayPlan("a", dtype, shape, chunks)
            for name in tiers.by_tier([codecs[(i + j) % len(codecs)]], codecs):
                check(array, CodecChoice(name).for_dtype(dtype, zarr_format), zarr_format)


@formats
def test_arrays_of_runs(zarr_format: int) -> None:
    for dtype in ("bfloat16", "float32", "int64", "bool"):
        array = ArrayPlan("a", dtype, (20, 5, 7), (4, 5, 7))
        for codec in ("arithmetic", "huffman"):
            check(array, CodecChoice(codec).for_run(dtype, 4), zarr_format)


@formats
def test_lossy_arrays(zarr_format: int) -> None:
    for codec in ("delta-rle", "delta-deflate"):
        chain = CodecChoice(codec, lossy="float16").chain("float16")
        check(ArrayPlan("a", "float16", (5, 7), (2, 7)), chain, zarr_format)
