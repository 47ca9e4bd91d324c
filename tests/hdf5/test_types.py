"""Datasets of other programs: every HDF5 type, and every way of storing chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes  # noqa: F401  (makes "bfloat16" known to numpy.dtype)
import numpy as np
import pytest
from h5py import h5t

from bf16codecs import hdf5
from bits import assert_same_bits
from hdf5_types import I32, TYPES, WITHOUT_NUMBERS, compound, integer, set_chunk_options, tagged
from looping import for_each

COUNT = 10


@pytest.fixture
def file() -> Iterator[h5py.File]:
    with h5py.File("types.h5", "w", driver="core", backing_store=False) as file:
        yield file


LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (4,)},
    "shuffle and gzip": {"chunks": (4,), "shuffle": True, "compression": "gzip"},
    "bf16codecs": {"chunks": (4,), "compression": hdf5.Huffman("auto")},
}


def create(file: h5py.File, name: str, kind: Any, layout: dict[str, Any]) -> h5py.Dataset:
    """Create a dataset of an HDF5 type, which h5py accepts only as a committed type."""
    kind = kind.copy()
    kind.commit(file.id, f"type of {name}".encode())
    return file.create_dataset(name, (COUNT,), file[f"type of {name}"], **layout)


def fill(dataset: h5py.Dataset) -> None:
    """Write bytes of which each item differs."""
    kind = dataset.id.get_type()
    raw = np.arange(COUNT * kind.get_size(), dtype=np.uint8).reshape(COUNT, -1)
    if isinstance(kind, h5t.TypeStringID):
        raw = raw % 3 + ord("a")
        raw[:, -1] = {h5t.STR_SPACEPAD: ord(" ")}.get(kind.get_strpad(), 0)
    elif isinstance(kind, (h5t.TypeEnumID, h5t.TypeFloatID)):
        values = np.arange(COUNT) % (2 if isinstance(kind, h5t.TypeEnumID) else 7)
        dataset[...] = values.astype(dataset.dtype)
        return
    dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=kind)


@pytest.mark.parametrize("layout", LAYOUTS)
@for_each("name", TYPES)
def test_items_are_what_h5py_makes_of_them(file: h5py.File, name: str, layout: str) -> None:
    dataset = create(file, f"{name}, {layout}", TYPES[name], LAYOUTS[layout])
    fill(dataset)
    expected = dataset[...]
    found = hdf5.read_tensor(dataset)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(hdf5.read_tensor(dataset, np.s_[5:1:-2]), expected[5:1:-2])


@pytest.mark.parametrize("layout", LAYOUTS)
@for_each("name", WITHOUT_NUMBERS)
def test_types_without_numbers_are_refused(file: h5py.File, name: str, layout: str) -> None:
    kind = WITHOUT_NUMBERS[name]
    label = f"{name}, {layout}".encode()
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if "chunks" in LAYOUTS[layout]:
        properties.set_chunk((4,))
    if layout == "bf16codecs":
        properties.set_filter(hdf5.FILTER_ID, h5py.h5z.FLAG_OPTIONAL, (2, 2))
    space = h5py.h5s.create_simple((COUNT,))
    dataset = h5py.h5d.create(file.id, label, kind, space, dcpl=properties)
    with pytest.raises(TypeError, match=f"^/{name}, {layout}: "):
        hdf5.read_tensor(h5py.Dataset(dataset))


@pytest.mark.parametrize("layout", LAYOUTS)
@for_each(
    "kind, dtype",
    [
        (h5t.STD_B8LE, "u1"),
        (h5t.STD_B32LE, "<u4"),
        (h5t.STD_B16BE, ">u2"),
        (h5t.create(h5t.OPAQUE, 5), "V5"),
        (tagged(5), "V5"),
    ],
)
def test_bits_and_opaque_bytes_are_themselves(
    file: h5py.File, kind: Any, dtype: str, layout: str
) -> None:
    dataset = create(file, f"{dtype} {id(kind)}", kind, LAYOUTS[layout])
    raw = np.arange(COUNT * kind.get_size(), dtype=np.uint8)
    dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=dataset.id.get_type())
    found = hdf5.read_tensor(dataset)
    assert (found.dtype, found.tobytes()) == (np.dtype(dtype), raw.tobytes())


@pytest.mark.parametrize("layout", LAYOUTS)
@for_each("name, size", [("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1)])
def test_other_order_of_bytes_keeps_every_bit(
    file: h5py.File, name: str, size: int, layout: str
) -> None:
    """Even NaNs, which conversions of numbers do not keep."""
    values = np.arange(256**size, dtype=f"<u{size}").view(name)
    big_endian = hdf5.write_tensor(file, name, values).id.get_type().copy()
    big_endian.set_order(h5t.ORDER_BE)
    big_endian.commit(file.id, f"{name}, the other way".encode())
    options = {**LAYOUTS[layout], **({"chunks": (100,)} if LAYOUTS[layout] else {})}
    dataset = file.create_dataset(
        f"{name} {layout}", values.shape, file[f"{name}, the other way"], **options
    )
    raw = values.view(f"<u{size}").astype(f">u{size}")
    dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=big_endian)
    assert_same_bits(hdf5.read_tensor(dataset), values)


@for_each(
    "dtype", ["bfloat16", "float8_e4m3fn", "f2", "f4", "f8", "i2", "u8", "c8", "c16", "g", "G"]
)
def test_arrays_in_either_order_and_of_any_kind(tmp_path: Path, dtype: str) -> None:
    values = np.arange(24).astype(dtype).reshape(4, 6)
    other = values.astype(values.dtype.newbyteorder(">"))
    kinds = [other, other[::-1, ::2], np.asmatrix(other), other.T, values.view(np.recarray)]
    for i, array in enumerate(kinds):
        with h5py.File(tmp_path / f"{dtype}-{i}.h5", "w") as file:
            dataset = hdf5.write_tensor(file, "x", array)
            np.testing.assert_array_equal(hdf5.read_tensor(dataset), np.asarray(array))
            np.testing.assert_array_equal(dataset[...].astype("c16"), array.astype("c16"))


LONG = h5t.py_create(np.dtype("g").newbyteorder(">"))
SIZE = LONG.get_size()
NATIVE, COMPLEX = h5t.py_create(np.dtype("G")), compound(2 * SIZE, r=(0, LONG), i=(SIZE, LONG))


@pytest.mark.parametrize("layout", LAYOUTS)
@for_each(
    "kind, memory, members",
    [
        (COMPLEX, NATIVE, ""),
        (compound(80, r=(8, LONG), i=(40, LONG)), NATIVE, ""),
        (compound(80, z=(8, COMPLEX), n=(64, I32)), compound(2 * SIZE, z=(0, NATIVE)), "z"),
        (
            compound(48, z=(8, h5t.array_create(COMPLEX, (1,)))),
            compound(2 * SIZE, z=(0, h5t.array_create(NATIVE, (1,)))),
            "z",
        ),
        (
            compound(80, y=(8, compound(64, z=(16, COMPLEX)))),
            compound(2 * SIZE, y=(0, compound(2 * SIZE, z=(0, NATIVE)))),
            "yz",
        ),
    ],
)
def test_complex_numbers_of_big_endian_long_doubles(
    file: h5py.File, kind: Any, memory: Any, members: str, layout: str
) -> None:
    """h5py reads them as numbers in the machine's order."""
    dataset = create(file, f"{id(kind)}, {layout}", kind, LAYOUTS[layout])
    values = np.arange(COUNT, dtype="G") * (1.5 - 2j)
    dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=memory)
    found = hdf5.read_tensor(dataset)
    for member in members:
        found = found[member]
    np.testing.assert_array_equal(found.reshape(-1), values)


