"""HDF5 files by netCDF-C, whose libhdf5 calls the plugin: it learns the rows of chunks."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import plugin
from bf16codecs import BF16Arithmetic, hdf5
from bf16codecs.bench.synthetic import RECIPES
from bits import assert_same_bits

LIBRARY = ctypes.util.find_library("netcdf")
WRITE = """
import ctypes, sys
import numpy as np

library, source, target = sys.argv[1:]
nc, array = ctypes.CDLL(library), np.load(source)
file, variable, axes = ctypes.c_int(), ctypes.c_int(), (ctypes.c_int * 2)()

def must(error):
    assert error == 0, error

must(nc.nc_create(target.encode(), 0x1000, ctypes.byref(file)))
for i, size in enumerate(array.shape):
    axis = ctypes.byref(axes, i * ctypes.sizeof(ctypes.c_int))
    must(nc.nc_def_dim(file, b"xy"[i : i + 1], ctypes.c_size_t(size), axis))
must(nc.nc_def_var(file, b"w", 5, 2, axes, ctypes.byref(variable)))
must(nc.nc_def_var_chunking(file, variable, 0, (ctypes.c_size_t * 2)(*array.shape)))
values = (ctypes.c_uint * 2)(3, 2)
must(nc.nc_def_var_filter(file, variable, 48918, ctypes.c_size_t(2), values))
must(nc.nc_put_var_float(file, variable, array.ctypes.data_as(ctypes.c_void_p)))
must(nc.nc_close(file))
"""


@pytest.mark.skipif(LIBRARY is None, reason="there is no libnetcdf")
def test_variables_of_hdf5_files_get_their_rows(tmp_path: Path) -> None:
    normal = np.random.default_rng(0).standard_normal((256, 384), np.float32) * np.float32(0.02)
    array = RECIPES["int8-columns"](normal)
    np.save(tmp_path / "w.npy", array)
    arguments = [LIBRARY, tmp_path / "w.npy", tmp_path / "w.nc"]
    environment = {**os.environ, "HDF5_PLUGIN_PATH": plugin.PLUGIN_FOLDER}
    subprocess.run([sys.executable, "-c", WRITE, *map(str, arguments)], check=True, env=environment)
    with h5py.File(tmp_path / "w.nc") as file:
        (values,) = file["w"]._filters.values()
        assert values == (3, 2, 0, 0, 0, 384)
        frame = file["w"].id.read_direct_chunk((0, 0))[1]
        assert frame == BF16Arithmetic("float32").encode(array)
        assert_same_bits(hdf5.read_tensor(file["w"]), array)
