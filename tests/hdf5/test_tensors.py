"""`write_tensor` and `read_tensor`: every bit, any selection, damaged chunks."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bf16codecs
from bf16codecs import hdf5
from bf16codecs.errors import CodecError
from bits import assert_same_bits
from contents import gaussian, lcg_bytes
from looping import for_each

FLOATS = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
FILTERS = [
    None,
    hdf5.Split(),
    hdf5.Split(by="byte"),
    hdf5.Huffman(),
    hdf5.Arithmetic(),
    hdf5.Arithmetic(level="best"),
]
DTYPES = ["bool", "i1", "u1", "i2", ">u2", "i4", "u8", "f2", "f4", ">f4", "f8", "c8", "c16"]


def random_array(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    values = np.frombuffer(lcg_bytes(size), np.uint8)
    return (values % 2 if dtype == "bool" else values).view(dtype).reshape(shape)


def every_pattern(name: str) -> np.ndarray:
    size = np.dtype(name).itemsize
    return np.arange(256**size, dtype=f"u{size}").view(name).reshape(-1, 32)


@pytest.mark.parametrize("name", FLOATS)
@for_each("compression", FILTERS)
def test_every_bit_pattern(file: h5py.File, name: str, compression) -> None:
    values, path = every_pattern(name), f"{compression!r}"
    dataset = hdf5.write_tensor(file, path, values, compression=compression, chunks=(5, 32))
    assert_same_bits(hdf5.read_tensor(dataset), values)
    assert_same_bits(hdf5.read_tensor(dataset, np.s_[3:7, ::-3]), values[3:7, ::-3])
    # Through libhdf5 and the plugin, as other programs read it.
    raw = np.empty(values.shape, f"u{values.itemsize}")
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=dataset.id.get_type())
    assert_same_bits(raw.view(name), values)


def test_parts_of_chunks_that_have_a_model(file: h5py.File) -> None:
    """Neither rows nor columns begin where blocks do."""
    values = np.frombuffer(gaussian(1100, 700), ml_dtypes.bfloat16).reshape(1100, 700)
    best = hdf5.Arithmetic(level="best")
    for chunks in ((1100, 700), (600, 300)):
        dataset = hdf5.write_tensor(file, f"x{chunks}", values, compression=best, chunks=chunks)
        file.flush()
        assert bf16codecs.inspect(dataset.id.read_direct_chunk((0, 0))[1])["version"] == 2
        for selection in (np.s_[:], np.s_[5], np.s_[370:380, 699:], np.s_[::-250, 3:600:70]):
            assert_same_bits(hdf5.read_tensor(dataset, selection), values[selection])


@pytest.mark.parametrize("compression", [None, hdf5.Huffman(), hdf5.Arithmetic("bfloat16")])
@for_each("dtype", DTYPES)
def test_other_types(file: h5py.File, dtype: str, compression) -> None:
    values = random_array(dtype, (20, 9, 3))
    dataset = hdf5.write_tensor(file, dtype, values, compression=compression, chunks=(6, 9, 2))
    read = hdf5.read_tensor(dataset)
    assert read.dtype == values.dtype
    assert read.tobytes() == values.tobytes()


def test_one_item_in_the_other_order_of_bytes(file: h5py.File) -> None:
    """NumPy scalars are in the machine's byte order."""
    values = np.arange(60, dtype=">f4").reshape(6, 10)
    assert hdf5.read_tensor(hdf5.write_tensor(file, "x", values), (3, 4)) == values[3, 4]


def test_types_are_those_of_hdf5_2(file: h5py.File) -> None:
    names = ["H5T_FLOAT_BFLOAT16LE_g", "H5T_FLOAT_F8E4M3_g", "H5T_FLOAT_F8E5M2_g"]
    maps = Path("/proc/self/maps")
    loaded = {x.split()[-1] for x in maps.read_text().splitlines()} if maps.exists() else set()
    libraries = [ctypes.CDLL(x) for x in loaded if "libhdf5" in x and "_hl" not in x]
    libraries = [library for library in libraries if hasattr(library, names[0])]
    if not libraries:
        pytest.skip("h5py's libhdf5 has no types of HDF5 2.0, or does not show them")
    for name, native in zip(FLOATS, names, strict=True):
        dataset = hdf5.write_tensor(file, name, np.zeros(8, name))
        expected = ctypes.c_int64.in_dll(libraries[0], native).value
        own = dataset.id.get_type()
        assert libraries[0].H5Tequal(ctypes.c_int64(own.id), ctypes.c_int64(expected)) == 1


