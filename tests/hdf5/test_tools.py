"""The plugin in programs without Python: HDF5's own tools, and one in C."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

import plugin
from bf16codecs import hdf5
from bf16codecs.convert import hdf5_to_safetensors, safetensors_to_hdf5
from bits import assert_same_bits, bits
from hdf5_tools import dumped, filters, tool
from looping import for_each

pytestmark = pytest.mark.skipif(
    shutil.which("h5dump") is None or shutil.which("h5repack") is None,
    reason="h5dump and h5repack (Debian: hdf5-tools) are not installed",
)

FLOATS = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


def every_pattern(name: str) -> np.ndarray:
    size = np.dtype(name).itemsize
    return np.arange(256**size, dtype=f"u{size}").view(name).reshape(-1, 64)


@pytest.fixture
def weights() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(0, 0.02, (100, 64)).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", FLOATS)
@for_each("compression", [None, hdf5.Huffman(), hdf5.Arithmetic(), hdf5.Split()])
def test_h5dump_prints_the_numbers(tmp_path: Path, name: str, compression) -> None:
    values = every_pattern(name)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        hdf5.write_tensor(file, "a/b", values, compression=compression, chunks=(2, 64))
    expected = values.astype(np.float32).ravel()
    if name == "float8_e4m3fn":
        # HDF5 keeps the largest exponent for infinity and NaN.
        expected[abs(expected) == 256] *= np.inf
        expected[(abs(expected) > 256) & np.isfinite(expected)] = np.nan
    np.testing.assert_array_equal(dumped(tmp_path / "x.h5", "a/b"), expected)


def test_h5dump_reads_a_part(tmp_path: Path, weights: np.ndarray) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        hdf5.write_tensor(file, "x", weights, chunks=(32, 64))
    part = dumped(tmp_path / "x.h5", "x", "-s", "30,1", "-c", "4,5")
    np.testing.assert_array_equal(part, weights[30:34, 1:6].astype(np.float32).ravel())


def test_h5ls_names_the_filter(tmp_path: Path, weights: np.ndarray) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        hdf5.write_tensor(file, "x", weights)
    text = tool("h5ls", "-v", tmp_path / "x.h5")
    assert "bf16codecs" in text
    assert str(hdf5.FILTER_ID) in text
    assert "0.02" in tool("h5ls", "-d", tmp_path / "x.h5")


@pytest.mark.parametrize("flag", [0, 1])
@for_each(
    "values, parameters",
    [((3, 0), "3 0 0 0 0 64"), ((2, 0, 2), "2 0 2 0 0 64"), ((1,), "1"), ((0,), "0 0 0 0 0 64")],
)
def test_h5repack_compresses_and_decompresses(
    tmp_path: Path, weights: np.ndarray, flag: int, values: tuple[int, ...], parameters: str
) -> None:
    plain, coded, back = (tmp_path / f"{n}.h5" for n in ("plain", "coded", "back"))
    with h5py.File(plain, "w") as file:
        hdf5.write_tensor(file, "x", weights, compression=None, chunks=(32, 64))
    numbers = ",".join(map(str, (hdf5.FILTER_ID, flag, len(values), *values)))
    tool("h5repack", "-f", f"UD={numbers}", plain, coded)
    assert filters(coded, "x") == ([str(hdf5.FILTER_ID)], parameters)
    with h5py.File(coded) as file:
        assert_same_bits(hdf5.read_tensor(file["x"]), weights)
        if values != (1,):
            assert file["x"].id.get_storage_size() < 0.8 * weights.nbytes
    tool("h5repack", "-f", "NONE", coded, back)
    assert filters(back, "x") == ([], "")
    with h5py.File(back) as file:
        assert_same_bits(hdf5.read_tensor(file["x"]), weights)
    assert "differences" not in tool("h5diff", plain, coded)


def test_h5repack_converts_from_gzip_and_back(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(300, 40)).astype(np.float32)
    with h5py.File(tmp_path / "gzip.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(64, 40), compression="gzip", shuffle=True)
    tool("h5repack", "-f", f"UD={hdf5.FILTER_ID},0,2,2,2", tmp_path / "gzip.h5", tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as file:
        assert list(file["x"]._filters) == [str(hdf5.FILTER_ID)]
        assert_same_bits(hdf5.read_tensor(file["x"]), values)
    tool("h5repack", "-f", "SHUF", "-f", "GZIP=1", tmp_path / "b.h5", tmp_path / "c.h5")
    with h5py.File(tmp_path / "c.h5") as file:
        assert list(file["x"]._filters) == ["shuffle", "gzip"]
        assert_same_bits(hdf5.read_tensor(file["x"]), values)


def test_h5repack_refuses_wrong_values(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.ones((64, 64)), chunks=(8, 64))
    done = subprocess.run(
        ["h5repack", "-f", f"UD={hdf5.FILTER_ID},0,1,9", tmp_path / "a.h5", tmp_path / "b.h5"],
        capture_output=True,
        text=True,
        env={**os.environ, "HDF5_PLUGIN_PATH": plugin.PLUGIN_FOLDER},
    )
    assert done.returncode == 1
    assert done.stderr.count("cd_values[0] is 9") == 1


def test_h5repack_takes_the_data_type_from_the_dataset(tmp_path: Path) -> None:
    arrays = {
        "h": np.ones((64, 64), "f2"),
        "f": np.ones((64, 64), "f4"),
        "i": np.ones((64, 64), int),
    }
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, chunks=(8, 64))
    tool("h5repack", "-f", f"UD={hdf5.FILTER_ID},0,2,2,255", tmp_path / "a.h5", tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as file:
        found = {name: file[name]._filters[str(hdf5.FILTER_ID)] for name in arrays}
        assert found == {n: (2, i, 0, 0, 0, 64) for i, n in enumerate("hfi", 1)}
        for name, array in arrays.items():
            assert_same_bits(hdf5.read_tensor(file[name]), array)


def test_new_chunks_need_new_values(tmp_path: Path, weights: np.ndarray) -> None:
    """The filter values that this package writes contain the chunk's size."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        hdf5.write_tensor(file, "x", weights, chunks=(32, 64))
    new = ("-f", f"UD={hdf5.FILTER_ID},1,2,2,0")
    for extra, share in (((), 1.1), (new, 0.8)):
        done = subprocess.run(
            ["h5repack", "-l", "CHUNK=50x64", *extra, tmp_path / "a.h5", tmp_path / "b.h5"],
            capture_output=True,
            text=True,
            env={**os.environ, "HDF5_PLUGIN_PATH": plugin.PLUGIN_FOLDER},
        )
        assert done.returncode == 0
        assert ("cd_values[4]" in done.stderr) == (extra == ())
        with h5py.File(tmp_path / "b.h5") as file:
            assert file["x"].chunks == (50, 64)
            assert_same_bits(hdf5.read_tensor(file["x"]), weights)
            assert (bits(file["x"].astype("f4")[:]) == bits(weights.astype("f4"))).all()
            assert file["x"].id.get_storage_size() < share * weights.nbytes


