"""Stores of Zarr format 2, read by netCDF-C."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from safetensors.numpy import save_file

from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd, RunLength
from bf16codecs.convert import safetensors_to_zarr
from bits import bits
from netcdf_readers import Reader, own_plugins, url

V2_FOLDERS = {"name": "v2", "separator": "/"}
CODECS = {
    "huffman": BF16Huffman,
    "arithmetic": BF16Arithmetic,
    "best": lambda dtype: BF16Arithmetic(dtype, level="best", checksum=False),
    "split": BF16Split,
    "by_byte": lambda dtype: BF16Split(dtype, by="byte"),
    "steps": lambda dtype: BF16Huffman(dtype, steps=8),
    "auto": lambda dtype: BF16Huffman("auto"),
    "other": lambda dtype: BF16Huffman("bfloat16"),
}


def numbers(dtype: str = "float32", shape: tuple[int, ...] = (50, 30)) -> np.ndarray:
    """Return numbers, of which a few show whether every bit is kept."""
    values = np.random.default_rng(0).normal(280, 3, shape).astype(dtype)
    values.ravel()[:6] = [-0.0, np.inf, -np.inf, np.finfo(dtype).smallest_subnormal, np.nan, np.nan]
    bits(values).ravel()[5] |= 5  # a NaN with a payload
    return values


def write(group: zarr.Group, name: str, values: np.ndarray, **options: Any) -> zarr.Array:
    options = {"chunks": tuple(min(16, n) for n in values.shape), **options}
    array = group.create_array(name, shape=values.shape, dtype=values.dtype, **options)
    array[...] = values
    array.attrs["_ARRAY_DIMENSIONS"] = [f"dim{i}_{n}" for i, n in enumerate(values.shape)]
    return array


@pytest.fixture
def group(tmp_path: Path) -> zarr.Group:
    return zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)


@pytest.fixture
def read(reader: Reader, tmp_path: Path):
    """Return a function that reads the store; it returns the values, and standard error."""

    def read(*plugins: str) -> tuple[dict[str, bytes | str], str]:
        return reader.read(url(tmp_path / "x.zarr"), tmp_path / "found", plugins)

    return read


@pytest.mark.slow
def test_every_codec(group: zarr.Group, read) -> None:
    expected = {}
    cases = itertools.product(CODECS, ("float32", "float64"), ((50, 30), (1000,), (9, 20, 7)))
    for codec, dtype, shape in cases:
        name, values = f"{codec}_{dtype}_{len(shape)}", numbers(dtype, shape)
        write(group, name, values, compressors=CODECS[codec](dtype))
        expected[name] = values.tobytes()
    found, errors = read()
    assert found == expected
    assert errors == ""


def test_integers(group: zarr.Group, read) -> None:
    expected = {}
    for dtype in ("int8", "uint8", "int16", "int32", "uint32", "int64"):
        values = np.arange(100).astype(dtype)
        for codec in (BF16Huffman("auto"), BF16Arithmetic("float32")):
            name = f"{codec.codec_id.removeprefix('bf16codecs.')}_{dtype}"
            write(group, name, values, compressors=codec)
            expected[name] = values.tobytes()
    assert read()[0] == expected


@pytest.mark.slow
def test_forms_of_arrays(group: zarr.Group, read) -> None:
    values = numbers()
    codec = BF16Huffman("float32")
    write(group, "folders", values, compressors=codec, chunk_key_encoding=V2_FOLDERS)
    write(group, "one_chunk", values, compressors=codec, chunks=values.shape)
    write(group, "twice", values, filters=[BF16Split("float32")], compressors=codec)
    expected = dict.fromkeys(("folders", "one_chunk", "twice"), values.tobytes())
    for name, fill in (("nan", np.nan), ("zero", 0.0), ("number", -1.5)):
        array = write(group, name, values[:0], compressors=codec, fill_value=fill, chunks=(16, 16))
        array.resize(values.shape)
        array[:16] = values[:16]
        array.attrs["_ARRAY_DIMENSIONS"] = ["dim0_50", "dim1_30"]
        filled = values.copy()
        filled[16:] = fill
        expected[name] = filled.tobytes()
    nameless = group.create_array("nameless", data=values, chunks=(16, 16), compressors=codec)
    assert "_ARRAY_DIMENSIONS" not in nameless.attrs
    assert read()[0] == {**expected, "nameless": values.tobytes()}


@pytest.mark.usefixtures("netcdf4")
def test_beside_other_filters(group: zarr.Group, tmp_path: Path) -> None:
    """netCDF4's own filters, with this order of folders."""
    values = numbers()
    split, huffman, zlib = BF16Split("float32"), BF16Huffman("float32"), numcodecs.Zlib(1)
    write(group, "split", values, filters=[split], compressors=zlib)
    write(group, "shuffle", values, filters=[numcodecs.Shuffle(4)], compressors=huffman)
    write(group, "zlib", values, filters=[zlib], compressors=huffman)
    write(group, "zstd", values, filters=[split], compressors=numcodecs.Zstd(1))
    python = Reader("python", tmp_path)
    found, errors = python.read(url(tmp_path / "x.zarr"), tmp_path / "found", [own_plugins()])
    assert found == dict.fromkeys(("split", "shuffle", "zlib", "zstd"), values.tobytes())
    assert errors == ""


