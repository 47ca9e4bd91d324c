"""A model store in Zarr, opened with one request and without zarr's own opening of arrays.

zarr-python takes 0.1 ms to make an array of its metadata, even from consolidated ones; a model
has hundreds. So what is needed here is taken from the documents, and zarr opens an array when
somebody asks for one, or when its chunks are in a form that is not read directly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store

from bf16codecs._chunks.array import ArrayReader, ChunkedArray, Job, named_errors
from bf16codecs._chunks.formats import FrameForm, PlainForm, StoredForm, ZstdForm
from bf16codecs._chunks.grid import chunk_shape
from bf16codecs._chunks.indexing import Axis
from bf16codecs._chunks.sources import Blobs
from bf16codecs.codecs import CODECS
from bf16codecs.errors import StoreError
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.zarr_metadata import OtherFormError, parse_array, read_json, read_root
from bf16codecs.zarr.strict import StrictStore

__all__ = ["ZarrModel"]

_FRAME_CODECS = [f"bf16codecs.{name}" for name in CODECS]
# Arrays that zarr reads are loaded in pieces of at most this size, or one row.
_PIECE_BYTES = 1 << 25


class ZarrModel:
    """The arrays of a model store in Zarr.

    Parameters
    ----------
    where
        Path or address, for messages.
    blobs
        The store's keys.
    make_store
        Opens the same keys as a store of zarr's.
    """

    def __init__(self, where: str, blobs: Blobs, make_store: Callable[[], Store]) -> None:
        self.where = where
        self._blobs = blobs
        self._make_store = make_store
        self._store: StrictStore | None = None
        self._lock = threading.Lock()
        self._form = FrameForm()
        self._zarr_format, attributes, self._documents = read_root(where, blobs)
        self.info = StoreInfo.from_attributes(attributes, where)
        self.names = list(self.info.paths)

    def array(self, name: str) -> ArrayReader:
        """Return the array of a tensor."""
        return self._open(self.info.paths[name], f"tensor {name!r}")

    def tensor_dtype(self, name: str) -> str | None:
        """Return the dtype that safetensors knows the tensor by, if the array tells."""
        attributes = self._document(self.info.paths[name]).get("attributes") or {}
        ours = attributes.get("bf16codecs")
        dtype = ours.get("dtype") if isinstance(ours, Mapping) else None
        return dtype if isinstance(dtype, str) else None

    def headers(self) -> list[tuple[bytes, int]]:
        """Return each file's header, and the size of the data after it."""
        headers = []
        for file in self.info.files:
            array = self._open(file.path, f"header of {file.name!r}")
            if array.dtype != np.uint8 or len(array.shape) != 1:
                raise StoreError(f"{self.where}: {file.path} is not an array of bytes")
            raw = np.empty(array.shape, np.uint8)
            for job in array.box_jobs([range(raw.size)], raw):
                job()
            headers.append((raw.tobytes(), file.size - 8 - raw.size))
        return headers

    def zarr_array(self, name: str) -> zarr.Array:
        """Open a tensor's array with zarr."""
        return self._zarr_array(self.info.paths[name], f"tensor {name!r}")

    def close(self) -> None:
        """Release what is open."""
        self._blobs.close()
        if self._store is not None:
            self._store.close()

    def _zarr_array(self, path: str, what: str) -> zarr.Array:
        with self._lock:
            if self._store is None:
                self._store = StrictStore(self._make_store())
        with named_errors(f"{self.where}: {what}"):
            return zarr.open_array(
                self._store,
                path=path,
                mode="r",
                zarr_format=self._zarr_format,  # type: ignore[arg-type]
            )

    def _open(self, path: str, what: str) -> ArrayReader:
        document = self._document(path)
        label = f"{self.where}: {what}"
        try:
            with named_errors(label, passing=OtherFormError):
                parsed = parse_array(self._zarr_format, document)
            form = self._form_of(parsed.codecs)
        except OtherFormError:
            return _ArrayOfZarr(label, self._zarr_array(path, what))
        return ChunkedArray(
            label,
            parsed.shape,
            parsed.dtype,
            parsed.chunks,
            form,
            self._blobs,
            lambda index: f"{path}/{parsed.key(index)}",
        )

    def _form_of(self, codecs: list[str]) -> StoredForm:
        if codecs == ["bf16codecs.blocks"]:
            return self._form
        if codecs and codecs[0] == "bytes":
            if len(codecs) == 1:
                return PlainForm()
            if len(codecs) == 2 and codecs[1] == "zstd":
                return ZstdForm()
            if len(codecs) == 2 and codecs[1] in _FRAME_CODECS:
                return self._form
        raise OtherFormError

    def _document(self, path: str) -> dict[str, Any]:
        """Return the metadata of an array, in format 2 with its attributes."""
        # Read keys are made of the path, which must not lead out of the store.
        if any(part in ("", ".", "..") or set(part) & {"\\", ":"} for part in path.split("/")):
            raise StoreError(f"{self.where}: {path!r} is not a path of an array")
        if path not in self._documents:
            self._documents[path] = self._fetch(path)
        document = self._documents[path]
        if document is None:
            raise StoreError(f"{self.where}: array {path!r} is missing")
        return document

    def _fetch(self, path: str) -> dict[str, Any] | None:
        if self._zarr_format == 3:
            return read_json(self.where, self._blobs, f"{path}/zarr.json")
        document = read_json(self.where, self._blobs, f"{path}/.zarray")
        if document is not None:
            document["attributes"] = read_json(self.where, self._blobs, f"{path}/.zattrs")
        return document


class _ArrayOfZarr:
    """An array in a form that only zarr reads: sharded, or coded by others."""

    concurrency = 4

    def __init__(self, label: str, array: zarr.Array) -> None:
        self.shape, self.dtype = array.shape, array.dtype.newbyteorder("=")
        self.chunks = array.chunks
        self._label, self._array = label, array

    def box_jobs(self, axes: Sequence[Axis], out: NDArray[Any]) -> Iterator[Job]:
        """Yield what together reads a box into `out`."""
        lengths = chunk_shape(out.shape, self.dtype.itemsize, _PIECE_BYTES)
        counts = [-(-size // length) for size, length in zip(out.shape, lengths, strict=True)]
        for index in np.ndindex(*counts):
            parts = [slice(i * n, (i + 1) * n) for i, n in zip(index, lengths, strict=True)]
            piece = [axis[part] for axis, part in zip(axes, parts, strict=True)]
            place: Any = (*parts, ...)  # a view even if of one item
            yield partial(self._read, piece, out[place])

    def _read(self, axes: Sequence[Axis], out: NDArray[Any]) -> None:
        selection = tuple(
            slice(a.start, a.stop, a.step) if isinstance(a, range) else a for a in axes
        )
        with named_errors(self._label):
            out[...] = self._array.oindex[selection] if selection else self._array[()]

    def read_points(self, indices: Sequence[NDArray[np.intp]], out: NDArray[Any]) -> None:
        """Read single elements into `out`."""
        with named_errors(self._label):
            out[...] = self._array.vindex[tuple(indices)]