def test_h5py_reads_numbers(file: h5py.File) -> None:
    values = np.arange(-50, 50, dtype=np.float32).astype(ml_dtypes.bfloat16)
    dataset = hdf5.write_tensor(file, "x", values)
    np.testing.assert_array_equal(dataset[:], values.astype(np.float32))


@for_each("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1), (7,)])
def test_shapes(file: h5py.File, shape: tuple[int, ...]) -> None:
    values = np.full(shape, np.nan, ml_dtypes.bfloat16)
    dataset = hdf5.write_tensor(file, f"some/where/{shape}", values)
    read = hdf5.read_tensor(file[f"some/where/{shape}"])
    assert dataset.shape == read.shape == shape
    assert_same_bits(read, values)


def test_any_memory(file: h5py.File) -> None:
    values = random_array("bfloat16", (40, 30))
    for i, array in enumerate([values.T, values[::2, ::-3], np.broadcast_to(values[0], (9, 30))]):
        for j, option in enumerate([None, hdf5.Huffman()]):
            dataset = hdf5.write_tensor(file, f"{i}{j}", array, compression=option, chunks=(4, 7))
            assert_same_bits(hdf5.read_tensor(dataset), array)


@for_each("mask", [False, [[False] * 6] * 4])
def test_masked_arrays_without_a_masked_item(file: h5py.File, mask) -> None:
    values = random_array("f4", (4, 6))
    dataset = hdf5.write_tensor(file, f"{mask}", np.ma.masked_array(values, mask))
    assert_same_bits(hdf5.read_tensor(dataset), values)


def test_tensors_of_pytorch(file: h5py.File) -> None:
    torch = pytest.importorskip("torch")
    for name in (*FLOATS, "float16", "float32", "complex64", "bool"):
        tensor = torch.arange(24).reshape(4, 6).to(getattr(torch, name))
        for i, part in enumerate((tensor, tensor.T, tensor[1:, ::2], tensor[0, 0])):
            found = hdf5.read_tensor(hdf5.write_tensor(file, f"{name}{i}", part))
            assert (found.dtype, found.shape) == (np.dtype(name), part.shape)
            np.testing.assert_array_equal(found.astype("c8"), part.to(torch.complex64).numpy())
    weights = torch.nn.Linear(3, 4, dtype=torch.bfloat16).weight
    found = hdf5.read_tensor(hdf5.write_tensor(file, "weights", weights))
    assert_same_bits(found, weights.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    for several in ([weights, weights], (weights.detach(), weights)):
        with pytest.raises(TypeError, match=r"join tensors with torch\.stack"):
            hdf5.write_tensor(file, "several", several)


def test_values_shrink_by_the_layout_of_the_array(file: h5py.File) -> None:
    values = np.random.default_rng(0).normal(size=50_000)
    for dtype, share in (("float32", 0.86), ("float16", 0.92), ("bfloat16", 0.68)):
        array = values.astype(dtype)
        for option in (hdf5.Huffman(), hdf5.Arithmetic()):
            dataset = hdf5.write_tensor(file, f"{dtype}{option!r}", array, compression=option)
            assert dataset.id.get_storage_size() < share * array.nbytes


def test_stored_chunks_are_frames(file: h5py.File) -> None:
    values = random_array("float32", (10, 8))
    dataset = hdf5.write_tensor(file, "x", values, compression=hdf5.Arithmetic(), chunks=(5, 8))
    frame = dataset.id.read_direct_chunk((5, 0))[1]
    assert frame == bf16codecs.BF16Arithmetic("float32").encode(values[5:])


def test_chunks_by_default_are_rows(file: h5py.File) -> None:
    values = np.zeros((3, 20 << 20), np.uint8)
    assert hdf5.write_tensor(file, "x", values).chunks == (1, 20 << 20)


indices = st.integers(-6, 5) | st.slices(6)


@given(st.tuples(indices, indices, indices), st.sampled_from([1, 2, 4, 6]))
def test_selections(tmp_path: Path, selection, chunk: int) -> None:
    values = random_array("bfloat16", (6, 6, 6))
    with h5py.File(tmp_path / "x.h5", "a") as file:
        name = f"{chunk}"
        if name not in file:
            hdf5.write_tensor(file, name, values, chunks=(chunk, min(4, chunk), 6))
        for n in range(4):
            expected = values[selection[:n]]
            actual = hdf5.read_tensor(file[name], selection[:n])
            assert_same_bits(actual, expected)
            out = np.empty_like(expected)
            if expected.ndim:
                assert hdf5.read_tensor(file[name], selection[:n], out=out) is not None
                assert_same_bits(out, expected)


@pytest.mark.parametrize("compression", [None, hdf5.Huffman(), "gzip"])
def test_arrays_of_indices(file: h5py.File, compression) -> None:
    values = random_array("float32", (50, 12))
    if compression == "gzip":
        dataset = file.create_dataset("x", data=values, chunks=(8, 5), compression="gzip")
    else:
        dataset = hdf5.write_tensor(file, "x", values, compression=compression, chunks=(8, 5))
    rows = np.array([49, 0, 7, 8, 7])
    mask = np.arange(50) % 3 == 0
    for selection in (rows, rows.tolist(), mask, np.s_[rows, 2:9], np.s_[::5, [1, 11]], ...):
        assert_same_bits(hdf5.read_tensor(dataset, selection), values[selection])
    for selection in (([1, 2], [3, 4]), ([[1], [2]], [3, 4]), np.s_[[0, 49, 0], [11, 0, 11]]):
        assert_same_bits(hdf5.read_tensor(dataset, selection), values[selection])
    for wrong in (50, (0, 0, 0), "x", 1.5, ([1, 2], [1, 2, 3])):
        with pytest.raises(IndexError):
            hdf5.read_tensor(dataset, wrong)


def test_blocks_of_large_chunks(file: h5py.File) -> None:
    """A chunk of several blocks: the first, the last, and some between."""
    values = random_array("bfloat16", (1100, 1000))
    dataset = hdf5.write_tensor(file, "x", values, compression=hdf5.Huffman(), chunks=(1000, 1000))
    for selection in (0, 999, 1099, np.s_[262:530:100], np.s_[500:501, 7], np.s_[990:1010], ...):
        assert_same_bits(hdf5.read_tensor(dataset, selection), values[selection])


def test_out(file: h5py.File) -> None:
    values = random_array("bfloat16", (64, 8))
    dataset = hdf5.write_tensor(file, "x", values, chunks=(8, 8))
    out = np.zeros((64, 16), values.dtype)[:, ::2]
    assert hdf5.read_tensor(dataset, out=out).base is out.base
    assert_same_bits(out, values)
    for wrong in (np.zeros((64, 8), "u2"), np.zeros((8, 64), values.dtype)):
        with pytest.raises(ValueError, match="out "):
            hdf5.read_tensor(dataset, out=wrong)


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"compression": "lzf"}])
def test_datasets_of_others(file: h5py.File, options: dict[str, str]) -> None:
    values = random_array("float32", (100, 10))
    dataset = file.create_dataset("x", data=values, **options)
    assert_same_bits(hdf5.read_tensor(dataset), values)
    assert_same_bits(hdf5.read_tensor(dataset, np.s_[90:3:-7, 4]), values[90:3:-7, 4])


