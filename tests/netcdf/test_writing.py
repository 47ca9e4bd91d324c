"""Stores of Zarr format 2, written by netCDF-C."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, BF16Zstd, hdf5
from bits import assert_same_bits
from looping import for_each
from netcdf_readers import config, environment, has_netcdf4, no_programs, own_plugins, tool, url

SHAPE, CHUNKS = (96, 128), (48, 64)  # nccopy does not keep chunks of less than 8 KiB
VALUES = np.random.default_rng(0).normal(280, 3, SHAPE)
FILTERS = {
    "48918,2,2": BF16Huffman("float32"),
    "48918,2,255": BF16Huffman("auto"),
    "48918,3,2,0,1": BF16Arithmetic("float32", level="best"),
    "48918,3,2,2": BF16Arithmetic("float32", checksum=False),
    "48918,3,255,0,1": BF16Arithmetic("auto", level="best"),
    "48918,3,2,0,1,0,0,4": BF16Arithmetic("float32", level="best", steps=4),
    "48918,1,2,1": BF16Split("float32", by="byte"),
    "48918": BF16Huffman(),
}


@pytest.fixture
def classic(tmp_path: Path) -> Path:
    """Return a netCDF file of float32 and float64."""
    path = tmp_path / "plain.nc"
    with h5py.File(path, "w") as file:
        for i, axis in enumerate("yx"):
            file[axis] = np.arange(SHAPE[i], dtype="f4")
            file[axis].make_scale(axis)
        for name, dtype in (("f", "f4"), ("d", "f8")):
            file.create_dataset(name, data=VALUES.astype(dtype), chunks=CHUNKS)
            file[name].dims[0].attach_scale(file["y"])
            file[name].dims[1].attach_scale(file["x"])
            file[name].attrs["units"] = np.bytes_(b"K")  # netCDF 4.9.0 takes no strings
    return path


def frames(folder: Path) -> dict[str, bytes]:
    """Return the stored chunks of an array."""
    found = {path.name: path.read_bytes() for path in folder.glob("[0-9]*")}
    assert found
    return found


@pytest.mark.usefixtures("programs")
@for_each("values", FILTERS)
def test_nccopy_writes_what_python_writes(classic: Path, tmp_path: Path, values: str) -> None:
    filters = [word for name in "fd" for word in ("-F", f"{name},{values}")]
    shutil.rmtree(tmp_path / "x.zarr", ignore_errors=True)
    tool("nccopy", *filters, classic, url(tmp_path / "x.zarr"))
    group = zarr.open_group(tmp_path / "x.zarr", mode="r")
    other = zarr.open_group(tmp_path / "y.zarr", mode="w", zarr_format=2)
    for name, dtype in (("f", "f4"), ("d", "f8")):
        array = group[name]
        assert array.chunks == CHUNKS
        assert array.metadata.compressor == FILTERS[values]
        assert_same_bits(array[:], VALUES.astype(dtype))
        assert array.attrs["units"] == "K"
        other.create_array(
            name, data=VALUES.astype(dtype), chunks=CHUNKS, compressors=FILTERS[values]
        )
        assert frames(tmp_path / "x.zarr" / name) == frames(tmp_path / "y.zarr" / name)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("codec", ["huffman", "arithmetic", "split"])
def test_nccopy_from_a_store_and_back(tmp_path: Path, codec: str) -> None:
    """The filter is kept, by its own number."""
    make = {"huffman": BF16Huffman, "arithmetic": BF16Arithmetic, "split": BF16Split}[codec]
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    array = group.create_array(
        "f", data=VALUES.astype("f4"), chunks=CHUNKS, compressors=make("float32")
    )
    array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    tool("nccopy", url(tmp_path / "x.zarr"), tmp_path / "x.nc")
    with h5py.File(tmp_path / "x.nc") as file:
        # The plugin adds the chunk's row, which splitting alone does not need.
        row = () if codec == "split" else (0, 0, 0, CHUNKS[1])
        values = (make("float32").number, 2, *row)
        assert file["f"]._filters == {str(hdf5.FILTER_ID): values}
        assert_same_bits(file["f"][:], VALUES.astype("f4"))
    tool("nccopy", tmp_path / "x.nc", url(tmp_path / "y.zarr"))
    again = zarr.open_group(tmp_path / "y.zarr", mode="r")["f"]
    assert again.metadata.compressor == make("float32")
    assert_same_bits(again[:], VALUES.astype("f4"))


@pytest.mark.usefixtures("programs")
def test_nccopy_of_this_packages_files(tmp_path: Path) -> None:
    """The chunk size in their filter values is not kept: the array may have other chunks."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        hdf5.write_tensor(
            file, "f", VALUES.astype("f4"), chunks=CHUNKS, compression=hdf5.Arithmetic(level="best")
        )
    tool("nccopy", "-c", "f:96,128", tmp_path / "x.h5", url(tmp_path / "x.zarr"))
    array = zarr.open_group(tmp_path / "x.zarr", mode="r")["f"]
    assert array.chunks == SHAPE
    assert array.metadata.compressor == BF16Arithmetic("float32", level="best")
    assert_same_bits(array[:], VALUES.astype("f4"))


