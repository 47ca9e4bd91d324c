"""Replaces objects of an HDF5 file: by links, datasets of other forms, other attributes."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bf16codecs.store.layout import ATTRIBUTES_KEY
from hdf5_types import TYPES, WITHOUT_NUMBERS, set_chunk_options
from store_fuzz_mutations import Family, Mutant
from store_fuzz_truth import Seed

#: Changes an object, given the file and the object's path.
Change = Callable[[h5py.File, str], object]


def _replaced(make: Callable[[h5py.File, str], object]) -> Change:
    """Replace a dataset by another object, which keeps its attributes if it can have any."""

    def change(file: h5py.File, path: str) -> None:
        attributes = dict(file[path].attrs)
        made = make(file, path)
        del file[path]
        file[path] = made
        if not isinstance(made, (h5py.SoftLink, h5py.ExternalLink)):
            file[path].attrs.update(attributes)

    return change


def _linked(other: str) -> Change:
    def change(file: h5py.File, path: str) -> None:
        found = file[other]
        del file[path]
        file[path] = found

    return change


def _content(file: h5py.File, path: str) -> Any:
    """Return a dataset's items as unsigned integers, which h5py supports."""
    dataset = file[path]
    if not isinstance(dataset, h5py.Dataset):
        return np.arange(12, dtype="u1").reshape(3, 4)
    bits = np.empty(dataset.shape, f"u{dataset.dtype.itemsize}")
    if bits.size:
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, bits, mtype=dataset.id.get_type())
    return bits


