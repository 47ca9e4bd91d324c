"""`read_tensor` returns no byte of memory that neither the file nor HDF5 wrote."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5t

from bf16codecs import hdf5
from hdf5_types import BFLOAT16, F32, I32, TYPES, compound
from looping import for_each

SHAPE = (7, 9)
COUNT = 63

PADDED = compound(12, r=(0, F32), i=(8, F32))
STRUCTS = {
    "padded": compound(16, a=(4, F32), b=(12, I32)),
    "padded, the members in reverse": compound(16, b=(12, I32), a=(4, F32)),
    "padded, and converted": compound(24, a=(4, BFLOAT16), b=(16, I32)),
    "nested": compound(40, z=(4, PADDED), n=(20, I32)),
    "array of padded structs": compound(64, z=(4, h5t.array_create(PADDED, (2, 2))), n=(56, I32)),
    "nested twice": compound(56, y=(4, compound(40, z=(4, PADDED), n=(20, I32))), n=(48, I32)),
    **{name: kind for name, kind in TYPES.items() if "compound" in name},
}
FILTERS = {
    "gzip": lambda p: p.set_deflate(4),
    "lzf": lambda p: p.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL),
    "bf16codecs": lambda p: p.set_filter(hdf5.FILTER_ID, h5py.h5z.FLAG_OPTIONAL, (2, 255)),
}
LAYOUTS = ["contiguous", "chunks", *FILTERS]
SELECTIONS = [
    ...,
    np.s_[2],
    np.s_[4, 5],
    np.s_[5:1:-2, 3:8],
    np.s_[::3, ::4],
    np.s_[[5, 0, 5]],
    np.s_[[6, 0, 3], [8, 0, 4]],
]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[h5py.File]:
    with h5py.File(tmp_path / "memory.h5", "w") as file:
        yield file


@pytest.fixture(autouse=True)
def _used_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new arrays with bytes, as if a program had left them in memory."""
    empty = np.empty

    def used(*arguments: Any, **options: Any) -> Any:
        made = empty(*arguments, **options)
        made.reshape(-1).view(np.uint8)[:] = 0xAA
        return made

    monkeypatch.setattr(np, "empty", used)


def create(file: h5py.File, name: str, kind: Any, layout: str, never: bool = False) -> Any:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if layout != "contiguous":
        properties.set_chunk((3, 4))
    if layout in FILTERS:
        FILTERS[layout](properties)
    if never:
        properties.set_fill_time(h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple(SHAPE)
    return h5py.Dataset(h5d.create(file.id, name.encode(), kind, space, dcpl=properties))


def content(array: Any) -> bytes:
    """Return every byte of an array's items: `tobytes` copies a view's structs without gaps."""
    return array.view(f"V{array.dtype.itemsize}").tobytes()


def check(dataset: h5py.Dataset) -> None:
    values = dataset[...]
    expected = values.view(f"V{values.dtype.itemsize}")
    for selection in SELECTIONS:
        found = hdf5.read_tensor(dataset, selection)
        assert (found.dtype, found.shape) == (values.dtype, expected[selection].shape)
        assert content(found) == expected[selection].tobytes(), selection
    out = np.full(values.nbytes, 7, np.uint8).view(values.dtype).reshape(SHAPE)
    assert hdf5.read_tensor(dataset, out=out) is out
    assert content(out) == expected.tobytes()
    hdf5.read_tensor(dataset, np.s_[::-1], out.view(np.recarray)[::-1])
    assert content(out) == expected.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@for_each("name", STRUCTS)
def test_gaps_of_structs(file: h5py.File, name: str, layout: str) -> None:
    """Gaps have the file's bytes where items are read unconverted, and zeros where converted."""
    dataset = create(file, f"{name}, {layout}", STRUCTS[name], layout)
    check(dataset)  # fill values
    raw = np.arange(COUNT * dataset.id.get_type().get_size()).astype(np.uint8)
    if "NumPy has not" in name or "converted" in name:
        raw[:] = 0  # HDF5 converts no NaN of bfloat16
    dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=dataset.id.get_type())
    check(dataset)


@for_each("layout, kind", list(itertools.product(LAYOUTS, [F32, I32, *STRUCTS.values()])))
def test_chunks_that_were_never_written(file: h5py.File, layout: str, kind: Any) -> None:
    dataset = create(file, f"{layout} {id(kind)}", kind, layout, never=True)
    for selection in SELECTIONS:
        assert not any(content(hdf5.read_tensor(dataset, selection)))


def test_virtual_datasets_of_what_was_never_written(file: h5py.File) -> None:
    source = create(file, "source", F32, "contiguous", never=True)
    layout = h5py.VirtualLayout(SHAPE, source.dtype)
    layout[...] = h5py.VirtualSource(source)
    dataset = file.create_virtual_dataset("x", layout)
    assert not hdf5.read_tensor(dataset).any()


def test_virtual_datasets_of_other_structs(file: h5py.File) -> None:
    """HDF5 converts them, though they have the bytes of a NumPy type."""
    source = create(file, "source", compound(8, a=(0, F32), b=(4, I32)), "contiguous")
    source[...] = np.ones(SHAPE, source.dtype)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    space = h5py.h5s.create_simple(SHAPE)
    properties.set_virtual(space, b".", b"source", space)
    kind = STRUCTS["padded"]
    check(h5py.Dataset(h5d.create(file.id, b"x", kind, space, dcpl=properties)))
