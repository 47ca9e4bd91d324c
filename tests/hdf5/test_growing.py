"""Chunks that are growing frames: by h5py, HDF5's own tools, the plugin alone, and in part."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

import plugin
from bf16codecs import BF16Zstd, hdf5
from bf16codecs.errors import CorruptDataError
from bits import assert_same_bits
from contents import lcg_bytes
from hdf5_tools import dumped
from makers.growing import grow, grown, with_header
from versions import fields, weights

has_tools = pytest.mark.skipif(
    shutil.which("h5dump") is None, reason="h5dump (Debian: hdf5-tools) is not installed"
)
FIELD = fields(5, 30, 50)  # in a chunk with room for 8
CHUNK = (8, 30, 50)
FILTER = hdf5.Arithmetic("float32", steps=8)


def grown_of(data, steps=8):
    return grow(data, steps, dtype=data.dtype.name)


@pytest.fixture(params=[b"", b"room for the next"], ids=["", "rest"])
def path(request, tmp_path: Path) -> Path:
    """A dataset of 5 steps, and one of 8, the last 3 of which are missing."""
    path, content = tmp_path / "x.h5", grown_of(FIELD) + request.param
    with h5py.File(path, "w") as file:
        for name, steps in (("five", 5), ("eight", 8)):
            dataset = file.create_dataset(
                name,
                (steps, 30, 50),
                "f4",
                chunks=CHUNK,
                maxshape=(None, 30, 50),
                compression=FILTER,
            )
            dataset.id.write_direct_chunk((0, 0, 0), content)
    return path


def test_h5py_reads_existing_versions(path: Path) -> None:
    with h5py.File(path) as file:
        assert_same_bits(file["five"][:], FIELD)
        assert_same_bits(file["five"][3, ::7], FIELD[3, ::7])
        assert_same_bits(file["eight"][:5], FIELD)
        assert np.isnan(file["eight"][5:]).all()
        assert_same_bits(file["eight"][5:].view("u4"), np.full((3, 30, 50), 0xFFFFFFFF, "u4"))


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_tensors_are_read_in_part(path: Path, mode: str) -> None:
    with h5py.File(path, mode) as file:
        for name in ("five", "eight"):
            for selection in (np.s_[:5], np.s_[4], np.s_[1:5:3, 2:4], np.s_[3, 29, 49]):
                assert_same_bits(hdf5.read_tensor(file[name], selection), FIELD[selection])
        assert_same_bits(hdf5.read_tensor(file["five"]), FIELD)
        with pytest.raises(CorruptDataError, match="the chunk has 5 of 8 versions, and version 6"):
            hdf5.read_tensor(file["eight"], 6)


@has_tools
def test_h5dump_prints_the_numbers(path: Path) -> None:
    np.testing.assert_array_equal(dumped(path, "five"), FIELD.ravel())
    np.testing.assert_array_equal(dumped(path, "eight")[: FIELD.size], FIELD.ravel())


@has_tools
def test_h5dump_prints_weights(tmp_path: Path) -> None:
    data = weights(3, 40, 64)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        whole = np.zeros((4, 40, 64), data.dtype)
        dataset = hdf5.write_tensor(file, "w", whole, compression=hdf5.Arithmetic(steps=4))
        dataset.id.write_direct_chunk((0, 0, 0), grown_of(data, 4))
    expected = data.astype(ml_dtypes.bfloat16).astype("f4").ravel()
    np.testing.assert_array_equal(dumped(tmp_path / "x.h5", "w")[: data.size], expected)


def test_a_step_is_appended_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    for steps in range(1, 6):
        with h5py.File(path, "a") as file:
            if "x" not in file:
                file.create_dataset(
                    "x",
                    (0, 30, 50),
                    "f4",
                    chunks=CHUNK,
                    maxshape=(None, 30, 50),
                    compression=FILTER,
                )
            file["x"].resize(steps, axis=0)
            file["x"].id.write_direct_chunk((0, 0, 0), grown_of(FIELD[:steps]))
        with h5py.File(path) as file:
            assert_same_bits(file["x"][:], FIELD[:steps])
            assert_same_bits(hdf5.read_tensor(file["x"]), FIELD[:steps])


def test_the_plugin_alone() -> None:
    growing = grown_of(FIELD)
    whole = FIELD.tobytes().ljust(8 * FIELD[0].nbytes, b"\xff")
    values = (3, 2, 0, 0, len(whole), 0, 8)
    for content in (growing, growing + b"rest"):
        assert plugin.decode(content, values) == whole
        assert plugin.decode(content) == whole
    full = grown_of(fields(8, 30, 50))
    assert plugin.decode(full, values) == fields(8, 30, 50).tobytes()


def test_the_plugin_refuses_chunks_of_another_size(capfd) -> None:
    growing = grown_of(FIELD)
    assert plugin.decode(growing, (3, 2, 0, 0, 5 * FIELD[0].nbytes, 0, 8)) is None
    assert "it has 48000 bytes, and cd_values[4] says 30000" in capfd.readouterr().err


def test_the_plugin_makes_no_room_for_any_number_of_versions(capfd) -> None:
    """The directory has 64 kB, and the small first version claims much."""
    zeros = np.zeros((1, 1 << 20), "f4")
    growing = grow(zeros, 4000, block=1 << 20)
    assert len(growing) < 70_000
    assert plugin.decode(growing) is None
    assert "it has room for 16777216000 bytes" in capfd.readouterr().err
    larger = with_header(growing, 8, "Q", 1 << 40)
    assert plugin.decode(larger) is None


def test_the_plugin_refuses_damaged_versions() -> None:
    growing = grown_of(fields(4, 200))
    for at in range(0, len(growing), 3):
        damaged = bytearray(growing)
        damaged[at] ^= 0x40
        assert plugin.decode(bytes(damaged)) is None
    for size in range(0, len(growing), 7):
        assert plugin.decode(growing[:size]) is None


def test_the_plugin_refuses_zstandard(capfd) -> None:
    frame = BF16Zstd(dtype="float32").encode(np.tile(np.frombuffer(lcg_bytes(40), "f4"), 100))
    growing = grown([frame], [None], 2, 4000, "float32", 1 << 17)
    assert plugin.decode(growing) is None
    assert "Zstandard planes" in capfd.readouterr().err