def test_chunks_that_were_never_written(file: h5py.File) -> None:
    dataset = file.create_dataset(
        "x", (30, 4), "f4", chunks=(10, 4), compression=hdf5.Huffman("float32"), fillvalue=7
    )
    dataset[10:20] = 3
    assert hdf5.read_tensor(dataset)[:, 0].tolist() == [7] * 10 + [3] * 10 + [7] * 10
    assert hdf5.read_tensor(dataset, 12).tolist() == [3] * 4


def test_unflushed_writes_are_seen(file: h5py.File) -> None:
    dataset = file.create_dataset("x", (30, 4), "f4", chunks=(10, 4), compression=hdf5.Huffman())
    for i in range(3):
        dataset[:] = i
        assert (hdf5.read_tensor(dataset) == i).all()


@for_each("chunks", [(3,), (3, 3, 3), (0, 3), (11, 3)])
def test_chunks_that_do_not_fit(file: h5py.File, chunks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="chunks"):
        hdf5.write_tensor(file, "x", np.zeros((10, 10)), chunks=chunks)
    assert "x" not in file


def test_arrays_that_cannot_be_written(file: h5py.File) -> None:
    with pytest.raises(TypeError, match="numbers"):
        hdf5.write_tensor(file, "x", np.array(["a"], object))
    with pytest.raises(TypeError, match="compression"):
        hdf5.write_tensor(file, "x", np.zeros(9), compression="lzf")
    hdf5.write_tensor(file, "x", np.zeros(9))
    with pytest.raises(ValueError, match="exists"):
        hdf5.write_tensor(file, "x", np.ones(9))
    assert (hdf5.read_tensor(file["x"]) == 0).all()
    file["text"] = "text"
    with pytest.raises(TypeError, match="numbers"):
        hdf5.read_tensor(file["text"])