@for_each(
    "array",
    [
        np.ma.masked_array([1.0, 2.0], [True, False]),
        np.ma.masked,
        np.zeros(3, [("a", "f4"), ("b", "i4")]),
        np.array(["a", "b"]),
        np.array([b"a"]),
        np.array([None]),
        np.zeros(3, "M8[s]"),
        np.zeros(3, "V4"),
        np.zeros(3, "int4"),
        np.zeros(3, "float8_e8m0fnu"),
    ],
)
def test_arrays_that_hdf5_has_no_numbers_for(file: h5py.File, array: Any) -> None:
    with pytest.raises(TypeError):
        hdf5.write_tensor(file, "x", array)
    assert "x" not in file


TABLE = np.dtype([("x", "f4"), ("name", h5py.string_dtype()), ("y", "f4", (3,))])


@for_each(
    "data, dtype",
    [
        (["name"] * 1000, h5py.string_dtype()),
        ([b"x" * (i % 9) for i in range(1000)], h5py.string_dtype("ascii")),
        ([np.arange(i % 5, dtype="f4") for i in range(1000)], h5py.vlen_dtype(np.float32)),
        ([(i, f"n{i}", (1, 2, i)) for i in range(1000)], TABLE),
        ([[(i, "a", (0, 0, 0)), (i, "b", (1, 1, 1))] for i in range(1000)], (TABLE, (2,))),
    ],
)
def test_what_refers_to_data_elsewhere_is_read_again(tmp_path: Path, data: Any, dtype: Any) -> None:
    """In the file, an item of such a type has another size than in memory."""
    path = tmp_path / "text.h5"
    dtype = np.dtype(dtype)
    array = np.empty(1000, dtype.base)
    if dtype.subdtype is None:
        array[:] = data
    with h5py.File(path, "w") as file:
        kind = np.dtype([("rows", dtype)]) if dtype.subdtype is not None else dtype
        dataset = file.create_dataset("x", (1000,), kind, chunks=(100,), **hdf5.Huffman("auto"))
        if dtype.subdtype is None:
            dataset[...] = array
        else:
            rows = np.empty(1000, kind)
            for i, row in enumerate(data):
                for j, item in enumerate(row):
                    rows["rows"][i, j] = item
            dataset[...] = rows
        expected = dataset[...]
    with h5py.File(path) as file:
        assert repr(file["x"][...].tolist()) == repr(expected.tolist())
        assert repr(file["x"][500:503].tolist()) == repr(expected[500:503].tolist())


