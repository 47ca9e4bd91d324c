"""What every kind of model store can do: being read, and being written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import zarr

from bf16codecs._buffers import Bytes
from bf16codecs._chunks.array import ArrayReader
from bf16codecs._chunks.grid import ArrayPlan, Piece
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import Header, parse_header
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.plan import array_form

__all__ = ["StoreReader", "StoreWriter", "read_bytes", "read_headers", "stored_arrays"]


class StoreReader(ABC):
    """A model that was opened, whatever holds it; several threads may read.

    Parameters
    ----------
    where
        The store's path or address, for messages.
    info
        What it says of itself.
    """

    def __init__(self, where: str, info: StoreInfo) -> None:
        self.where, self.info = where, info
        self._labels = {path: f"tensor {name!r}" for name, path in info.paths.items()}
        self._labels |= {file.path: f"header of {file.name!r}" for file in info.files}
        self._arrays: dict[str, ArrayReader] = {}

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
            self._arrays.setdefault(path, self._open(path, self.label(path)))
        return self._arrays[path]

    def label(self, path: str) -> str:
        """Return the store and what an array of it holds, for messages."""
        return f"{self.where}: {self._labels.get(path, path)}"

    def plan(self, path: str) -> ArrayPlan:
        """Describe an array in pieces that are each one run of its bytes."""
        return self.array(path).plan(path)

    def read(self, piece: Piece, chunk: Bytes) -> None:
        """Read a piece of `plan`; `chunk` has room for a whole one, padding included."""
        self.array(piece.array.path).read_piece(piece, chunk)

    def tensor_dtype(self, name: str) -> str | None:
        """Return the dtype that safetensors knows a tensor by, if its array tells."""
        dtype = self.attributes(self.info.paths[name]).get("dtype")
        return dtype if isinstance(dtype, str) else None

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
    content = bytearray()
    for piece in plan.pieces():
        chunk = np.empty(plan.chunk_nbytes, np.uint8)
        reader.read(piece, chunk)
        content += chunk[: piece.nbytes].data
    return bytes(content)


def read_headers(reader: StoreReader) -> list[Header]:
    """Read and check the headers of a store's files.

    Raises
    ------
    SafetensorsError
        If a header breaks the format's rules, or does not fit the size of its file.
    """
    headers = []
    for file in reader.info.files:
        raw = read_bytes(reader, file.path)
        where = f"{reader.where}: {file.name}"
        headers.append(parse_header(raw, file.size - 8 - len(raw), where))
    return headers


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
            if (plan.dtype, plan.shape) != array_form(tensor):
                raise StoreError(
                    f"{reader.where}: {path} is {plan.dtype} of shape {plan.shape!r:.80},"
                    f" tensor {tensor.name!r} is {tensor.dtype} of shape {tensor.shape!r:.80}"
                )
            arrays.append(replace(plan, file=number, offset=header.data_start + tensor.start))
    return arrays