def test_failed_writes_leave_nothing(file: h5py.File, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self, array):
        raise MemoryError

    monkeypatch.setattr(bf16codecs.BF16Huffman, "encode", fail)
    with pytest.raises(MemoryError):
        hdf5.write_tensor(file, "x", np.zeros((9, 9)), chunks=(2, 9))
    assert "x" not in file


def test_damaged_chunks(file: h5py.File) -> None:
    values = random_array("bfloat16", (40, 32))
    for option, selection in itertools.product(FILTERS[1:], (np.s_[...], 12, np.s_[8:16])):
        name = f"{option!r}{selection}".replace("/", "")
        dataset = hdf5.write_tensor(file, name, values, compression=option, chunks=(8, 32))
        frame = dataset.id.read_direct_chunk((8, 0))[1]
        for damaged in (frame[:-1], frame + b"\0", frame[:50] + b"??" + frame[52:], b"??"):
            dataset.id.write_direct_chunk((8, 0), damaged)
            with pytest.raises(CodecError, match=r"chunk \(1, 0\)"):
                hdf5.read_tensor(dataset, selection)
            assert_same_bits(hdf5.read_tensor(dataset, np.s_[16:]), values[16:])


def test_chunks_of_another_size(file: h5py.File) -> None:
    """libhdf5 would read past the end of such a chunk: the plugin refuses it."""
    values = random_array("bfloat16", (40, 32))
    dataset = hdf5.write_tensor(file, "x", values, compression=hdf5.Huffman(), chunks=(8, 32))
    for size in (16, 510, 514, 100_000):
        dataset.id.write_direct_chunk((8, 0), bf16codecs.BF16Huffman().encode(lcg_bytes(size)))
        for read in (hdf5.read_tensor, lambda d: d.astype("f4")[:]):
            with pytest.raises((CodecError, OSError)):
                read(dataset)
        assert_same_bits(hdf5.read_tensor(dataset, 0), values[0])


def test_threads_do_not_change_the_file(tmp_path: Path) -> None:
    values = random_array("bfloat16", (64, 4096))
    before = bf16codecs.get_num_threads()
    frames = []
    try:
        for n in (1, 2, 5):
            bf16codecs.set_num_threads(n)
            with h5py.File(tmp_path / f"{n}.h5", "w") as file:
                dataset = hdf5.write_tensor(file, "x", values, chunks=(7, 4096))
                frames.append([dataset.id.read_direct_chunk((i, 0))[1] for i in range(0, 64, 7)])
                assert_same_bits(hdf5.read_tensor(dataset), values)
    finally:
        bf16codecs.set_num_threads(before)
    assert frames[0] == frames[1] == frames[2]