def test_references_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "references.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(10)
        references = file.create_dataset(
            "r", (100,), h5py.ref_dtype, chunks=(30,), **hdf5.Huffman("auto")
        )
        regions = file.create_dataset(
            "g", (100,), h5py.regionref_dtype, chunks=(30,), **hdf5.Huffman("auto")
        )
        for i in range(100):
            references[i] = file["a"].ref
            regions[i] = file["a"].regionref[i % 10 : 10]
    with h5py.File(path) as file:
        assert all(file[reference].name == "/a" for reference in file["r"][...])
        assert list(file["a"][file["g"][7]]) == [7, 8, 9]


FILTERS = {
    "shuffle": lambda p: p.set_shuffle(),
    "gzip": lambda p: p.set_deflate(4),
    "fletcher32": lambda p: p.set_fletcher32(),
    "lzf": lambda p: p.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL),
    "szip": lambda p: p.set_szip(32, 8),
    "n-bit": lambda p: p.set_filter(h5py.h5z.FILTER_NBIT, 0),
    "scale-offset": lambda p: p.set_scaleoffset(h5py.h5z.SO_INT, 0),
    "huffman": lambda p: p.set_filter(hdf5.FILTER_ID, h5py.h5z.FLAG_OPTIONAL, (2, 2)),
    "split": lambda p: p.set_filter(hdf5.FILTER_ID, h5py.h5z.FLAG_MANDATORY, (1, 2)),
}
OURS = ("huffman", "split")
REFUSED_AFTER = {*OURS, "szip", "n-bit", "scale-offset"}


@pytest.mark.parametrize("own", OURS)
@for_each(
    "other, base", list(itertools.product(FILTERS, [h5t.STD_I32LE, integer(h5t.STD_I16LE, 12)]))
)
def test_beside_every_filter_of_hdf5(tmp_path: Path, own: str, other: str, base: Any) -> None:
    """Before and after it: combinations that could not be read again are refused."""
    if other == "szip" and not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
        pytest.skip("this libhdf5 has no szip")
    values = np.arange(1000) * 7 % 1999 - 1000
    for order in ((own, other), (other, own)):
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((400,))
        for name in order:
            FILTERS[name](properties)
        space = h5py.h5s.create_simple((1000,))
        with h5py.File(tmp_path / "x.h5", "w") as file:
            if order[0] in OURS and order[1] in REFUSED_AFTER:
                with pytest.raises(ValueError, match=r"there twice|leave it out"):
                    h5py.h5d.create(file.id, b"x", base, space, dcpl=properties)
                assert "x" not in file
                continue
            h5py.h5d.create(file.id, b"x", base, space, dcpl=properties)
            file["x"][...] = values
        with h5py.File(tmp_path / "x.h5") as file:
            np.testing.assert_array_equal(file["x"][...], values)
            np.testing.assert_array_equal(hdf5.read_tensor(file["x"]), values)


