"""HDF5 files that strangers made: other types, data that were never written, shapes without end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import hdf5_to_safetensors, safetensors_to_hdf5, verify_store
from bf16codecs.store import StoreError
from lazy_models import weights, write_safetensors

ARRAYS = {"w": weights((64, 32)), "n": np.arange(1000)}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "m.h5"
    safetensors_to_hdf5(write_safetensors(tmp_path / "m.safetensors", ARRAYS), path)
    return path


def replaced(store: Path, path: str, make: Callable[[h5py.File], Any]) -> None:
    """Put another dataset in the place of one, with its attributes."""
    with h5py.File(store, "r+") as file:
        attributes = dict(file[path].attrs)
        del file[path]
        make(file).attrs.update(attributes)


def refused(store: Path, match: str) -> None:
    for read in (
        lambda: bf16codecs.open_model(store).load(),
        lambda: bf16codecs.open_model(store)["w"][3],
        lambda: hdf5_to_safetensors(store, store.with_name("back")),
        lambda: verify_store(store),
    ):
        with pytest.raises(StoreError, match=match):
            read()
    assert not store.with_name("back").exists()


VARIABLE = h5py.vlen_dtype(np.int32)


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        (VARIABLE, np.array([np.arange(3, dtype=np.int32)] * 64, VARIABLE)),
        (h5py.string_dtype(), ["text"] * 64),
        (h5py.ref_dtype, None),
        (h5py.regionref_dtype, None),
        ("S7", b"x"),
        ("V5", None),
        ("(3,)i4", None),
        ([("a", "f4"), ("b", "i2")], None),
        ("c16", 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("chunks", [None, True])
def test_types_that_no_tensor_has(store, dtype, data, chunks):
    """Sequences of any length were written over memory that they do not fit into."""
    kind = np.dtype(dtype) if not isinstance(dtype, np.dtype) else dtype

    def make(file: h5py.File) -> Any:
        dataset = file.create_dataset("w", (64,), kind, chunks=chunks)
        if data is not None:
            dataset[...] = data
        return dataset

    replaced(store, "w", make)
    refused(store, r"not the data type of a tensor|is missing")


def test_a_header_of_another_type(store):
    def make(file: h5py.File) -> Any:
        dataset = file.create_dataset("safetensors/header/0", (3,), VARIABLE)
        dataset[...] = np.array([np.arange(3, dtype=np.int32)] * 3, VARIABLE)
        return dataset

    replaced(store, "safetensors/header/0", make)
    refused(store, "not the data type of a tensor")


@pytest.mark.parametrize(
    "options",
    [{}, {"chunks": (8, 32)}, {"chunks": (8, 32), "compression": "gzip"}],
    ids=["contiguous", "chunks", "gzip"],
)
def test_data_that_were_never_written(store, options):
    """HDF5 reads zeros there."""

    def make(file: h5py.File) -> Any:
        return file.create_dataset("w", (64, 32), np.float16, **options)

    arrays = {"w": np.zeros((64, 32), np.float16)}
    safetensors_to_hdf5(
        write_safetensors(store.with_name("m.safetensors"), arrays), store, overwrite=True
    )
    replaced(store, "w", make)
    refused(store, "missing")
    if options:
        with h5py.File(store, "r+") as file:
            file["w"][:32] = 1
        with pytest.raises(StoreError, match="missing"):
            bf16codecs.open_model(store).load()


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (1 << 62,), (1 << 24,)])
@pytest.mark.parametrize("chunks", [None, 1])
def test_shapes_without_an_end(store, shape, chunks):
    def make(file: h5py.File) -> Any:
        options: dict[str, Any] = {} if chunks is None else {"chunks": (1,) * len(shape)}
        space = h5py.h5s.create_simple(shape)
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if options:
            properties.set_chunk(options["chunks"])
        kind = h5py.h5t.py_create(np.dtype("u1"))
        return h5py.Dataset(h5py.h5d.create(file.id, b"w", kind, space, properties))

    try:
        replaced(store, "w", make)
    except (ValueError, OverflowError) as e:
        pytest.skip(f"HDF5 refuses it: {e}")
    refused(store, r"missing|larger than any|is uint8 of shape")
