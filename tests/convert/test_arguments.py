"""Arguments of wrong types are named, and nothing is made."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs import open_model
from bf16codecs.convert import (
    append_to_run,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from folders import names_in
from models import write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.safetensors", [("a", "BF16", (64, 8))])


def as_run(source: Path, store: Path, **options: Any) -> None:
    safetensors_to_run([source], store, steps=[1], **options)


def append(source: Path, store: Path, **options: Any) -> None:
    append_to_run(source, store, 1, **options)


@pytest.mark.parametrize("convert", [safetensors_to_zarr, safetensors_to_hdf5, as_run, append])
def test_arguments_of_making_stores(convert: Any, model: Path, tmp_path: Path) -> None:
    for name, value in itertools.product(("chunk_size", "threads"), ("3", 1e6, True, [4096])):
        with pytest.raises(TypeError, match=rf"^{name} must be an integer, not .*\(\w+\)$"):
            convert(model, tmp_path / "x", **{name: value})
        assert names_in(tmp_path) == {model.name}, (name, value)


def test_arguments_of_reading_stores(model: Path, tmp_path: Path) -> None:
    store, target = tmp_path / "x.zarr", tmp_path / "back.safetensors"
    safetensors_to_zarr(model, store)
    for name in ("threads", "max_bytes"):
        with pytest.raises(TypeError, match=rf"^{name} must be an integer, not '3' \(str\)$"):
            zarr_to_safetensors(store, target, **{name: "3"})
        with pytest.raises(TypeError, match=f"^{name} must be an integer, not 2.5"):
            verify_store(store, model, **{name: 2.5})
    with pytest.raises(TypeError, match=r"^max_bytes must be an integer, not True \(bool\)$"):
        open_model(store, max_bytes=True)
    assert names_in(tmp_path) == {model.name, store.name}


def test_integers_of_numpy_are_integers(model: Path, tmp_path: Path) -> None:
    number = np.int64(8192)
    for convert in (safetensors_to_zarr, safetensors_to_hdf5, as_run):
        convert(model, tmp_path / convert.__name__, chunk_size=number, threads=np.int32(2))
    with open_model(tmp_path / "safetensors_to_zarr", max_bytes=number) as opened:
        assert opened["a"][...].shape == (64, 8)
