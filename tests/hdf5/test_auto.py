"""Data types that the filter takes from datasets, and warnings about a mismatch."""

from __future__ import annotations

import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest

import bf16codecs
from bf16codecs import BF16Arithmetic, BF16Huffman, BF16Split, hdf5
from bf16codecs.errors import DtypeMismatchWarning
from bits import assert_same_bits

OPTIONS = [hdf5.Split("auto"), hdf5.Huffman("auto"), hdf5.Arithmetic("auto", level="best")]
options = pytest.mark.parametrize("option", OPTIONS, ids=repr)
# Types of datasets, and the data types that the filter chooses.
LAYOUTS = {
    "float16": "float16",
    "float32": "float32",
    ">f4": "float32",
    "float64": "float64",
    "int8": "float8_e4m3fn",
    "bool": "float8_e4m3fn",
    "uint16": "bfloat16",
    "int32": "float32",
    "int64": "float64",
    "complex64": "float32",
    "complex128": "float64",
}
OWN = {"bfloat16": "bfloat16", "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}


@pytest.fixture
def file(tmp_path: Path) -> h5py.File:
    with h5py.File(tmp_path / "x.h5", "w") as file, warnings.catch_warnings():
        warnings.simplefilter("error", DtypeMismatchWarning)
        yield file


def numbers(dtype: str) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 3, (60, 40)).astype(dtype)


def layout_of(dataset: h5py.Dataset) -> str:
    dataset.file.flush()
    frame = dataset.id.read_direct_chunk((0, 0))[1]
    (values,) = dataset._filters.values()
    name = bf16codecs.inspect(frame)["dtype"]
    assert values[1] == hdf5.Huffman(name).filter_options[1], "the file has the data type"
    return name


@options
def test_h5py(file: h5py.File, option) -> None:
    for dtype, layout in LAYOUTS.items():
        data = numbers(dtype)
        dataset = file.create_dataset(dtype, data=data, chunks=(60, 40), compression=option)
        file.flush()
        if dataset.id.get_chunk_info(0).filter_mask == 0:  # not a chunk that did not shrink
            assert layout_of(dataset) == layout, dtype
        assert dataset[:].tobytes() == data.tobytes(), dtype
        assert hdf5.read_tensor(dataset).tobytes() == data.tobytes(), dtype


@options
def test_write_tensor(file: h5py.File, option) -> None:
    for dtype, layout in (LAYOUTS | OWN).items():
        data = numbers(dtype)
        for kind, compression in (("option", option), ("codec", option.codec)):
            name = f"{dtype} {kind}"
            dataset = hdf5.write_tensor(file, name, data, compression=compression)
            assert layout_of(dataset) == layout, name
            assert hdf5.read_tensor(dataset).tobytes() == data.tobytes(), name


@pytest.mark.parametrize("dtype", OWN)
def test_types_that_h5py_lacks(file: h5py.File, dtype: str) -> None:
    """Datasets of the types that `write_tensor` makes, made with h5py."""
    kind = hdf5.write_tensor(file, "like", numbers(dtype)).id.get_type()
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((60, 40))
    filter_options = hdf5.Huffman("auto").filter_options
    properties.set_filter(hdf5.FILTER_ID, h5py.h5z.FLAG_MANDATORY, filter_options)
    space = h5py.h5s.create_simple((60, 40))
    new = h5py.h5d.create(file.id, b"x", kind, space, dcpl=properties)
    new.write(h5py.h5s.ALL, h5py.h5s.ALL, numbers(dtype), mtype=kind)
    assert layout_of(file["x"]) == dtype
    assert_same_bits(hdf5.read_tensor(file["x"]), numbers(dtype))


@pytest.mark.parametrize(
    "option", [hdf5.Split(), hdf5.Huffman(), hdf5.Arithmetic("float64")], ids=repr
)
def test_another_data_type_gets_one_warning(tmp_path: Path, option, capfd) -> None:
    array = numbers("float32")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        with pytest.warns(DtypeMismatchWarning, match="give dtype='float32', or dtype='auto'") as w:
            dataset = file.create_dataset("x", data=array, chunks=(60, 40), compression=option)
        assert [each.filename for each in w] == [__file__]
        assert layout_of(dataset) == option.codec.dtype, "as it was told"
        assert_same_bits(dataset[:], array)
        codec = {"Split": BF16Split, "Huffman": BF16Huffman}.get(
            type(option).__name__, BF16Arithmetic
        )("float16")
        with pytest.warns(DtypeMismatchWarning, match="give dtype='float32'") as w:
            hdf5.write_tensor(file, "y", array, compression=codec)
        assert [each.filename for each in w] == [__file__]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("make", ["create_dataset", "write_tensor"])
def test_a_warning_that_is_an_error_is_one_line(file: h5py.File, make: str, capfd) -> None:
    """It is not a traceback from a callback, which nobody can catch."""
    array = numbers("float32")
    if make == "create_dataset":
        dataset = file.create_dataset("x", data=array, compression=hdf5.Huffman())
    else:
        dataset = hdf5.write_tensor(file, "x", array, compression=BF16Huffman("bfloat16"))
    assert_same_bits(dataset[:], array)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("bf16codecs: warning: the HDF5 filter for bfloat16 encodes float32")


def test_what_has_no_type_of_its_own_gets_none(file: h5py.File) -> None:
    for dtype in ("uint8", "uint16", "int32", "int64", "bool", "complex64"):
        file.create_dataset(dtype, data=numbers(dtype), compression=hdf5.Huffman())
    file.create_dataset("V", data=numbers("float32").view("V4"), compression=hdf5.Huffman())
    hdf5.write_tensor(file, "w", numbers("float32"))


def test_programs_without_python_print_it(tmp_path: Path, run_python) -> None:
    done = run_python(
        """
import sys, os
import bf16codecs
os.environ["HDF5_PLUGIN_PATH"] = os.path.join(os.path.dirname(bf16codecs.__file__), "plugins")
import h5py, numpy as np
with h5py.File("x.h5", "w") as file:
    for name in "xyz":
        data = np.ones((100, 100), "f4")
        file.create_dataset(name, data=data, compression=48918, compression_opts=(2, 0))
    file.create_dataset("a", data=data, compression=48918, compression_opts=(2, 255))
    print(file["a"]._filters)
assert "bf16codecs.hdf5" not in sys.modules
"""
    )
    assert done.stdout.strip() == "{'48918': (2, 2, 0, 0, 0, 50)}"
    (line,) = done.stderr.splitlines()
    assert line.startswith("bf16codecs: warning: the HDF5 filter for bfloat16 encodes float32")
