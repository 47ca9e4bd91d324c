"""HDF5 files of this package, read by other libraries with the plugin.

Each brings a libhdf5 of its own, and is tried in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

import plugin
from bf16codecs import hdf5

#: Required modules, and code that reads `v` of the file `path` as `values`, and its attribute.
READERS = {
    "PyTables": (
        ["tables"],
        """
import tables
with tables.open_file(path) as file:
    values, units = file.root.v[:], str(file.root.v.attrs.units)
""",
    ),
    "netCDF4": (
        ["netCDF4"],
        """
import netCDF4
with netCDF4.Dataset(path) as file:
    file.set_auto_maskandscale(False)
    values, units = file["v"][:], file["v"].units
""",
    ),
    "h5netcdf": (
        ["h5netcdf"],
        """
import h5netcdf
with h5netcdf.File(path, phony_dims="sort") as file:
    values, units = file["v"][:], file["v"].attrs["units"]
""",
    ),
    "xarray with h5netcdf": (
        ["xarray", "h5netcdf"],
        """
import xarray
options = {"engine": "h5netcdf", "phony_dims": "sort", "mask_and_scale": False}
with xarray.open_dataset(path, **options) as file:
    values, units = file["v"].values, file["v"].attrs["units"]
""",
    ),
    "xarray with netCDF4": (
        ["xarray", "netCDF4"],
        """
import xarray
with xarray.open_dataset(path, engine="netcdf4", mask_and_scale=False) as file:
    values, units = file["v"].values, file["v"].attrs["units"]
""",
    ),
}
#: netCDF has no floats of 16 and 8 bits, and its Python package ends the process for some.
NO_FLOAT16 = ["netCDF4", "xarray with netCDF4"]
CODE = """
import pathlib, sys
import numpy as np

def read(path):
    {}
    assert units == "K", units
    return values

for path in map(pathlib.Path, sys.argv[1:]):
    np.save(path.with_suffix(".npy"), read(str(path)))
"""
COMPRESSIONS = {
    "huffman": hdf5.Huffman(),
    "best": hdf5.Arithmetic(level="best"),
    "split": hdf5.Split(),
    "steps": hdf5.Arithmetic(steps=6),
}


#: The full tier tries all. One has a libhdf5 of its own, which finds the plugin as all others do.
QUICK = ["PyTables"]


@pytest.fixture(
    params=[r if r in QUICK else pytest.param(r, marks=pytest.mark.slow) for r in READERS]
)
def reader(request: pytest.FixtureRequest) -> str:
    missing = [m for m in READERS[request.param][0] if importlib.util.find_spec(m) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    return request.param


def numbers(dtype: str) -> np.ndarray:
    values = (np.random.default_rng(0).normal(size=(30, 20)) * 100).astype(dtype)
    if np.dtype(dtype).kind == "f":
        values[0, :4] = [np.nan, -0.0, np.inf, np.finfo(dtype).smallest_subnormal]
    return values


def write(path: Path, values: np.ndarray, compression: object, scales: bool = False) -> None:
    with h5py.File(path, "w") as file:
        hdf5.write_tensor(file, "v", values, chunks=(6, 20), compression=compression)
        file["v"].attrs["units"] = "K"
        for i, name in enumerate("yx" if scales else ""):
            file[name] = np.arange(values.shape[i], dtype="f8")
            file[name].make_scale(name)
            file["v"].dims[i].attach_scale(file[name])


def read(reader: str, *paths: Path) -> list[np.ndarray]:
    code = CODE.format(textwrap.indent(READERS[reader][1].strip(), "    ").lstrip())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, paths)],
        capture_output=True,
        text=True,
        env={**os.environ, "HDF5_PLUGIN_PATH": plugin.PLUGIN_FOLDER},
    )
    assert done.returncode == 0, done.stderr
    return [np.load(path.with_suffix(".npy")) for path in paths]


def files(folder: Path, reader: str) -> dict[Path, np.ndarray]:
    """Write files, and return the values that the reader should read."""
    expected = {}
    dtypes = ["float32", "float64", "int32"] + ["float16"] * (reader not in NO_FLOAT16)
    for dtype in dtypes:
        for scales in (False, True):
            path = folder / f"{dtype}{'_scales' * scales}.h5"
            expected[path] = numbers(dtype)
            write(path, expected[path], hdf5.Arithmetic(), scales)
    for name, compression in COMPRESSIONS.items():
        path = folder / f"{name}.h5"
        expected[path] = numbers("float32")
        write(path, expected[path], compression)
    return expected


def assert_read(reader: str, expected: dict[Path, np.ndarray]) -> None:
    for path, values in zip(expected, read(reader, *expected), strict=True):
        assert values.dtype == expected[path].dtype, path.stem
        assert values.shape == expected[path].shape, path.stem
        assert values.tobytes() == expected[path].tobytes(), path.stem


def test_bits_are_kept(reader: str, tmp_path: Path) -> None:
    assert_read(reader, files(tmp_path, reader))


def test_bfloat16(reader: str, tmp_path: Path) -> None:
    """They are read as float32, without loss; PyTables reads float16, and rounds."""
    values = numbers("float32").astype(ml_dtypes.bfloat16)
    values[0, 0] = 1  # HDF5 changes some NaNs where it converts
    write(tmp_path / "x.h5", values, hdf5.Arithmetic())
    expected = values.astype(np.float32)
    if reader == "PyTables":
        expected = expected.astype(np.float16)
    assert_read(reader, {tmp_path / "x.h5": expected})


def test_a_damaged_chunk_is_an_error(reader: str, tmp_path: Path) -> None:
    write(tmp_path / "x.h5", numbers("float32"), hdf5.Huffman())
    with h5py.File(tmp_path / "x.h5", "a") as file:
        _, frame = file["v"].id.read_direct_chunk((6, 0))
        damaged = bytearray(frame)
        damaged[len(frame) // 2] ^= 1
        file["v"].id.write_direct_chunk((6, 0), bytes(damaged))
    with pytest.raises(AssertionError, match="chunk not decoded"):
        read(reader, tmp_path / "x.h5")


def test_without_the_plugin(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x.h5", numbers("float32"), hdf5.Huffman())
    monkeypatch.setattr(plugin, "PLUGIN_FOLDER", str(tmp_path))
    with pytest.raises(AssertionError, match="Error"):
        read(reader, tmp_path / "x.h5")
