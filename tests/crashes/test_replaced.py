"""A model is read from one store, or not at all, while others take its path.

test_contract.py replaces it at every moment of reading.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_zarr
from bf16codecs.store import StoreError
from lazy_models import write_safetensors

NAMES = ["m.zarr", "m2.zarr", "m.zarr.zip", "m.h5", "m.safetensors"]
N_TENSORS = 8


def model_of(number: int) -> dict[str, Any]:
    """Return a model all of whose values are its number."""
    return {f"t{i}": np.full((32, 16), number, "bfloat16") for i in range(N_TENSORS)}


def write(path: Path, number: int) -> None:
    """Write a model to a path, or replace the one there."""
    source = path.with_name(f"source-{number}.safetensors")
    write_safetensors(source, model_of(number))
    if path.name == "m.safetensors":
        os.replace(source, path)
        return
    options: dict[str, Any] = {"codec": "none", "overwrite": True, "chunk_size": 256}
    if path.suffix == ".h5":
        safetensors_to_hdf5(source, path, **options)
    else:
        zarr_format = 2 if path.name == "m2.zarr" else 3
        safetensors_to_zarr(source, path, zarr_format=zarr_format, **options)
    source.unlink()


def numbers(arrays: Any) -> set[float]:
    return {float(value) for array in arrays for value in np.unique(array.astype("float32"))}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_was_replaced_is_the_old_one_or_an_error(tmp_path, name):
    path = tmp_path / name
    write(path, 1)
    with bf16codecs.open_model(path) as model:
        tensors = list(model.values())
        seen, errors = [tensors[0][...]], []
        write(path, 2)
        reads = [partial(tensor.__getitem__, at) for tensor in tensors for at in (..., 5)]
        for read in (*reads, lambda: np.stack(list(model.load().values()))):
            try:
                seen.append(np.atleast_1d(read()))
            except StoreError as e:
                errors.append(str(e))
        assert all("replaced or removed" in error for error in errors)
        assert numbers(seen) == {1}
    with bf16codecs.open_model(path) as model:
        assert numbers(model.load().values()) == {2}


@pytest.mark.parametrize("name", ["m.zarr", "m2.zarr"])
def test_a_store_that_was_moved_is_read_on(tmp_path, name):
    path = tmp_path / name
    write(path, 1)
    with bf16codecs.open_model(path) as model:
        path.rename(tmp_path / "elsewhere")
        write(path, 2)
        assert numbers(model.load().values()) == {1}
        shutil.rmtree(tmp_path / "elsewhere")
        with pytest.raises(
            StoreError, match="replaced or removed while it was open: open it again"
        ):
            model.load()
