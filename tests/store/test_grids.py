"""Weights that were quantised once in stores: how large they are, and what `info` tells of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bf16codecs.bench.synthetic import RECIPES
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr
from bf16codecs.model import open_model
from lazy_models import write_safetensors

#: Names of stores, what makes them, and options.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "v3.zarr": (safetensors_to_zarr, {}),
    "v2.zarr": (safetensors_to_zarr, {"zarr_format": 2, "codec": "huffman"}),
    "m.zarr.zip": (safetensors_to_zarr, {}),
    "m.h5": (safetensors_to_hdf5, {}),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def quantised(recipe: str, dtype: Any = ml_dtypes.bfloat16, seed: int = 0) -> Any:
    normal = np.random.default_rng(seed).normal(0, 0.02, (256, 512)).astype(np.float32)
    return RECIPES[recipe](normal).astype(dtype)


def write_kind(kind: str, source: Path, **more: Any) -> Path:
    """Convert a model to a store of a kind, beside it."""
    convert, options = KINDS[kind]
    convert(source, source.with_name(kind), **options, **more)
    return source.with_name(kind)


@kinds
def test_codecs_see_the_rows_of_tensors(tmp_path: Path, kind: str) -> None:
    """Columns are found only where the codec knows the rows."""
    tensors = {"w": quantised("int8-columns")}
    store = write_kind(kind, write_safetensors(tmp_path / "m.safetensors", tensors))
    with open_model(store) as model:
        (stored,) = model.info().table()["stored_nbytes"]
    assert stored < 0.51 * tensors["w"].nbytes
