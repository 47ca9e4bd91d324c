"""Safetensors files read like a model store: a file, a folder of shards, or their index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

from bf16codecs._chunks.array import ArrayReader, ChunkedArray
from bf16codecs._chunks.formats import PlainForm
from bf16codecs._chunks.sources import FileBlobs
from bf16codecs.safetensors import open_source
from bf16codecs.store.layout import ATTRIBUTES_KEY, plan_arrays

__all__ = ["SafetensorsModel"]

# Read at a time.
_PIECE_BYTES = 1 << 22


class SafetensorsModel:
    """The tensors of safetensors files.

    Parameters
    ----------
    path
        A file, a folder of shards, or a ``*.safetensors.index.json``.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._source = open_source(path)
        _, plans = plan_arrays(self._source, _PIECE_BYTES)
        self._plans = {plan.attributes[ATTRIBUTES_KEY]["tensor"]: plan for plan in plans}
        self._parts: dict[str, tuple[Path, int, int]] = {}
        self._blobs = FileBlobs(self._parts)
        self.names = list(self._plans)

    def array(self, name: str) -> ArrayReader:
        """Return the array of a tensor."""
        plan = self._plans[name]

        def key(index: tuple[int, ...]) -> str:
            return f"{name!r}, piece {index}"

        path = self._source.files[plan.file].path
        for piece in plan.pieces():
            self._parts[key(piece.index)] = path, piece.offset, piece.nbytes
        label = f"{self.where}: tensor {name!r}"
        return ChunkedArray(
            label, plan.shape, np.dtype(plan.dtype), plan.chunks, PlainForm(), self._blobs, key
        )

    def tensor_dtype(self, name: str) -> str | None:
        """Return the dtype that safetensors knows the tensor by."""
        dtype: str = self._plans[name].attributes[ATTRIBUTES_KEY]["dtype"]
        return dtype

    def headers(self) -> list[tuple[bytes, int]]:
        """Return each file's header, and the size of the data after it."""
        headers = (file.header for file in self._source.files)
        return [(h.raw, h.file_size - h.data_start) for h in headers]

    def zarr_array(self, name: str) -> zarr.Array:
        """Refuse: there is none."""
        raise ValueError(f"{self.where}: safetensors files have no Zarr arrays; st2zarr makes them")

    def close(self) -> None:
        """Release what is open."""
        self._blobs.close()
