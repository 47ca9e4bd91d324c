"""The filter in h5py, as users call it."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from bf16codecs import BF16Huffman, hdf5
from bits import bits
from contents import lcg_words
from looping import for_each

CHUNKS = (32, 64)
FILTERS = [
    hdf5.Split(),
    hdf5.Split(by="byte"),
    hdf5.Huffman(),
    hdf5.Huffman("float32", checksum=False),
    hdf5.Arithmetic(),
    hdf5.Arithmetic("float16", level="best"),
    hdf5.Arithmetic(level="best", checksum=False),
]


@pytest.fixture
def weights() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(0, 0.02, (100, 64)).astype(ml_dtypes.bfloat16).view(np.uint16)


@for_each("option", FILTERS)
@pytest.mark.parametrize("style", ["object", "keywords"])
def test_round_trip(file: h5py.File, weights: np.ndarray, option, style: str) -> None:
    keywords = {"compression": option} if style == "object" else dict(**option)
    dataset = file.create_dataset(repr(option), data=weights, chunks=CHUNKS, **keywords)
    file.flush()
    (name,) = dataset._filters
    assert int(name) == hdf5.FILTER_ID
    given = option.filter_options
    has_row = option.codec.dtype in ("bfloat16", "float16") and not isinstance(option, hdf5.Split)
    row = (0, 0, 0, 0, 64)[len(given) - 1 :] if has_row else ()
    assert dataset._filters[name] == given + row, "what was given, and the chunks' rows"
    np.testing.assert_array_equal(dataset[:], weights)
    np.testing.assert_array_equal(dataset[30:34, 5:60], weights[30:34, 5:60])
    if isinstance(option, hdf5.Huffman):
        assert dataset.id.get_storage_size() < 0.8 * weights.nbytes


def test_options_by_number_and_without_parameters(file: h5py.File, weights: np.ndarray) -> None:
    dataset = file.create_dataset("x", data=weights, chunks=CHUNKS, compression=hdf5.FILTER_ID)
    file.flush()
    frame = dataset.id.read_direct_chunk((0, 0))[1]
    assert frame == BF16Huffman().encode(weights[:32])


@for_each("option", [*FILTERS, hdf5.Zstd(7)])
def test_options_are_values(option) -> None:
    again = eval(repr(option), {k: getattr(hdf5, k) for k in hdf5.__all__})
    for other in (again, copy.deepcopy(option), pickle.loads(pickle.dumps(option))):
        assert other == option
        assert hash(other) == hash(option)
        assert type(option)(**option.get_config()) == option
    assert option != hdf5.Huffman("float64")


@for_each(
    "make",
    [
        lambda: hdf5.Huffman("int8"),
        lambda: hdf5.Split(by="bit"),
        lambda: hdf5.Arithmetic(level="worst"),
        lambda: hdf5.Zstd(0),
    ],
)
def test_wrong_options(make) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


def test_before_and_after_other_filters(file: h5py.File, weights: np.ndarray) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(CHUNKS)
    properties.set_filter(hdf5.FILTER_ID, h5py.h5z.FLAG_MANDATORY, hdf5.Split().filter_options)
    properties.set_deflate(9)
    properties.set_fletcher32()
    space = h5py.h5s.create_simple(weights.shape)
    dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U16LE, space, properties))
    dataset[:] = weights
    file.flush()
    assert dataset.id.get_storage_size() < 0.8 * weights.nbytes
    np.testing.assert_array_equal(dataset[:], weights)


@pytest.mark.parametrize("flag", [h5py.h5z.FLAG_OPTIONAL, h5py.h5z.FLAG_MANDATORY])
def test_chunks_that_do_not_shrink(file: h5py.File, flag: int) -> None:
    noise = lcg_words(6144).astype(np.uint16).reshape(96, 64)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(CHUNKS)
    properties.set_filter(hdf5.FILTER_ID, flag, ())
    space = h5py.h5s.create_simple(noise.shape)
    dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U16LE, space, properties))
    dataset[:] = noise
    file.flush()
    size = dataset.id.get_storage_size()
    if flag == h5py.h5z.FLAG_OPTIONAL:
        assert size == noise.nbytes
    else:
        assert noise.nbytes < size < 1.02 * noise.nbytes
    np.testing.assert_array_equal(dataset[:], noise)
    np.testing.assert_array_equal(hdf5.read_tensor(dataset), noise)


CORRUPT = """
import sys, h5py
from bf16codecs import hdf5
with h5py.File(sys.argv[1]) as file:
    for _ in range(3):
        try:
            print(file["x"][:8])
        except OSError as e:
            print("OSError")
    print(file["x"][32:34, :3].tolist())
