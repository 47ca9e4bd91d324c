"""The rows of chunks, without which the encoder finds no tiles and no columns."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

import bf16codecs
import plugin
from bf16codecs import BF16Arithmetic, hdf5
from bf16codecs.bench.synthetic import RECIPES
from bits import assert_same_bits
from looping import for_each

DTYPES = ["bfloat16", "float16", "float32"]
SHAPE = (256, 384)
ROW = 5  # in cd_values


@pytest.fixture
def file(tmp_path: Path) -> h5py.File:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        yield file


def weights(recipe: str, dtype: str) -> np.ndarray:
    normal = np.random.default_rng(0).standard_normal(SHAPE, np.float32) * np.float32(0.02)
    return RECIPES[recipe](normal).astype(dtype)


def values_of(dataset: h5py.Dataset) -> tuple[int, ...]:
    (values,) = dataset._filters.values()
    return values


def created(
    file: h5py.File, data: np.ndarray, chunks: tuple[int, ...], values: tuple[int, ...]
) -> h5py.Dataset:
    """Write a dataset of the data's own type by HDF5's functions."""
    like = hdf5.write_tensor(file, f"like {len(file)}", data)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(chunks)
    properties.set_filter(hdf5.FILTER_ID, h5py.h5z.FLAG_OPTIONAL, values)
    kind, space = like.id.get_type(), h5py.h5s.create_simple(data.shape)
    name = f"x {len(file)}"
    new = h5py.h5d.create(file.id, name.encode(), kind, space, dcpl=properties)
    new.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=kind)
    file.flush()
    return file[name]


@for_each("recipe", ["int8-columns", "fp8-tiles"])
@for_each("dtype", DTYPES)
def test_chunks_are_the_frames_of_the_codec(file: h5py.File, recipe: str, dtype: str) -> None:
    data = weights(recipe, dtype)
    option = hdf5.Arithmetic(dtype)
    for chunks in (SHAPE, (128, 384), (128, 128)):
        dataset = created(file, data, chunks, option.filter_options)
        assert values_of(dataset)[ROW] == chunks[1]
        part = np.ascontiguousarray(data[: chunks[0], : chunks[1]])
        frame = dataset.id.read_direct_chunk((0, 0))[1]
        assert frame == BF16Arithmetic(dtype).encode(part)
        assert bf16codecs.inspect(frame)["blocks"][0]["grid"] is not None
        assert_same_bits(hdf5.read_tensor(dataset), data)


@for_each("dtype", ["float16", "float32"])
@for_each("level", ["fast", "best"])
@for_each("name", ["own", "auto"])
def test_create_dataset(file: h5py.File, dtype: str, level: str, name: str) -> None:
    data = weights("int8-columns", dtype)
    option = hdf5.Arithmetic(dtype if name == "own" else "auto", level=level)
    where = f"{dtype} {level} {name}"
    dataset = file.create_dataset(where, data=data, chunks=SHAPE, compression=option)
    file.flush()
    frame = dataset.id.read_direct_chunk((0, 0))[1]
    assert frame == BF16Arithmetic(dtype, level=level).encode(data)
    assert_same_bits(dataset[:], data)


def test_rows_of_any_chunk_are_those_of_the_codec(file: h5py.File) -> None:
    """The frames of level best depend on the row in data without a grid, too."""
    rng = np.random.default_rng(0)
    scales = np.exp(rng.normal(0, 1, 6 * 4 * 9 * 40)).astype(np.float32)
    numbers = (rng.standard_normal(scales.size, np.float32) * scales).astype(ml_dtypes.bfloat16)
    for shape in ((8640,), (1, 8640), (216, 40), (24, 9, 40), (24, 40, 9), (6, 4, 9, 40)):
        for steps in (1, 6):
            if shape[0] % steps:
                continue
            codec = BF16Arithmetic(level="best", steps=steps)
            data = numbers.reshape(shape)
            values = hdf5.Arithmetic(level="best", steps=steps).filter_options
            dataset = created(file, data, shape, values)
            frame = dataset.id.read_direct_chunk((0,) * len(shape))[1]
            assert frame == codec.encode(data), (shape, steps)


def test_no_row_where_none_helps(file: h5py.File) -> None:
    data = np.random.default_rng(0).normal(size=(64, 32)).astype("f4")
    for name, option in {
        "planes": hdf5.Split("float32"),
        "no grids": hdf5.Huffman("float32", grid=False),
    }.items():
        dataset = file.create_dataset(name, data=data, chunks=(64, 32), compression=option)
        assert values_of(dataset) == option.filter_options
    option = hdf5.Huffman("float32")
    line = file.create_dataset("line", data=data.ravel(), chunks=(64,), compression=option)
    assert values_of(line) == option.filter_options
    shuffled = file.create_dataset(
        "shuffled", data=data, chunks=(64, 32), compression=option, shuffle=True
    )
    assert option.filter_options in shuffled._filters.values()


@pytest.mark.skipif(shutil.which("h5repack") is None, reason="h5repack is not installed")
def test_h5repack_to_other_chunks_gets_their_rows(tmp_path: Path) -> None:
    data = weights("int8-columns", "float32")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=SHAPE, compression=hdf5.Huffman("float32"))
    subprocess.run(
        ["h5repack", "-l", "CHUNK=256x128", tmp_path / "a.h5", tmp_path / "b.h5"],
        check=True,
        env={**os.environ, "HDF5_PLUGIN_PATH": plugin.PLUGIN_FOLDER},
    )
    with h5py.File(tmp_path / "b.h5") as file:
        assert values_of(file["x"])[ROW] == 128
        assert file["x"].id.get_storage_size() < 0.35 * data.nbytes
        assert_same_bits(file["x"][:], data)