@pytest.mark.usefixtures("programs")
def test_ncgen_and_ncdump(tmp_path: Path) -> None:
    numbers = "1, 2.5, -0, 1e-45, Infinityf, 3.4028235e+38"
    text = f"""netcdf x {{
dimensions:
  y = 2 ; x = 3 ;
variables:
  float f(y, x) ; f:_Filter = "48918,3,2" ; f:units = "K" ;
  double d(y, x) ; d:_Filter = "48918,2,255" ;
data:
  f = {numbers} ; d = 1, 2, 3, 4, 5, 6.000000000000001 ;
}}"""
    (tmp_path / "x.cdl").write_text(text)
    tool("ncgen", "-4", "-o", url(tmp_path / "x.zarr"), tmp_path / "x.cdl")
    metadata = json.loads((tmp_path / "x.zarr" / "f" / ".zarray").read_text())
    assert metadata["compressor"] == BF16Arithmetic("float32").get_config()
    assert metadata["filters"] is None
    dumped = tool("ncdump", "-s", "-p", "9,17", url(tmp_path / "x.zarr")).stdout
    assert '_Filter = "48918,3,2"' in dumped
    assert 'f:units = "K"' in dumped
    found = {n: v.split(",") for n, v in re.findall(r"(\w) =\n(.*?);", dumped, re.DOTALL)}
    expected = np.array([float(x.rstrip("f")) for x in numbers.split(",")], "f4")
    assert (np.array([float(x.strip().rstrip("f")) for x in found["f"]], "f4") == expected).all()
    assert float(found["d"][-1]) == 6.000000000000001


@pytest.mark.usefixtures("programs")
@for_each(
    "values, message",
    [
        ("9,2", "cd_values[0] is 9"),
        ("2,6", "cd_values[1] is 6"),
        ("2,2,0,1", "only codec 3 (arithmetic) has levels"),
        ("4,2", "the plugin has no Zstandard"),
        ("3,2,0,0,0,0,5", "which are not 5 steps"),
    ],
)
def test_wrong_values_are_refused(classic: Path, tmp_path: Path, values: str, message: str) -> None:
    shutil.rmtree(tmp_path / "x.zarr", ignore_errors=True)
    done = tool("nccopy", "-F", f"f,48918,{values}", classic, url(tmp_path / "x.zarr"), status=1)
    assert message in done.stderr
    assert "Filter error" in done.stderr


@pytest.mark.usefixtures("programs")
def test_zstd_is_not_written(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    codec = BF16Zstd(dtype="float32")
    group.create_array("f", data=VALUES.astype("f4"), chunks=CHUNKS, compressors=codec)
    done = tool("ncdump", url(tmp_path / "x.zarr"), status=1)
    assert "has Zstandard planes, which the plugin cannot decode" in done.stderr
    assert "Filter error" in done.stderr
    for target in (tmp_path / "x.nc", url(tmp_path / "y.zarr")):
        done = tool("nccopy", url(tmp_path / "x.zarr"), target, status=1)
        assert "Zstandard" in done.stderr


def libraries() -> list[Path]:
    """Return the libnetcdf of the programs, and that of the Python package; or skip."""
    found = [] if no_programs() else [Path(config("--libdir")[0], "libnetcdf.so")]
    if has_netcdf4():
        found += Path(own_plugins()).parents[1].glob("netcdf4.libs/libnetcdf*.so*")
    if not found:
        pytest.skip("no libnetcdf with filters for Zarr was found")
    return found


FILL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])

def call(name, *arguments):
    error = getattr(library, name)(*arguments)
    if error:
        library.nc_strerror.restype = ctypes.c_char_p
        sys.exit(library.nc_strerror(error).decode())

file, variable, n = (ctypes.c_int() for _ in range(3))
call("nc_open", sys.argv[2].encode(), 1, ctypes.byref(file))
start, count = (ctypes.c_size_t * 2)(10, 0), (ctypes.c_size_t * 2)(20, 128)
values = (ctypes.c_float * (20 * 128))(*range(20 * 128))
for name in sys.argv[3:]:
    call("nc_inq_varid", file, name.encode(), ctypes.byref(variable))
    call("nc_put_vara_float", file, variable, start, count, values)
call("nc_close", file)
"""


@for_each("library", libraries)
def test_an_array_is_filled(tmp_path: Path, library: Path) -> None:
    """From C: Python's netCDF4 cannot open an existing store for writing, only make a new one."""
    codecs = {
        "huffman": BF16Huffman("float32"),
        "best": BF16Arithmetic("auto", level="best"),
        "split": BF16Split("float32"),
    }
    expected = np.full(SHAPE, 7, "f4")
    expected[10:30] = np.arange(20 * 128).reshape(20, 128)
    empty, full = (zarr.open_group(tmp_path / f"{n}.zarr", mode="w", zarr_format=2) for n in "xy")
    for name, codec in codecs.items():
        options = {"chunks": CHUNKS, "compressors": codec, "fill_value": 7}
        array = empty.create_array(name, shape=SHAPE, dtype="f4", **options)
        array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
        full.create_array(name, data=expected, **options)
    command = [sys.executable, "-c", FILL, str(library), url(tmp_path / "x.zarr"), *codecs]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    # Not by zarr: netCDF does not cut off the rest of a file that was longer, as zarr's metadata.
    for name in codecs:
        assert frames(tmp_path / "x.zarr" / name) == frames(tmp_path / "y.zarr" / name)