@pytest.mark.parametrize("mode", ["r", "r+"])
@for_each("name", ["shuffle", "gzip", "fletcher32", "huffman", "split"])
def test_edges_that_are_not_filtered(tmp_path: Path, name: str, mode: str) -> None:
    set_options = set_chunk_options()
    if set_options is None:
        pytest.skip("libhdf5 is not found")
    values = (np.arange(70, dtype="i4") * 1000003).reshape(7, 10)
    with h5py.File(tmp_path / "edges.h5", "w", libver="latest") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((3, 4))
        FILTERS[name](properties)
        assert set_options(properties.id, 2) >= 0
        space = h5py.h5s.create_simple(values.shape)
        h5py.h5d.create(file.id, b"x", h5t.STD_I32LE, space, dcpl=properties)
        file["x"][...] = values
    with h5py.File(tmp_path / "edges.h5", mode) as file:
        np.testing.assert_array_equal(hdf5.read_tensor(file["x"]), values)
        np.testing.assert_array_equal(hdf5.read_tensor(file["x"], np.s_[5:, 7:]), values[5:, 7:])


DRIVERS: dict[str, dict[str, Any]] = {
    "sec2": {},
    "stdio": {"driver": "stdio"},
    "core": {"driver": "core"},
    "split": {"driver": "split"},
    "family": {"driver": "family", "memb_size": 1 << 20},
    "user block": {"userblock_size": 512},
}


@pytest.mark.parametrize("driver", DRIVERS)
@for_each("compression", [None, "gzip", hdf5.Huffman("float32")])
def test_chunks_that_were_never_written(tmp_path: Path, driver: str, compression: Any) -> None:
    options = DRIVERS[driver]
    name = "x-%d.h5" if driver == "family" else "x.h5"

    def check(file: h5py.File) -> None:
        for dataset in (file["part"], file["part"], file["none"]):
            np.testing.assert_array_equal(hdf5.read_tensor(dataset), dataset[...])
            np.testing.assert_array_equal(hdf5.read_tensor(dataset, np.s_[6:18]), dataset[6:18])

    with h5py.File(tmp_path / name, "w", **options) as file:
        made = {"dtype": "f4", "chunks": (8,), "fillvalue": 2, "compression": compression}
        file.create_dataset("none", (20,), **made)
        file.create_dataset("part", (20,), **made)[:8] = 1
        check(file)
    reading = {} if driver == "user block" else options
    for mode in ("r", "r+"):
        with h5py.File(tmp_path / name, mode, **reading) as file:
            check(file)
    if driver in ("sec2", "user block"):
        with open(tmp_path / name, "rb") as raw, h5py.File(raw) as file:
            check(file)


def test_many_datasets_are_open(tmp_path: Path) -> None:
    """The plugin finds each chunk's size while hundreds of datasets are opened and closed."""
    path = tmp_path / "many.h5"
    values = np.arange(64, dtype="f4")
    with h5py.File(path, "w") as file:
        for i in range(500):
            chunks = (1 + i % 50,)
            file.create_dataset(f"{i}", data=values, chunks=chunks, **hdf5.Huffman("float32"))
    with h5py.File(path) as file:
        held = [file[f"{i}"] for i in range(300)]
        for dataset in held:
            np.testing.assert_array_equal(dataset[...], values)
        for i in range(300, 500):
            held.append(file[f"{i}"])
            np.testing.assert_array_equal(held[-1][...], values)
        del held[100:400]
        for dataset in held:
            np.testing.assert_array_equal(dataset[...], values)
