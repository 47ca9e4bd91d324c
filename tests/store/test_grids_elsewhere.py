"""Stores of every kind of quantised weights, read by other programs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import bf16codecs
from bf16codecs.bench.synthetic import RECIPES
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr, zarr_to_safetensors
from bits import assert_same_bits
from lazy_models import write_safetensors

DTYPES = (ml_dtypes.bfloat16, np.float16, np.float32)


@pytest.fixture(scope="module")
def tensors() -> dict[str, NDArray[Any]]:
    """Tensors of every recipe and data type; the rounded ones are of other numbers."""
    found = {}
    for seed, dtype in enumerate(DTYPES):
        normal = np.random.default_rng(seed).normal(0, 0.02, (256, 512)).astype(np.float32)
        for name, make in RECIPES.items():
            found[f"{name}-{np.dtype(dtype).name}"] = make(normal).astype(dtype)
    return found


@pytest.fixture(scope="module")
def source(tensors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_safetensors(tmp_path_factory.mktemp("model") / "m.safetensors", tensors)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_and_xarray_read_all_recipes(
    tensors: dict[str, NDArray[Any]], source: Path, tmp_path: Path, zarr_format: int
) -> None:
    store, back = tmp_path / "m.zarr", tmp_path / "back.safetensors"
    safetensors_to_zarr(source, store, zarr_format=zarr_format, chunk_size=128 * 1024)
    group = zarr.open_group(store, mode="r")
    for name, array in tensors.items():
        found = group[name]
        assert isinstance(found, zarr.Array)
        assert_same_bits(found[...].view(array.dtype), array)
    zarr_to_safetensors(store, back)
    assert back.read_bytes() == source.read_bytes()
    xarray = pytest.importorskip("xarray")
    options = {"chunks": None, "mask_and_scale": False, "consolidated": False}
    dataset = xarray.open_zarr(store, **options)
    for name, array in tensors.items():
        assert_same_bits(dataset[name].values.view(array.dtype), array)


def test_the_store_has_grids(source: Path, tmp_path: Path) -> None:
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        grids = dict(zip(model, model.info().table()["grid"], strict=True))
    plain = {name.rpartition("-")[0] for name, grid in grids.items() if grid is None}
    # Zeros of pruned weights have a mode of their own; powers of two are few numbers as they are.
    assert plain <= {"gaussian", "pruned-50", "pruned-90", "pruned-2-4", "fp8-tiles-pow2", "mxfp4"}


@pytest.mark.skipif(
    shutil.which("h5dump") is None, reason="h5dump (Debian: hdf5-tools) is not installed"
)
def test_h5dump_prints_all_recipes(
    tensors: dict[str, NDArray[Any]], source: Path, tmp_path: Path
) -> None:
    from hdf5_tools import dumped

    safetensors_to_hdf5(source, tmp_path / "m.h5")
    for name, array in tensors.items():
        part = dumped(tmp_path / "m.h5", name, "-A", "0", "-s", "120,60", "-c", "16,130")
        np.testing.assert_array_equal(part, array[120:136, 60:190].astype(np.float32).ravel())