def _stored(new: Callable[[Any], Any] = lambda bits: bits, **options: Any) -> Change:
    """Store a dataset again: of the same type, with the same or another content."""

    def make(file: h5py.File, path: str) -> Any:
        bits = new(_content(file, path))
        kind = file[path].id.get_type() if isinstance(file[path], h5py.Dataset) else None
        given = dict(options)
        if given.pop("halves", False):
            given["chunks"] = tuple(max(1, n // 2) for n in bits.shape)
        if not bits.ndim or not bits.size:
            given = {}
        made = file.create_dataset(None, bits.shape, kind or bits.dtype, **given)
        if bits.size:
            made.id.write(h5py.h5s.ALL, h5py.h5s.ALL, bits, mtype=made.id.get_type())
        return made

    return _replaced(make)


def _of_type(dtype: Any) -> Change:
    return _replaced(lambda file, path: file.create_dataset(None, shape=(24, 16), dtype=dtype))


def _of_shape(shape: Any, **options: Any) -> Change:
    def make(file: h5py.File, path: str) -> Any:
        item = file[path]
        kind = item.id.get_type() if isinstance(item, h5py.Dataset) else np.dtype("u1")
        return file.create_dataset(None, shape=shape, dtype=kind, **options)

    return _replaced(make)


def _of_kind(kind: Any, has_data: bool) -> Change:
    """Make a dataset of an HDF5 type, with any bytes in it if these are no pointers."""

    def make(file: h5py.File, path: str) -> Any:
        made = h5py.h5d.create(file.id, None, kind, h5py.h5s.create_simple((24, 16)))
        if has_data:
            raw = np.resize(np.arange(251, dtype="u1"), 24 * 16 * kind.get_size())
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=kind)
        return h5py.Dataset(made)

    return _replaced(make)


def _without_filtered_edges(file: h5py.File, path: str) -> Any:
    """Store a dataset in chunks; the filters leave out partial chunks at the edges."""
    bits, set_options = _content(file, path), set_chunk_options()
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(tuple(max(1, n // 2 + 1) for n in bits.shape))
    properties.set_deflate(1)
    set_options(properties.id, 2)
    kind = file[path].id.get_type()
    space = h5py.h5s.create_simple(bits.shape)
    made = h5py.h5d.create(file.id, None, kind, space, dcpl=properties)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, bits, mtype=kind)
    return h5py.Dataset(made)


def _external(file: h5py.File, path: str) -> Any:
    """Make a dataset whose data lie in another file."""
    outside = Path(tempfile.gettempdir(), "secret")
    bits = _content(file, path)
    outside.write_bytes(bits.tobytes())
    where = [(str(outside), 0, bits.nbytes)] if bits.nbytes else None
    kind = file[path].id.get_type() if isinstance(file[path], h5py.Dataset) else bits.dtype
    return file.create_dataset(None, shape=bits.shape, dtype=kind, external=where)


def _virtual(file: h5py.File, path: str) -> Any:
    shape = _content(file, path).shape or (1,)
    layout = h5py.VirtualLayout(shape=shape, dtype="u1")
    if 0 not in shape:
        layout[...] = h5py.VirtualSource("secret.h5", "x", shape=shape)
    return file.create_virtual_dataset(None, layout)


def _attribute(value: Any) -> Change:
    def change(file: h5py.File, path: str) -> None:
        file[path].attrs[ATTRIBUTES_KEY] = value

    return change


_CHANGES: dict[str, Change] = {
    "removed": lambda file, path: file.__delitem__(path) if path != "/" else None,
    "soft link to itself": _replaced(lambda file, path: h5py.SoftLink(path)),
    "soft link to nowhere": _replaced(lambda file, path: h5py.SoftLink("/nowhere")),
    "soft link to another": _replaced(lambda file, path: h5py.SoftLink("/w/a")),
    "link to another file": _replaced(lambda file, path: h5py.ExternalLink("secret.h5", "/w/a")),
    "link to a device": _replaced(lambda file, path: h5py.ExternalLink("/dev/zero", "/w/a")),
    "another's dataset": _linked("/w/b"),
    "the root": _linked("/"),
    "group": _replaced(lambda file, path: file.create_group(None)),
    "type": _replaced(lambda file, path: np.dtype("u1")),
    "contiguous": _stored(),
    "in halves": _stored(halves=True),
    "gzip": _stored(halves=True, compression="gzip"),
    "lzf": _stored(halves=True, compression="lzf"),
    "shuffled": _stored(halves=True, shuffle=True, compression="gzip"),
    "fletcher32": _stored(halves=True, fletcher32=True),
    "edges that are not filtered": _replaced(_without_filtered_edges),
    "resizable": _stored(chunks=True, maxshape=None),
    "one row more": _stored(lambda bits: np.r_[bits, bits[:1]] if bits.ndim else bits[None]),
    "one row less": _stored(lambda bits: bits[:-1] if bits.ndim else bits),
    "transposed": _stored(lambda bits: bits.T.copy() if bits.ndim > 1 else bits[None]),
    "flat": _stored(lambda bits: bits.reshape(-1)),
    "one item": _stored(lambda bits: np.zeros((), bits.dtype)),
    "no items": _stored(lambda bits: bits[:0] if bits.ndim else np.zeros(0, bits.dtype)),
    "null": _replaced(lambda file, path: file.create_dataset(None, data=h5py.Empty("f4"))),
    "nothing written": _of_shape((24, 16)),
    "no chunk written": _of_shape((24, 16), chunks=(4, 16)),
    "huge": _of_shape((1 << 40,), chunks=(1 << 20,)),
    "huge chunks": _of_shape((1 << 40,), chunks=((1 << 28) - 1,)),
    "many chunks": _of_shape((1 << 24,), chunks=(1,)),
    "huge and square": _of_shape((1 << 31, 1 << 31), chunks=(1, 16)),
    "huge and contiguous": _of_shape((1 << 40,)),
    "external": _replaced(_external),
    "virtual": _replaced(_virtual),
    **{
        f"of {name}": _of_type(dtype)
        for name, dtype in {
            "big-endian": ">u2",
            "text": h5py.string_dtype(),
            "fixed text": "S7",
            "sequences": h5py.vlen_dtype("u1"),
            "pairs": [("a", "u1"), ("b", "f4")],
            "names": h5py.enum_dtype({"a": 1}),
            "booleans": "?",
            "arrays": ("u1", (2,)),
            "references": h5py.ref_dtype,
            "regions": h5py.regionref_dtype,
            "opaque bytes": "V5",
            "half": "f2",
            "complex": "c8",
            "long double": "g",
        }.items()
    },
    **{
        f"of type {name}": _of_kind(kind, name in TYPES)
        for name, kind in {**TYPES, **WITHOUT_NUMBERS}.items()
    },
    **{
        f"attribute {name}": _attribute(value)
        for name, value in {
            "empty": h5py.Empty("f4"),
            "number": 5,
            "bytes": b"{}",
            "bytes that are no text": np.bytes_(b"\xff\xfe"),
            "array": np.arange(3),
            "texts": ["{}", "{}"],
            "fixed text": np.bytes_(b'{"layout": 1}'),
            "null": "null",
            "list": "[]",
            "text": '"x"',
            "deep": "[" * 50_000,
        }.items()
    },
}


_OTHER_DATA = ("one row more", "one row less", "transposed", "one item", "no items")


class Objects(Family):
    """Every object of an HDF5 file."""

    def __init__(self, seed: Seed) -> None:
        self._raw, self._paths, self._names = seed.files[""], ["/"], seed.names
        with h5py.File(io.BytesIO(self._raw)) as file:
            file.visit(self._paths.append)
        super().__init__(len(self._paths), list(_CHANGES))

    def make(self, place: int, operation: str) -> Mutant:
        """Change an object; a change that HDF5 refuses has no effect."""
        buffer, path = io.BytesIO(self._raw), self._paths[place]
        try:
            with h5py.File(buffer, "r+") as file:
                _CHANGES[operation](file, path)
        except (ValueError, TypeError, RuntimeError, OSError, KeyError, AttributeError):
            buffer = io.BytesIO(self._raw)
        # In the end, data of the right form may be any.
        unknowable = self._names.get(path) if operation in _OTHER_DATA else None
        return Mutant(f"{path}: {operation}", {"": buffer.getvalue()}, unknowable or frozenset())