def test_a_repacked_store_is_restored(tmp_path: Path, demo_model: Path) -> None:
    """Another program may rewrite a store in any form that HDF5 knows."""
    safetensors_to_hdf5(demo_model, tmp_path / "a.h5", chunk_size=1 << 16)
    forms = [
        ["-f", "NONE"],
        ["-f", "GZIP=1"],
        ["-f", "SHUF", "-f", "GZIP=1", "-l", "CHUNK=64"],
        ["-f", f"UD={hdf5.FILTER_ID},0,2,2,0"],
        ["-f", "NONE", "-l", "CONTI"],
    ]
    for i, options in enumerate(forms):
        tool("h5repack", *options, tmp_path / "a.h5", tmp_path / f"{i}.h5")
        hdf5_to_safetensors(tmp_path / f"{i}.h5", tmp_path / f"{i}.safetensors")
        assert (tmp_path / f"{i}.safetensors").read_bytes() == demo_model.read_bytes()


def c_flags() -> list[str]:
    done = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "hdf5"], capture_output=True, text=True
    )
    return done.stdout.split() if done.returncode == 0 else []


@pytest.mark.skipif(
    shutil.which("pkg-config") is None or shutil.which("cc") is None,
    reason="a C compiler or pkg-config is not installed",
)
def test_c_program_of_the_document(tmp_path: Path, weights: np.ndarray, root: Path) -> None:
    if not (flags := c_flags()):
        pytest.skip("HDF5's headers (Debian: libhdf5-dev) are not installed")
    text = (root / "docs" / "howto" / "programs.md").read_text("utf-8")
    (code,) = re.findall(r"```c\n(.*?)```", text, re.DOTALL)
    (tmp_path / "read.c").write_text(code)
    program = tmp_path / "read"
    tool("cc", tmp_path / "read.c", "-o", program, *flags)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        hdf5.write_tensor(file, "layer/weight", weights, compression=hdf5.Arithmetic())
    printed = tool(program, tmp_path / "x.h5", "layer/weight").split()
    np.testing.assert_array_equal(np.array(printed, np.float32), weights[1, :4].astype(np.float32))
