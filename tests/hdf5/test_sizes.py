"""Chunks whose frames have other sizes than the dataset's: libhdf5 reads nothing past them.

Before version 2.2, libhdf5 compares no sizes itself. So these files are read by h5py and by HDF5's
tools, whose versions differ; where valgrind is installed, it watches h5dump.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import plugin
import tiers
from bf16codecs import BF16Huffman, hdf5
from bf16codecs.errors import CorruptDataError
from contents import weights
from looping import for_each

CHUNK = 1 << 16  # items
ITEMS = np.frombuffer(weights(2 * CHUNK), np.uint16)
#: A file's claims about its chunks: none, true ones, and false ones.
VALUES = {
    "nothing": (),
    "codec": (2, 0),
    "truth": (2, 0, 0, 0, 2 * CHUNK),
    "too little": (2, 0, 0, 0, 200),
    "too much": (2, 0, 0, 0, 4 * CHUNK),
}
#: Items that a frame holds instead.
HELD = {
    "one item": 1,
    "a part": 100,
    "one less": CHUNK - 1,
    "one more": CHUNK + 1,
    "two chunks": 2 * CHUNK,
}


def write(
    file: h5py.File, name: str, values: tuple[int, ...], chunk: int, *held: int
) -> h5py.Dataset:
    """Write a dataset of chunks of `chunk` items, whose frames hold other numbers of items."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((chunk,))
    properties.set_filter(hdf5.FILTER_ID, h5py.h5z.FLAG_OPTIONAL, values)
    space = h5py.h5s.create_simple((chunk * len(held),))
    dataset = h5py.h5d.create(file.id, name.encode(), h5py.h5t.STD_U16LE, space, properties)
    for i, n in enumerate(held):
        dataset.write_direct_chunk((i * chunk,), BF16Huffman().encode(ITEMS[:n]))
    return h5py.Dataset(dataset)


def run_h5dump(path: Path, *wrapper: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*wrapper, "h5dump", "-d", "x", "-y", "-w", "0", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "HDF5_PLUGIN_PATH": plugin.PLUGIN_FOLDER, "LC_ALL": "C"},
        timeout=120,
    )


@for_each("held", HELD)
@for_each("values", VALUES)
def test_h5py_reads_no_chunk_of_another_size(tmp_path: Path, values: str, held: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        write(file, "x", VALUES[values], CHUNK, HELD[held], CHUNK)
    with h5py.File(tmp_path / "x.h5") as file:
        for selection in (np.s_[:], np.s_[:10], np.s_[CHUNK - 1 : CHUNK + 1]):
            with pytest.raises(OSError, match="filter returned failure"):
                file["x"][selection]
            with pytest.raises(CorruptDataError):
                hdf5.read_tensor(file["x"], selection)
        if values in ("nothing", "codec", "truth"):
            np.testing.assert_array_equal(file["x"][CHUNK:], ITEMS[:CHUNK])


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="h5dump is not installed")
@for_each("held", HELD)
@for_each("values", VALUES)
def test_h5dump_prints_no_chunk_of_another_size(tmp_path: Path, values: str, held: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        write(file, "x", VALUES[values], CHUNK, HELD[held])
    done = run_h5dump(tmp_path / "x.h5")
    assert "unable to print data" in done.stdout + done.stderr
    assert "bf16codecs: chunk not decoded: it has " in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("valgrind") is None or shutil.which("h5dump") is None,
    reason="valgrind and h5dump are not both installed",
)
@pytest.mark.parametrize("values", ["codec", "too little"])
def test_nothing_is_read_past_a_short_chunk(tmp_path: Path, values: str) -> None:
    """libhdf5 read all of the chunk from a buffer of 200 bytes."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        write(file, "x", VALUES[values], 1000, 100)
    # One of the instruction sets that valgrind knows.
    valgrind = ("env", "BF16CODECS_ISA=scalar", "valgrind", "-q", "--error-exitcode=9")
    done = run_h5dump(tmp_path / "x.h5", *valgrind)
    assert "Invalid read" not in done.stderr
    assert done.returncode != 9


def test_indistinguishable_datasets(tmp_path: Path) -> None:
    """A short chunk that is a whole one of another open dataset is followed by zeros."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        write(file, "short", (), CHUNK, 500)
        write(file, "small", (), 500, 500)
        write(file, "odd", (), CHUNK, 501)
        write(file, "other codec", (2, 2), 501, 501)
    with h5py.File(tmp_path / "x.h5") as file:
        datasets = list(file.values())
        expected = np.zeros(CHUNK, np.uint16)
        expected[:500] = ITEMS[:500]
        np.testing.assert_array_equal(file["short"][:], expected)
        np.testing.assert_array_equal(file["small"][:], ITEMS[:500])
        np.testing.assert_array_equal(file["other codec"][:], ITEMS[:501])
        with pytest.raises(OSError, match="filter returned failure"):
            file["odd"][:]
        del datasets