"""


def test_corrupt_chunk_is_reported_once(tmp_path: Path, weights: np.ndarray, run_python) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=weights, chunks=CHUNKS, compression=hdf5.Huffman())
        file.flush()
        frame = bytearray(dataset.id.read_direct_chunk((0, 0))[1])
        frame[-5] ^= 1
        dataset.id.write_direct_chunk((0, 0), bytes(frame))
    done = run_python(CORRUPT, str(path))
    expected = [*["OSError"] * 3, str(weights[32:34, :3].tolist())]
    assert done.stdout.splitlines() == expected
    (line,) = done.stderr.splitlines()
    assert line.startswith("bf16codecs: chunk not decoded: ")
    assert "block 0 of 1" in line


WRONG = """
import sys, h5py, numpy as np
from bf16codecs import hdf5
data = np.arange(6400, dtype=np.uint16).reshape(100, 64)
flag = int(sys.argv[2])
file = h5py.File(sys.argv[1], "w")
properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
properties.set_chunk((32, 64))
properties.set_filter(hdf5.FILTER_ID, flag, (9,))
space = h5py.h5s.create_simple(data.shape)
dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U16LE, space, properties))
dataset[:] = data
try:
    file.flush()
    print("written", (dataset[:] == data).all())
    file.close()
except RuntimeError as e:
    print(e)
"""


def test_wrong_values_fail_the_first_write(tmp_path: Path, run_python) -> None:
    done = run_python(WRONG, str(tmp_path / "x.h5"), str(h5py.h5z.FLAG_MANDATORY), check=False)
    assert "filter returned failure" in done.stdout
    reasons = [x for x in done.stderr.splitlines() if x.startswith("bf16codecs")]
    assert len(reasons) == 1
    assert "cd_values[0] is 9" in reasons[0]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((9,), r"cd_values\[0\] is 9: the codec is 1 \(split\), 2"),
        ((2, 7), r"cd_values\[1\] is 7: the dtype is 0 \(bfloat16\)"),
        ((2, 2, 8), r"cd_values\[2\] is 8"),
        ((3, 2, 0, 2), r"cd_values\[3\] is 2: the level is 0 \(fast\)"),
        ((2, 0, 0, 0, 0, 0, 5), "a chunk has 4096 bytes, which are not 5 steps of whole items"),
        ((2, 0, 0, 0, 0, 0, 0, 1), r"cd_values\[7\] is 1: unknown"),
    ],
)
def test_wrong_values_of_an_optional_filter_create_nothing(
    file: h5py.File, weights: np.ndarray, values, reason: str, capfd
) -> None:
    """libhdf5 would store the chunks without it, and h5py has no other filters."""
    for option in ({"compression_opts": values}, {"compression_opts": values, "shuffle": False}):
        with pytest.raises(ValueError, match=reason):
            file.create_dataset(
                "x", data=weights, chunks=CHUNKS, compression=hdf5.FILTER_ID, **option
            )
        assert list(file) == []
    assert capfd.readouterr().err.count("bf16codecs: HDF5 dataset not created: ") == 1


def test_steps_that_do_not_fit_create_nothing(file: h5py.File, weights: np.ndarray) -> None:
    with pytest.raises(ValueError, match="not 5 steps of whole items"):
        file.create_dataset("x", data=weights, chunks=CHUNKS, compression=hdf5.Huffman(steps=5))
    assert list(file) == []


COEXIST = """
import sys
if sys.argv[1] == "before":
    import hdf5plugin
