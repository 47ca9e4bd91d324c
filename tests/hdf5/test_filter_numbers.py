"""The filter under two numbers: chunks written under either are read."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from bf16codecs import hdf5
from bf16codecs.hdf5 import direct, filters
from hdf5_tools import tool
from plugin import PLUGIN_FOLDER, FilterClass, filter_class

DATA = np.random.default_rng(0).normal(0, 0.02, (64, 256)).astype("bfloat16")
#: A number of plugins for tests, which `.ci/run` builds a plugin file for.
OTHER = 511


def test_numbers_are_those_of_the_package() -> None:
    assert hdf5.FILTER_ID == filters.FILTER_IDS[0] == filter_class.id
    assert 48918 in filters.FILTER_IDS, "files with it are read for ever"


@pytest.fixture
def other_number(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Put another number before the filter's own; chunks are written under it."""
    info = FilterClass.from_buffer_copy(filter_class)
    info.id = OTHER
    h5py.h5z.register_filter(ctypes.addressof(info))
    for module in (filters, direct):
        monkeypatch.setattr(module, "FILTER_IDS", (OTHER, *filters.FILTER_IDS))
    monkeypatch.setattr(filters.FrameFilter, "filter_id", OTHER)
    yield OTHER
    h5py.h5z.unregister_filter(OTHER)


def test_old_and_new_numbers_are_read_alike(tmp_path: Path, other_number: int) -> None:
    path = tmp_path / "x.h5"
    old = (filters.FILTER_IDS[1], hdf5.Arithmetic().filter_options)
    with h5py.File(path, "w") as file:
        hdf5.write_tensor(file, "new", DATA, compression=hdf5.Arithmetic())
        bits = DATA.view(np.uint16)
        for name, (number, values) in {"old": old, "h5py": (other_number, old[1])}.items():
            file.create_dataset(
                name, data=bits, chunks=(16, 256), compression=number, compression_opts=values
            )
    with h5py.File(path) as file:
        assert list(file["new"]._filters) == [str(other_number)]
        assert list(file["old"]._filters) == [str(old[0])]
        for name in ("new", "old", "h5py"):
            assert filters.codec_name(file[name].id) == "arithmetic"
            assert filters.codec_level(file[name].id) == "fast"
            assert hdf5.read_tensor(file[name]).tobytes() == DATA.tobytes()
            assert hdf5.read_tensor(file[name], np.s_[3:9, 5]).tobytes() == DATA[3:9, 5].tobytes()
        assert (file["old"][:] == bits).all()
        assert (file["h5py"][:] == bits).all()


def test_direct_reading_needs_the_number_to_be_known(tmp_path: Path, other_number: int) -> None:
    """Otherwise, libhdf5 reads, if it has a filter of that number."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        hdf5.write_tensor(file, "new", DATA, compression=hdf5.Huffman())
    with h5py.File(tmp_path / "x.h5") as file:
        known = direct.Decoding(keep_heads=True)
        assert known.format_of([other_number], 2).in_blocks
        assert known.format_of([other_number + 1], 2) is None


@pytest.fixture
def second_plugin() -> Path:
    found = list(Path(PLUGIN_FOLDER).glob(f"*h5bf16codecs_id{OTHER}.*"))
    if not found:
        pytest.skip(f"no plugin was built with BF16CODECS_HDF5_FILTER_ID={OTHER}")
    return found[0]


@pytest.mark.skipif(shutil.which("h5repack") is None, reason="h5repack is not installed")
def test_plugin_files_of_two_numbers(tmp_path: Path, second_plugin: Path) -> None:
    """Files are repacked from one to the other and back, by programs that find both plugins."""
    old, new, back = (tmp_path / name for name in ("old.h5", "new.h5", "back.h5"))
    values = np.random.default_rng(1).normal(size=(64, 256)).astype("f4")
    with h5py.File(old, "w") as file:
        file.create_dataset("x", data=values, chunks=(16, 256), compression=hdf5.Huffman("float32"))
    tool("h5repack", "-f", f"UD={OTHER},0,2,2,255", old, new)
    with h5py.File(new) as file:
        of_chunk = (2, 2, 0, 0, 0, 256)
        assert file["x"]._filters == {str(OTHER): of_chunk}, "set_local has looked for its number"
        _, chunk = file["x"].id.read_direct_chunk((0, 0))
    with h5py.File(old) as file:
        assert file["x"].id.read_direct_chunk((0, 0))[1] == chunk
    tool("h5repack", "-f", "NONE", new, back)
    with h5py.File(back) as file:
        assert (file["x"][:] == values).all()
    one = tmp_path / "one"
    one.mkdir()
    shutil.copy(second_plugin, one)
    for path, is_read in ((new, True), (old, False)):
        done = subprocess.run(
            ["h5dump", "-d", "x", path],
            env={**os.environ, "HDF5_PLUGIN_PATH": str(one)},
            capture_output=True,
        )
        assert (b"(0,0): " in done.stdout) == is_read