def test_many_datasets_are_opened_and_closed(tmp_path: Path) -> None:
    count = tiers.by_tier(100, 300)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for i in range(count):
            write(file, str(i), (), 300 + i, 300 + i)
        write(file, "bad", (), 1000, 999)
    for _ in range(2):
        with h5py.File(tmp_path / "x.h5") as file:
            for i in range(count):
                np.testing.assert_array_equal(file[str(i)][:], ITEMS[: 300 + i])
                if i % 50 == 0:
                    with pytest.raises(OSError, match="filter returned failure"):
                        file["bad"][:]
            together = [file[str(i)] for i in range(count)]
            for i, dataset in enumerate(together):
                np.testing.assert_array_equal(dataset[:], ITEMS[: 300 + i])


def test_virtual_datasets_read_chunks_of_datasets_that_nobody_opened(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "sources.h5", "w") as file:
        write(file, "a", (), CHUNK, CHUNK)
    layout = h5py.VirtualLayout((CHUNK,), np.uint16)
    layout[:] = h5py.VirtualSource(tmp_path / "sources.h5", "a", (CHUNK,))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_virtual_dataset("virtual", layout)
        write(file, "open", (), 50, 50)
    with h5py.File(tmp_path / "x.h5") as file:
        keep = file["open"]
        np.testing.assert_array_equal(file["virtual"][:], ITEMS[:CHUNK])
        np.testing.assert_array_equal(keep[:], ITEMS[:50])


@pytest.mark.parametrize("before", ["shuffle", "fletcher32", "deflate"])
def test_behind_other_filters(tmp_path: Path, before: str) -> None:
    """Another filter's output may have any size, but shuffling keeps the chunk's."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((CHUNK,))
    getattr(properties, f"set_{before}")(*([6] if before == "deflate" else []))
    properties.set_filter(hdf5.FILTER_ID, h5py.h5z.FLAG_MANDATORY, (2, 0))
    space = h5py.h5s.create_simple((CHUNK,))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        create = h5py.h5d.create
        dataset = h5py.Dataset(create(file.id, b"x", h5py.h5t.STD_U16LE, space, properties))
        dataset[:] = ITEMS[:CHUNK]
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        np.testing.assert_array_equal(file["x"][:], ITEMS[:CHUNK])
        if before == "shuffle":
            file["x"].id.write_direct_chunk((0,), BF16Huffman().encode(ITEMS[:100]))
            file["x"].id.refresh()
            with pytest.raises(OSError, match="filter returned failure"):
                file["x"][:]


CLOSED = """
import ctypes, sys

library, plugin, *paths = sys.argv[1:]
hdf5, plugin = ctypes.CDLL(library), ctypes.CDLL(plugin)
plugin.H5PLget_plugin_info.restype = ctypes.c_void_p
hid, pointer = ctypes.c_int64, ctypes.c_void_p
for name in ("H5Fopen", "H5Dopen2", "H5Dget_type"):
    getattr(hdf5, name).restype = hid
hdf5.H5Fopen.argtypes = [ctypes.c_char_p, ctypes.c_uint, hid]
hdf5.H5Dopen2.argtypes = [hid, ctypes.c_char_p, hid]
hdf5.H5Dget_type.argtypes = [hid]
hdf5.H5Dread.argtypes = [hid] * 5 + [pointer]
for path in paths:
    hdf5.H5open()
    hdf5.H5Zregister(pointer(plugin.H5PLget_plugin_info()))
    dataset = hdf5.H5Dopen2(hdf5.H5Fopen(path.encode(), 0, 0), b"x", 0)
    items = ctypes.create_string_buffer(1 << 20)
    done = hdf5.H5Dread(dataset, hdf5.H5Dget_type(dataset), 0, 0, 0, items)
    print(dataset, done)
    hdf5.H5close()
"""


def test_datasets_of_a_libhdf5_that_was_closed(tmp_path: Path, run_python: Any) -> None:
    """HDF5 reuses their identifiers, which must not lead to the closed datasets' sizes."""
    libraries = list((Path(h5py.__file__).parents[1] / "h5py.libs").glob("libhdf5-*.so*"))
    if not libraries:
        pytest.skip("h5py has no libhdf5 of its own here")
    paths = [str(tmp_path / name) for name in ("small.h5", "large.h5", "short.h5")]
    for path, chunk, held in zip(paths, (100, 1000, 1000), (100, 1000, 100), strict=True):
        with h5py.File(path, "w") as file:
            write(file, "x", (), chunk, held)
    (filter_library,) = Path(hdf5.PLUGIN_PATH).glob("*h5bf16codecs.*")
    done = run_python(CLOSED, str(libraries[0]), str(filter_library), *paths)
    numbers, results = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert len(set(numbers)) == 1
    assert [int(result) >= 0 for result in results] == [True, True, False]
