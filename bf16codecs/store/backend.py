"""What every kind of model store can do: being read, and being written."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import zarr

from bf16codecs._buffers import Bytes
from bf16codecs._chunks.array import ArrayReader
from bf16codecs._chunks.grid import ArrayPlan, Piece
from bf16codecs._dtypes import ARRAY_DTYPES, DTYPE_BITS
from bf16codecs._limits import Limits, check_metadata, check_parsed, is_addressable
from bf16codecs._messages import named_errors
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import Header, TensorInfo, parse_header
from bf16codecs.store.layout import StoredFile, StoreInfo
from bf16codecs.store.plan import array_form

__all__ = [
    "StoreReader",
    "StoreWriter",
    "StoredTensor",
    "read_bytes",
    "read_headers",
    "stored_arrays",
]


_ARRAY_DTYPES = {"uint8", *ARRAY_DTYPES.values()}


class StoredTensor(NamedTuple):
    """A tensor's array, and the dtype that safetensors knows it by, if the array tells."""

    array: ArrayReader
    dtype: str | None


class StoreReader(ABC):
    """A model that was opened, whatever holds it; several threads may read.

    Parameters
    ----------
    where
        The store's path or address, for messages.
    info
        What it says of itself.
    limits
        What reading it may take.
    """

    #: Whether reading the safetensors headers costs little: no request to a server.
    has_near_headers = True

    def __init__(self, where: str, info: StoreInfo, limits: Limits) -> None:
        self.where, self.info, self._limits = where, info, limits
        self._labels = {path: f"tensor {name!r:.300}" for name, path in info.paths.items()}
        self._labels |= {file.path: f"header of {file.name!r:.300}" for file in info.files}
        self._arrays: dict[str, ArrayReader] = {}
        self._tensors: dict[str, StoredTensor] = {}
        self._checked: set[str] = set()
        self._largest_allowed = 0

    @property
    def names(self) -> list[str]:
        """The tensors, in the order of their data."""
        return list(self.info.paths)

    def array(self, path: str) -> ArrayReader:
        """Return an array of the store.

        Raises
        ------
        StoreError
            If it is missing, or its metadata make no sense.
        """
        # Without a lock: opening may ask a server, or wait for HDF5's lock, and twice does no harm.
        if path not in self._arrays:
            array = self._open(path, self.label(path))
            with named_errors(self.label(path)):
                _check_array(array)
            self.check_size(array.decoded_nbytes, f"a chunk of {self._labels.get(path, path)}")
            self._arrays.setdefault(path, array)
        return self._arrays[path]

    def tensor(self, name: str) -> StoredTensor:
        """Return the array of a tensor, which its attributes do not contradict.

        Raises
        ------
        StoreError
            If it is missing, or is not what its attributes say.
        """
        if name not in self._tensors:
            path = self.info.paths[name]
            array, attributes = self.array(path), self.attributes(path)
            with named_errors(self.label(path)):
                _check_attributes(name, array, attributes)
            dtype = attributes.get("dtype")
            if dtype is None and self._needs_header(path):
                dtype = self._header_tensors[name].dtype
            self._tensors[name] = StoredTensor(array, dtype)
        return self._tensors[name]

    def check_header(self, name: str) -> None:
        """Refuse a tensor that `tensor` gave, if it is not what the safetensors header says.

        Raises
        ------
        StoreError
            If it is not.
        """
        path, stored = self.info.paths[name], self._tensors[name]
        if name in self._checked or not self._needs_header(path):
            return
        tensor = self._header_tensors[name]
        with named_errors(self.label(path)):
            if stored.dtype != tensor.dtype:
                raise StoreError(f"its attributes say {stored.dtype}, its header {tensor.dtype}")
            _check_form(path, stored.array, tensor)
        self._checked.add(name)

    def _needs_header(self, path: str) -> bool:
        """Tell whether to compare an array with the header."""
        return self.has_near_headers

    @cached_property
    def headers(self) -> list[Header]:
        """The headers of the store's files, read and checked.

        Raises
        ------
        SafetensorsError
            If a header breaks the format's rules, or does not fit the size of its file.
        StoreError
            If a header is missing, or has other tensors than the store lists.
        """
        headers = [self._header(file) for file in self.info.files]
        names = {tensor.name for header in headers for tensor in header.tensors}
        for name in names - self.info.paths.keys():
            raise StoreError(f"{self.where}: no array for tensor {name!r:.300}")
        for name in self.info.paths.keys() - names:
            raise StoreError(f"{self.where}: no safetensors header has tensor {name!r:.300}")
        return headers

    def _header(self, file: StoredFile) -> Header:
        raw = read_bytes(self, file.path)
        return parse_header(raw, file.size - 8 - len(raw), f"{self.where}: {file.name}")

    @cached_property
    def _header_tensors(self) -> dict[str, TensorInfo]:
        return {tensor.name: tensor for header in self.headers for tensor in header.tensors}

    def check_size(self, nbytes: int, what: str, work: int = 0) -> None:
        """Refuse data that are larger than the caller allows, or than the store makes credible.

        So is more `work`, the bytes of the chunks that are decoded for them. What the caller
        allows does not bound it: a column may be small, and in every chunk.
        """
        if self._limits.max_bytes is None and work > nbytes:
            nbytes, what = work, f"the chunks of {what}"
        if nbytes > self._largest_allowed:  # asked for once: to find the size may take a request
            self._limits.check(nbytes, self._size_of_at_least, f"{self.where}: {what}")
            self._largest_allowed = nbytes

    def _size_of_at_least(self, enough: int) -> int:
        """Return the store's size, or less if that is enough and costs less to find out."""
        return self.total_nbytes()

    def label(self, path: str) -> str:
        """Return the store and what an array of it holds, for messages."""
        return f"{self.where}: {self._labels.get(path, path[:300])}"

    def plan(self, path: str) -> ArrayPlan:
        """Describe an array in pieces that are each one run of its bytes."""
        return self.array(path).plan(path)

    def read(self, piece: Piece, chunk: Bytes) -> None:
        """Read a piece of `plan`; `chunk` has room for a whole one, padding included."""
        self.array(piece.array.path).read_piece(piece, chunk)

    @abstractmethod
    def _open(self, path: str, label: str) -> ArrayReader:
        """Open an array."""

    @abstractmethod
    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of an array under `bf16codecs`."""

    @abstractmethod
    def zarr_array(self, name: str) -> zarr.Array:
        """Open a tensor's array with zarr."""

    @abstractmethod
    def stored_nbytes(self, path: str) -> int:
        """Return the bytes that an array takes in the store."""

    @abstractmethod
    def total_nbytes(self) -> int:
        """Return the size of the whole store."""

    @abstractmethod
    def codec_name(self, path: str) -> str:
        """Return the name of an array's codec, as `bf16codecs info` shows it."""

    def codec_level(self, path: str) -> str:
        """Return the level of an array's arithmetic codec; of other codecs ``""``."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Release what is open."""