from bf16codecs import hdf5
import hdf5plugin, h5py, numpy as np
data = np.arange(6400, dtype=np.uint16).reshape(100, 64)
with h5py.File("x.h5", "w") as file:
    options = hdf5.Huffman(), hdf5plugin.Zstd(), hdf5plugin.Blosc(), hdf5.Split()
    for i, option in enumerate(options):
        file.create_dataset(str(i), data=data, chunks=(32, 64), compression=option)
    file.create_dataset("z", data=data, chunks=(32, 64), **hdf5.Zstd(5))
    assert file["z"].shuffle
with h5py.File("x.h5") as file:
    for dataset in file.values():  # which holds h5py's lock
        assert (dataset[:] == data).all()
        assert (hdf5.read_tensor(dataset) == data).all()
"""


@pytest.mark.parametrize("order", ["before", "after"])
def test_beside_hdf5plugin(run_python, order: str) -> None:
    pytest.importorskip("hdf5plugin")
    run_python(COEXIST, order)


WITHOUT = """
import sys
sys.modules["hdf5plugin"] = None
from bf16codecs import hdf5
import h5py, numpy as np
with h5py.File("x.h5", "w") as file:
    for call in (
        lambda: file.create_dataset("x", data=np.zeros(9), compression=hdf5.Zstd()),
        lambda: file.create_dataset("x", data=np.zeros(9), **hdf5.Zstd()),
        lambda: hdf5.write_tensor(file, "x", np.zeros(9), compression=hdf5.Zstd()),
    ):
        try:
            call()
        except ValueError as e:
            assert "32015" in str(e) and "hdf5plugin" in str(e)
            print("told")
    assert not file.keys()
"""


def test_zstd_without_hdf5plugin(run_python) -> None:
    assert run_python(WITHOUT, HDF5_PLUGIN_PATH="::").stdout.split() == ["told"] * 3


FOUND = """
import os, sys, h5py
if sys.argv[2] == "prepend":
    h5py.h5pl.prepend(sys.argv[3].encode())
with h5py.File(sys.argv[1]) as file:
    print(int(file["x"][:].sum()))
assert "bf16codecs" not in sys.modules
"""


@pytest.mark.parametrize("way", ["environment", "prepend"])
def test_h5py_without_this_package(
    tmp_path: Path, weights: np.ndarray, run_python, way: str
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=weights, chunks=CHUNKS, compression=hdf5.Arithmetic())
    environment = {"HDF5_PLUGIN_PATH": hdf5.PLUGIN_PATH if way == "environment" else "::"}
    done = run_python(FOUND, str(tmp_path / "x.h5"), way, hdf5.PLUGIN_PATH, **environment)
    assert int(done.stdout) == int(weights.sum())


def test_missing_plugin_is_an_error_of_hdf5(
    tmp_path: Path, weights: np.ndarray, run_python, root: Path
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=weights, chunks=CHUNKS, compression=hdf5.Arithmetic())
    (tmp_path / "empty").mkdir()
    arguments = (str(tmp_path / "x.h5"), "", "")
    done = run_python(FOUND, *arguments, check=False, HDF5_PLUGIN_PATH=str(tmp_path / "empty"))
    assert done.returncode == 1
    message = "can't find plugin. Check either HDF5_VOL_CONNECTOR, HDF5_PLUGIN_PATH"
    assert message in done.stderr
    assert message in (root / "docs" / "hdf5_filter.md").read_text("utf-8")


def test_read_in_threads(tmp_path: Path, weights: np.ndarray) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for i in range(8):
            file.create_dataset(str(i), data=weights + i, chunks=CHUNKS, compression=hdf5.Huffman())
    with h5py.File(tmp_path / "x.h5") as file, ThreadPoolExecutor(4) as pool:

        def read(i: int) -> bool:
            both = file[str(i)][:], hdf5.read_tensor(file[str(i)])
            return all((bits(a) == bits(weights + i)).all() for a in both)

        assert all(pool.map(read, list(range(8)) * 5))
