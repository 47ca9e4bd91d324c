"""Reads safetensors files like a model store: a file, a folder of shards, or their index."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from bf16codecs._chunks.array import ArrayReader, ChunkedArray, Index, Located
from bf16codecs._chunks.formats import RawFormat
from bf16codecs._chunks.grid import ArrayPlan
from bf16codecs._chunks.sources import FilePart, FileSource
from bf16codecs._digests import Digests, FileHash
from bf16codecs._files import SharedFile, read_at
from bf16codecs._limits import DEFAULT_LIMITS
from bf16codecs.errors import SafetensorsError
from bf16codecs.safetensors import SourceFile, open_source
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.entries import StoredFile
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo
from bf16codecs.store.plan import header_path, plan_arrays, plan_bytes

__all__ = ["SafetensorsReader"]

# Bytes of the chunks that a file is read in.
_PIECE_BYTES = 1 << 22
_UNPADDED = RawFormat(is_padded=False)


class SafetensorsReader(StoreReader):
    """Reads the tensors of safetensors files.

    Parameters
    ----------
    path
        A file, a folder of shards, or a ``*.safetensors.index.json``.
    """

    has_near_headers = False  # the arrays are made of the headers

    def __init__(self, path: Path) -> None:
        self._model = open_source(path)
        self._source = FileSource()
        paths, plans = plan_arrays(self._model, _PIECE_BYTES)
        self._plans = {plan.path: plan for plan in plans}
        files = []
        for i, file in enumerate(self._model.files):
            header = file.header
            files.append(StoredFile(file.name, header.file_size, Digests(), header_path(i)))
            self._plans[header_path(i)] = plan_bytes(
                header_path(i), len(header.raw), len(header.raw), file=i, offset=8
            )
        super().__init__(str(path), StoreInfo(tuple(files), None, paths), DEFAULT_LIMITS)
        self._files = [_open_same(file) for file in self._model.files]

    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return what an array of a store would say of its tensor."""
        attributes: Mapping[str, Any] = self._plans[path].attributes[ATTRIBUTES_KEY]
        return attributes

    def open_zarr(self, path: str) -> NoReturn:
        """Raise: there is none."""
        raise ValueError(
            f"{self.where}: safetensors files have no Zarr arrays; convert them with st2zarr"
        )

    def digests(self, kinds: Sequence[str]) -> list[Digests]:
        """Compute the digests of each file."""
        return [_digests(file, kinds) for file in self._files]

    def state(self) -> Any:
        """Return something that differs once a file has changed."""
        states = [os.fstat(file.descriptor) for file in self._files]
        return [(status.st_size, status.st_mtime_ns) for status in states]

    def stored_nbytes(self, path: str) -> int:
        """Return the size of a tensor's data."""
        return self._plans[path].nbytes

    def total_nbytes(self) -> int:
        """Return the size of all files."""
        return self._model.nbytes

    def codec_name(self, path: str) -> str:
        """Return ``"none"``."""
        return "none"

    def close(self) -> None:
        """Release what is open."""
        super().close()
        self._source.close()

    def _open(self, path: str, label: str) -> ArrayReader:
        plan = self._plans[path]
        locate = partial(self._locate, plan, self._files[plan.file])
        dtype = np.dtype(plan.dtype)
        return ChunkedArray(label, plan.shape, dtype, plan.chunks, locate, in_blocks=True)

    def _locate(self, plan: ArrayPlan, file: SharedFile, index: Index) -> Located:
        piece = plan.piece(index)
        return Located(_UNPADDED, self._source, FilePart(file, piece.offset, piece.nbytes))


def _digests(file: SharedFile, kinds: Sequence[str]) -> Digests:
    nbytes = os.fstat(file.descriptor).st_size
    digest, buffer, at = FileHash(kinds, nbytes), np.empty(_PIECE_BYTES, np.uint8), 0
    while at < nbytes and (count := read_at(file.descriptor, at, buffer)):
        digest.add(at, buffer[:count])
        at += count
    return digest.digests()


def _open_same(file: SourceFile) -> SharedFile:
    """Open a file to keep, which has to be the one whose header was read."""
    opened = SharedFile(file.path)
    prefix = np.empty(file.header.data_start, np.uint8)
    size = os.fstat(opened.descriptor).st_size
    read_at(opened.descriptor, 0, prefix)
    if size != file.header.file_size or prefix[8:].tobytes() != file.header.raw:
        raise SafetensorsError(f"{file.path}: changed while it was read")
    return opened
