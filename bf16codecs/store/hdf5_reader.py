"""Reads the model store from HDF5."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bf16codecs._chunks.grid import ArrayPlan, Piece, chunk_shape
from bf16codecs.errors import CodecError, StoreError
from bf16codecs.hdf5.coders import ThreadMemory
from bf16codecs.hdf5.dataset import piece_region, read_region
from bf16codecs.hdf5.direct import ChunkedDataset, Place, codec_name
from bf16codecs.hdf5.types import array_dtype
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo

__all__ = ["H5Reader", "named_errors", "open_dataset", "open_file", "read_info"]

# What libhdf5 reads and decodes itself is read in slabs of at most this size, or one row.
_SLAB_BYTES = 1 << 24


@dataclass
class _Source:
    dataset: Any
    #: None if libhdf5 has to read.
    chunks: ChunkedDataset | None


class H5Reader:
    """Reads a model store.

    Parameters
    ----------
    store
        Path of an HDF5 file.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self.where = os.fspath(store)
        self._stored = ThreadMemory()
        self._sources: dict[str, _Source] = {}
        self._file = open_file(self.where)
        try:
            self.info = read_info(self._file, self.where)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release what is open."""
        self._sources.clear()
        self._file.close()

    def plan(self, path: str) -> ArrayPlan:
        """Describe an array, in contiguous chunks."""
        source = self._open(path)
        with named_errors(f"{self.where}: {path}"):
            dtype, shape = array_dtype(source.dataset.get_type()), tuple(source.dataset.shape)
        if source.chunks is not None:
            plan = ArrayPlan(path, dtype.name, shape, source.chunks.chunks)
            if plan.is_contiguous:
                return plan
            source.chunks = None
        return ArrayPlan(path, dtype.name, shape, chunk_shape(shape, dtype.itemsize, _SLAB_BYTES))

    def _open(self, path: str) -> _Source:
        if path not in self._sources:
            dataset = open_dataset(self._file, path, self.where)
            chunks = None
            if ChunkedDataset.supports(dataset):
                chunks = ChunkedDataset(dataset)
            self._sources[path] = _Source(dataset, chunks)
        return self._sources[path]

    def read(self, piece: Piece, chunk: NDArray[np.uint8]) -> None:
        """Decode a whole chunk of a plan that `plan` returned."""
        source = self._sources[piece.array.path]
        with named_errors(f"{self.where}: {piece.array.path}"):
            if source.chunks is None:
                region, shape = piece_region(piece)
                values = chunk[: piece.nbytes].view(piece.array.dtype).reshape(shape)
                read_region(source.dataset, region, values)
                return
            stored = source.chunks.fetch(piece.index, self._stored.memory)
            if stored is None:
                raise StoreError(f"chunk {piece.index} is missing, or filtered by half")
            source.chunks.decode(stored, chunk)

    def places(self, path: str) -> dict[tuple[int, ...], Place] | None:
        """Tell where the chunks of `plan` lie in the file; None if only libhdf5 can read them."""
        chunks = self._sources[path].chunks
        # Behind a user block, offsets count from its end in some versions of libhdf5.
        return None if chunks is None or self._file.userblock_size else chunks.places()

    def attributes(self, path: str) -> dict[str, Any]:
        """Return what an array's attributes say of its tensor."""
        with named_errors(f"{self.where}: {path}"):
            text = h5py.Dataset(self._open(path).dataset).attrs.get(ATTRIBUTES_KEY, "{}")
            attributes = json.loads(text)
        return attributes if isinstance(attributes, dict) else {}

    def stored_nbytes(self, path: str) -> int:
        """Return the size that an array's data take in the file."""
        return int(self._open(path).dataset.get_storage_size())

    def total_nbytes(self) -> int:
        """Return the size of the file."""
        return os.stat(self.where).st_size

    def codec_name(self, path: str) -> str:
        """Name the codec of an array, for people."""
        return codec_name(self._open(path).dataset)


def open_file(where: str) -> h5py.File:
    """Open a file for reading, with one-line errors."""
    os.stat(where)  # raises Python's own error
    with named_errors(where):
        # A cache of decoded chunks, of each dataset its own, would be of no use.
        return h5py.File(where, "r", rdcc_nbytes=0)


def read_info(file: h5py.File, where: str) -> StoreInfo:
    """Read and check the attributes of a store."""
    with named_errors(where):
        text = file.attrs.get(ATTRIBUTES_KEY, "null")
        try:
            attributes = json.loads(text)
        except (TypeError, ValueError) as e:
            raise StoreError(f"damaged store attributes: {e}") from None
    return StoreInfo.from_attributes({ATTRIBUTES_KEY: attributes}, where)


def open_dataset(file: h5py.File, path: str, where: str) -> Any:
    """Open a dataset whose data are in this file, in the order of bytes that NumPy has.

    Returns
    -------
    h5py.h5d.DatasetID
    """
    with named_errors(f"{where}: array {path!r}"):
        found = file.get(path)
        if not isinstance(found, h5py.Dataset):
            raise StoreError("is missing" if found is None else "is not an array")
        dataset = found.id
        properties = dataset.get_create_plist()
        # Links and storage may lead to any file that this process can read.
        foreign = h5py.h5o.get_info(dataset).fileno != h5py.h5o.get_info(file.id).fileno
        if foreign or found.is_virtual or properties.get_external_count():
            raise StoreError("is stored in another file")
        if array_dtype(dataset.get_type()).byteorder == ">":
            raise StoreError("is big-endian")
    return dataset


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """Say in one line what could not be read, and why."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as e:
        kind = type(e) if isinstance(e, (CodecError, StoreError)) else StoreError
        raise kind(f"{what}: {' '.join(str(e).split())}") from e