def test_unreadable_arrays_leave_others_readable(group: zarr.Group, read) -> None:
    values = numbers()
    write(group, "a", values, compressors=BF16Huffman("float32"))
    write(group, "runs", values, compressors=RunLength())
    write(group, "zstd", values, compressors=BF16Zstd(dtype="float32"))
    write(group, "z", values, compressors=BF16Arithmetic("float32"))
    found, errors = read()
    assert found["a"] == found["z"] == values.tobytes()
    assert "undefined filter" in found["runs"]
    assert "Filter error" in found["zstd"]
    assert "has Zstandard planes, which the plugin cannot decode" in errors
    assert errors.count("bf16codecs: ") == 1


def test_a_refused_configuration_leaves_others_readable(
    group: zarr.Group, read, tmp_path: Path
) -> None:
    values = numbers()
    write(group, "a", values, compressors=BF16Huffman("float32"))
    write(group, "b", values, compressors=BF16Huffman("float32"))
    metadata = tmp_path / "x.zarr" / "b" / ".zarray"
    text = metadata.read_text()
    assert text.count('"dtype": "float32"') == 1
    metadata.write_text(text.replace('"dtype": "float32"', '"dtype": "float12"'))
    write(group, "c", values, compressors=BF16Arithmetic("float32"))
    found, errors = read()
    assert found["a"] == found["c"] == values.tobytes()
    assert "Filter error" in found["b"]
    assert "netCDF variable will not be read: bf16codecs.huffman: " in errors


def test_a_converted_model(tmp_path: Path, read) -> None:
    arrays = {"f32": numbers(), "f64": numbers("float64"), "vector": numbers(shape=(99,))}
    save_file(arrays, tmp_path / "model.safetensors")
    safetensors_to_zarr(tmp_path / "model.safetensors", tmp_path / "x.zarr", zarr_format=2)
    assert read()[0] == {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.slow
@pytest.mark.usefixtures("netcdf4")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_groups_with_other_data_types(tmp_path: Path, dtype: str) -> None:
    """netCDF opens no group with an array of an unknown type, but the store's other groups."""
    values = numbers()
    other = np.ones((3, 4), dtype)
    save_file({"a.weight": other, "b.weight": values}, tmp_path / "model.safetensors")
    safetensors_to_zarr(tmp_path / "model.safetensors", tmp_path / "x.zarr", zarr_format=2)
    python = Reader("python", tmp_path)
    with pytest.raises(AssertionError, match="NCZarr error"):
        python.read(url(tmp_path / "x.zarr"), tmp_path / "all")
    found, _ = python.read(url(tmp_path / "x.zarr" / "b"), tmp_path / "b")
    assert found == {"weight": values.tobytes()}
