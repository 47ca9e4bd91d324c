"""A model store in HDF5, read lazily: chunks are read from the file without libhdf5.

libhdf5 tells once where a tensor's chunks lie. After that nobody waits for its lock, and of a chunk
only the blocks that a selection touches are read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import zarr
from numpy.typing import NDArray

from bf16codecs._chunks.array import ArrayReader, ChunkedArray
from bf16codecs._chunks.formats import FrameForm, PlainForm, StoredForm
from bf16codecs._chunks.grid import ArrayPlan
from bf16codecs._chunks.sources import Blobs, FileBlobs, Range
from bf16codecs.errors import StoreError
from bf16codecs.store.hdf5_reader import H5Reader
from bf16codecs.store.layout import read_headers

__all__ = ["H5Model"]

Bytes = NDArray[np.uint8]


class H5Model:
    """The arrays of a model store in HDF5.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        self._reader = H5Reader(path)
        self._lock = threading.Lock()
        self._places = _Places()
        self._blobs = FileBlobs(self._places)
        self._frames = FrameForm()
        self.names = list(self._reader.info.paths)

    def array(self, name: str) -> ArrayReader:
        """Return the array of a tensor."""
        path = self._reader.info.paths[name]

        key = partial(_key, path)
        with self._lock:
            plan = self._reader.plan(path)
            form = self._direct_form(plan) or _LibraryForm(self._reader, plan)
        label = f"{self.where}: tensor {name!r}"
        dtype = np.dtype(plan.dtype)
        return ChunkedArray(label, plan.shape, dtype, plan.chunks, form, self._blobs, key)

    def _direct_form(self, plan: ArrayPlan) -> StoredForm | None:
        """Find an array's chunks in the file; None if libhdf5 has to decode them."""
        found = self._reader.places(plan.path)
        if found is None:
            return None
        plain = set()
        for index, place in found.items():
            key = _key(plan.path, index)
            self._places[key] = self._path, place.offset, place.size
            if place.is_plain:
                plain.add(key)
        return _MixedForm(self._frames, plain)

    def tensor_dtype(self, name: str) -> str | None:
        """Return the dtype that safetensors knows the tensor by, if the array tells."""
        dtype = self._reader.attributes(self._reader.info.paths[name]).get("dtype")
        return dtype if isinstance(dtype, str) else None

    def headers(self) -> list[tuple[bytes, int]]:
        """Return each file's header, and the size of the data after it."""
        headers = read_headers(self._reader)
        return [(h.raw, h.file_size - h.data_start) for h in headers]

    def zarr_array(self, name: str) -> zarr.Array:
        """Refuse: there is none."""
        raise ValueError(f"{self.where}: HDF5 files have no Zarr arrays")

    def close(self) -> None:
        """Release what is open."""
        self._blobs.close()
        self._reader.close()


def _key(path: str, index: tuple[int, ...]) -> str:
    return f"{path} {index}"


class _Places(dict[str, tuple[Path, int, int]]):
    """Path, offset and size of chunks by key."""

    def __missing__(self, key: str) -> NoReturn:
        raise StoreError("it is missing")


class _MixedForm:
    """Frames, but for some chunks that are stored as they are."""

    def __init__(self, frames: FrameForm, plain: set[str]) -> None:
        self._frames, self._plain = frames, plain

    def read(
        self, blobs: Blobs, key: str, nbytes: int, spans: Sequence[Range], out: Bytes, base: int
    ) -> None:
        """Read parts of a chunk: see `StoredForm`."""
        form: StoredForm = PlainForm() if key in self._plain else self._frames
        form.read(blobs, key, nbytes, spans, out, base)


class _LibraryForm:
    """Whatever libhdf5 can read, in pieces of whole rows."""

    def __init__(self, reader: H5Reader, plan: ArrayPlan) -> None:
        self._reader = reader
        self._pieces = {_key(plan.path, piece.index): piece for piece in plan.pieces()}

    def read(
        self, blobs: Blobs, key: str, nbytes: int, spans: Sequence[Range], out: Bytes, base: int
    ) -> None:
        """Read parts of a chunk: see `StoredForm`."""
        chunk = np.empty(nbytes, np.uint8)
        self._reader.read(self._pieces[key], chunk)
        out[:] = chunk[base : base + out.size]
