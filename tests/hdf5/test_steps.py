"""Datasets whose chunks hold steps: by h5py, HDF5's own tools, the plugin alone, and in part."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

import bf16codecs
import plugin
from bf16codecs import BF16Arithmetic, BF16Huffman, hdf5
from bf16codecs.errors import CodecError
from bits import assert_same_bits
from contents import lcg_bytes
from hdf5_tools import dumped, filters, tool
from native_core import core
from versions import ancestors, fields, weights

has_tools = pytest.mark.skipif(
    shutil.which("h5dump") is None or shutil.which("h5repack") is None,
    reason="h5dump and h5repack (Debian: hdf5-tools) are not installed",
)
FIELD = fields(20, 30, 50)  # 20 hours, in chunks of 8
FILTERS = [
    hdf5.Huffman("float32", steps=8),
    hdf5.Arithmetic("float32", steps=8),
    hdf5.Arithmetic("float32", level="best", checksum=False, steps=8),
]
compressions = pytest.mark.parametrize("compression", FILTERS, ids=repr)
LEVEL_BEST = (3, 2, 0, 1)


def values_of(dataset: h5py.Dataset) -> tuple[int, ...]:
    return tuple(dataset.id.get_create_plist().get_filter(0)[2])


@compressions
def test_h5py_writes_and_reads(tmp_path: Path, compression) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=FIELD, chunks=(8, 30, 50), compression=compression)
    with h5py.File(tmp_path / "x.h5") as file:
        dataset = file["x"]
        assert values_of(dataset)[6] == 8
        assert_same_bits(dataset[:], FIELD)
        assert_same_bits(dataset[5, ::7], FIELD[5, ::7])
        assert_same_bits(hdf5.read_tensor(dataset), FIELD)
        assert dataset.id.get_storage_size() < 0.6 * FIELD.nbytes
        frame = dataset.id.read_direct_chunk((8, 0, 0))[1]
        assert bf16codecs.inspect(frame)["steps"] == 8


@compressions
def test_tensors_are_written_in_chunks_of_steps(tmp_path: Path, compression) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = hdf5.write_tensor(file, "x", FIELD, compression=compression)
        assert dataset.chunks == (8, 30, 50)
        assert values_of(dataset)[4:] == (8 * 30 * 50 * 4, 50, 8)
        frame = dataset.id.read_direct_chunk((0, 0, 0))[1]
        assert frame == compression.codec.encode(FIELD[:8])
        assert frame == plugin.encode(FIELD[:8].tobytes(), values_of(dataset))
        assert_same_bits(hdf5.read_tensor(dataset), FIELD)
        assert_same_bits(dataset[:], FIELD)
        for selection in (np.s_[7], np.s_[3:19:5, 2:4], np.s_[19, 29, 49], np.s_[[1, 9], 7]):
            assert_same_bits(hdf5.read_tensor(dataset, selection), FIELD[selection])


def test_steps_without_rows() -> None:
    """A row of a chunk of two dimensions is a whole step."""
    array = fields(8, 3000)
    with h5py.File("x", "w", driver="core", backing_store=False) as file:
        best = hdf5.Arithmetic(level="best", steps=8)
        dataset = hdf5.write_tensor(file, "x", array, compression=best)
        assert values_of(dataset) == (*LEVEL_BEST, array.nbytes, 0, 8)
        frame = dataset.id.read_direct_chunk((0, 0))[1]
        assert frame == plugin.encode(array.tobytes(), values_of(dataset))


def test_what_steps_do_not_fit_is_refused(tmp_path: Path) -> None:
    steps = hdf5.Huffman(steps=8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        with pytest.raises(ValueError, match="fewer than 8 steps along its first axis"):
            hdf5.write_tensor(file, "x", FIELD[:7], compression=steps)
        with pytest.raises(ValueError, match="only the axis of its steps"):
            hdf5.write_tensor(file, "x", FIELD.ravel(), compression=steps)
        with pytest.raises(ValueError, match="are not 8 steps of whole float32 items"):
            hdf5.write_tensor(file, "x", FIELD.ravel(), compression=steps, chunks=(7,))
        for chunks in ((3, 5, 5), (4, 30, 50), (1, 30, 50)):
            with pytest.raises(ValueError, match="not a multiple of the codec's 8"):
                hdf5.write_tensor(file, "x", FIELD, compression=steps, chunks=chunks)
        assert list(file) == []
        whole = hdf5.write_tensor(file, "1d", FIELD.ravel(), compression=steps, chunks=(8000,))
        assert_same_bits(hdf5.read_tensor(whole), FIELD.ravel())
    for make in (hdf5.Huffman, hdf5.Arithmetic):
        with pytest.raises(ValueError, match="steps must be between"):
            make(steps=0)
        with pytest.raises(TypeError, match="steps must be an integer"):
            make(steps=True)


def test_options_show_steps_where_there_are_several() -> None:
    for make in (hdf5.Huffman, hdf5.Arithmetic):
        assert "steps" not in repr(make())
        assert make(steps=1).filter_options == make().filter_options
        assert "steps=8" in repr(make(steps=8))
        assert make(steps=8).get_config()["steps"] == 8


@pytest.mark.parametrize("values", [(2, 2, 0, 0, 0, 0, 8), (3, 2, 0, 0, 0, 0, 8)])
def test_frames_of_the_plugin_are_those_of_the_codecs(values: tuple[int, ...]) -> None:
    codec = (BF16Huffman if values[0] == 2 else BF16Arithmetic)("float32", steps=8)
    for raw in (FIELD[:8].tobytes(), bytes(64), lcg_bytes(32 * 100), lcg_bytes(32 * 200)):
        frame = plugin.encode(raw, values)
        assert frame == codec.encode(raw)
        assert plugin.decode(frame, values) == plugin.decode(frame) == raw


@pytest.mark.parametrize("flags", [0, plugin.OPTIONAL])
def test_the_plugin_refuses_steps_that_do_not_divide(flags: int, capfd) -> None:
    assert plugin.encode(bytes(4 * 8 * 100 + 4), (2, 2, 0, 0, 0, 0, 8), flags) is None
    printed = capfd.readouterr().err
    assert printed.count("\n") <= 1
    if not flags:  # a message that repeats is not printed again
        assert "it has 3204 bytes, which are not 8 steps of whole items" in printed
        assert "cd_values[6]" in printed


def test_the_plugin_refuses_frames_with_a_base_outside(capfd) -> None:
    frame = bf16codecs.encode_delta(BF16Arithmetic("float32"), FIELD[1], FIELD[0])
    assert plugin.decode(frame) is None
    assert "differences to a base outside of it" in capfd.readouterr().err


def test_the_plugin_refuses_damaged_versions() -> None:
    frame = BF16Arithmetic("float32", steps=8).encode(fields(8, 200))
    for at in range(0, len(frame), 3):
        damaged = bytearray(frame)
        damaged[at] ^= 0x40
        assert plugin.decode(bytes(damaged)) is None
    for size in range(0, len(frame), 7):
        assert plugin.decode(frame[:size]) is None


@has_tools
@compressions
def test_h5dump_prints_the_numbers(tmp_path: Path, compression) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        hdf5.write_tensor(file, "a/t2m", FIELD, compression=compression)
    np.testing.assert_array_equal(dumped(tmp_path / "x.h5", "a/t2m"), FIELD.ravel())
    part = dumped(tmp_path / "x.h5", "a/t2m", "-s", "13,0,0", "-c", "1,30,50")
    np.testing.assert_array_equal(part, FIELD[13].ravel())


@has_tools
def test_h5dump_prints_weights(tmp_path: Path) -> None:
    data = weights(6, 40, 64)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        hdf5.write_tensor(file, "w", data, compression=hdf5.Arithmetic(steps=6))
    np.testing.assert_array_equal(
        dumped(tmp_path / "x.h5", "w"), data.astype(ml_dtypes.bfloat16).astype("f4").ravel()
    )


@has_tools
@pytest.mark.parametrize("flag", [0, 1])
def test_h5repack_compresses_and_decompresses(tmp_path: Path, flag: int) -> None:
    plain, coded, back = (tmp_path / f"{n}.h5" for n in ("plain", "coded", "back"))
    with h5py.File(plain, "w") as file:
        file.create_dataset("x", data=FIELD, chunks=(8, 30, 50))
    numbers = f"{hdf5.FILTER_ID},{flag},7,3,2,0,0,0,0,8"
    tool("h5repack", "-f", f"UD={numbers}", plain, coded)
    assert filters(coded, "x") == ([str(hdf5.FILTER_ID)], "3 2 0 0 0 50 8")
    with h5py.File(coded) as file:
        assert_same_bits(hdf5.read_tensor(file["x"]), FIELD)
        assert file["x"].id.get_storage_size() < 0.6 * FIELD.nbytes
    tool("h5repack", "-f", "NONE", coded, back)
    with h5py.File(back) as file:
        assert_same_bits(file["x"][:], FIELD)


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A file with a chunk of 16 steps of two blocks, of which one of step 6 is damaged."""
    array = fields(16, 257, 1024)
    path = tmp_path / "damaged.h5"
    with h5py.File(path, "w") as file:
        dataset = hdf5.write_tensor(file, "x", array, compression=hdf5.Arithmetic(steps=16))
        frame = bytearray(dataset.id.read_direct_chunk((0, 0, 0))[1])
        offsets = core.Index(bytes(frame)).offsets
        per_step = (len(offsets) - 1) // 16
        frame[offsets[per_step * 6 + 1] + 30] ^= 1
        dataset.id.write_direct_chunk((0, 0, 0), bytes(frame))
    return path, array


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_damaged_step_stays_alone(damaged, mode: str) -> None:
    path, array = damaged
    with h5py.File(path, mode) as file:
        for step in range(16):
            if 6 in (step, *ancestors(step)):
                with pytest.raises(CodecError, match="block 19 of 48"):
                    hdf5.read_tensor(file["x"], step)
                first = np.s_[step, :128]
                assert_same_bits(hdf5.read_tensor(file["x"], first), array[first])
            else:
                assert_same_bits(hdf5.read_tensor(file["x"], step), array[step])
        with pytest.raises(OSError, match="filter"):  # libhdf5 decodes whole chunks
            file["x"][0]


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="this system has no preadv to watch")
def test_reads_the_blocks_on_the_way_alone(damaged, monkeypatch) -> None:
    path, array = damaged
    read = []
    preadv = os.preadv

    def noted(descriptor: int, buffers: list, offset: int, *flags: int) -> int:
        read.append(sum(memoryview(each).nbytes for each in buffers))
        return preadv(descriptor, buffers, offset, *flags)

    monkeypatch.setattr(os, "preadv", noted)
    with h5py.File(path) as file:
        frame = file["x"].id.read_direct_chunk((0, 0, 0))[1]
        assert_same_bits(hdf5.read_tensor(file["x"], np.s_[9, 5]), array[9, 5])
        offsets = core.Index(frame).offsets
        blocks = [3 * v for v in (0, 8, 9)]
        head = max(4096, offsets[0])
        assert sum(read) == head + sum(offsets[b + 1] - offsets[b] for b in blocks)