class StoreWriter(Protocol):
    """A store being written; `write` may be called by several threads."""

    def create(self, array: ArrayPlan) -> None:
        """Prepare an array."""

    def write(self, piece: Piece, chunk: Bytes) -> int:
        """Encode and write a whole chunk, and return its stored size."""

    def finish(self, info: StoreInfo) -> int:
        """Write all metadata, close the store, and return the metadata's size."""

    def close(self) -> None:
        """Release what is open; `finish` does so too."""


def _check_array(array: ArrayReader) -> None:
    """Refuse what no tensor, header or index is stored as."""
    if array.dtype.name not in _ARRAY_DTYPES:
        raise StoreError(f"{array.dtype!r:.80} is not the data type of a tensor")
    if not is_addressable(array.shape, 8 * array.dtype.itemsize):
        raise StoreError(f"shape {array.shape!r:.80} is larger than any array")


def _check_attributes(name: str, array: ArrayReader, attributes: Mapping[str, Any]) -> None:
    """Compare an array with what its own attributes say of its tensor."""
    if attributes.get("tensor", name) != name:
        raise StoreError(f"the array is that of {attributes['tensor']!r:.80}")
    dtype, shape = attributes.get("dtype"), attributes.get("shape", list(array.shape))
    if dtype is None:
        return
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise StoreError(f"its attributes have {dtype!r:.80} as dtype")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise StoreError(f"its attributes have {shape!r:.80} as shape")
    nbytes = math.prod(shape) * DTYPE_BITS[dtype] // 8
    _check_form("the array", array, TensorInfo(name, dtype, tuple(shape), 0, nbytes))


def _check_form(path: str, array: ArrayReader | ArrayPlan, tensor: TensorInfo) -> None:
    dtype = np.dtype(array.dtype).name
    if (dtype, array.shape) != array_form(tensor):
        raise StoreError(
            f"{path} is {dtype} of shape {array.shape!r:.80},"
            f" tensor {tensor.name!r} is {tensor.dtype} of shape {tensor.shape!r:.80}"
        )


def read_bytes(reader: StoreReader, path: str) -> bytes:
    """Read an array of bytes: a header, or the index.

    Raises
    ------
    StoreError
        If the array is missing, or is of anything else than bytes.
    """
    plan = reader.plan(path)
    if plan.dtype != "uint8" or len(plan.shape) != 1:
        raise StoreError(f"{reader.where}: {path} is not an array of bytes")
    largest = max(plan.nbytes, plan.chunk_nbytes)
    stored = partial(reader.stored_nbytes, path)
    with named_errors(reader.label(path)):
        check_metadata(largest, stored)
    content = bytearray()
    for piece in plan.pieces():
        chunk = np.empty(plan.chunk_nbytes, np.uint8)
        reader.read(piece, chunk)
        content += chunk[: piece.nbytes].data
    with named_errors(reader.label(path)):
        check_parsed(content, stored)
    return bytes(content)


def read_headers(reader: StoreReader) -> list[Header]:
    """Return the checked headers of a store's files: see `StoreReader.headers`."""
    return reader.headers


def stored_arrays(reader: StoreReader, headers: Sequence[Header]) -> list[ArrayPlan]:
    """Return the arrays of all tensors, in the order in which their bytes lie in the files.

    Raises
    ------
    StoreError
        If an array is missing, or is not what its tensor is stored as.
    """
    arrays = []
    for number, header in enumerate(headers):
        for tensor in header.tensors:
            path = reader.info.paths.get(tensor.name)
            if path is None:
                raise StoreError(f"{reader.where}: no array for tensor {tensor.name!r}")
            plan = reader.plan(path)
            with named_errors(reader.where):
                _check_form(path, plan, tensor)
            arrays.append(replace(plan, file=number, offset=header.data_start + tensor.start))
    return arrays
