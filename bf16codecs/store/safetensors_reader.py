"""Reads safetensors files like a model store: a file, a folder of shards, or their index."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from bf16codecs._arrays.array import ArrayReader, ChunkedArray, Index, Located
from bf16codecs._arrays.formats import RawFormat
from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._arrays.sources import FilePart, FileSource
from bf16codecs._arrays.stored import InMemory
from bf16codecs._arrays.stored import Source as ChunkSource
from bf16codecs._base.limits import Limits
from bf16codecs._files.digests import Digests, FileHash, kinds_of
from bf16codecs._files.reading import SharedFile, read_at
from bf16codecs.errors import SafetensorsError, StoreError
from bf16codecs.safetensors import Source, SourceFile, open_source
from bf16codecs.store.attributes import StoredFile
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo
from bf16codecs.store.plan import INDEX_PATH, header_path, plan_arrays, plan_bytes
from bf16codecs.store.reader import StoreReader

__all__ = ["SafetensorsReader", "open_safetensors"]

# Bytes of the chunks that a file is read in.
_PIECE_BYTES = 1 << 22
_UNPADDED = RawFormat(is_padded=False)


class SafetensorsReader(StoreReader):
    """Reads the tensors of safetensors files.

    Parameters
    ----------
    where
        Their path or address, for messages.
    model
        Their headers, and the index.
    source
        Where their bytes are.
    parts
        For each file, what returns the source's key of so many bytes from an offset on.
    limits
        What reading may take.
    state
        Returns something that differs once a file has changed.
    """

    is_near = False  # the arrays are made of the headers

    def __init__(
        self,
        where: str,
        model: Source,
        source: ChunkSource,
        parts: Sequence[Callable[[int, int], Any]],
        limits: Limits,
        state: Callable[[], Any] = lambda: None,
    ) -> None:
        self._model, self._source, self._parts, self._state = model, source, parts, state
        paths, plans = plan_arrays(self._model, _PIECE_BYTES)
        self._plans = {plan.path: plan for plan in plans}
        files = []
        for i, file in enumerate(self._model.files):
            header = file.header
            files.append(StoredFile(file.name, header.file_size, Digests(), header_path(i)))
            self._plans[header_path(i)] = plan_bytes(
                header_path(i), len(header.raw), len(header.raw), file=i, offset=8
            )
        index = None
        if model.index is not None:
            raw = model.index_raw
            digests = Digests.of(raw, kinds_of(False))
            index = StoredFile(model.index.name, len(raw), digests, INDEX_PATH)
            self._plans[INDEX_PATH] = plan_bytes(INDEX_PATH, len(raw), len(raw))
        super().__init__(where, StoreInfo(tuple(files), index, paths), limits)

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
        sizes = [file.header.file_size for file in self._model.files]
        pairs = zip(self._parts, sizes, strict=True)
        return [self._digests(part, size, kinds) for part, size in pairs]

    def state(self) -> Any:
        """Return something that differs once a file has changed."""
        return self._state()

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
        plan = self._plans.get(path)
        if plan is None:
            raise StoreError(f"{label}: is missing")
        locate = partial(self._locate, plan)
        dtype = np.dtype(plan.dtype)
        return ChunkedArray(
            label, plan.shape, dtype, plan.chunks, locate, True, self._source.concurrency
        )

    def _locate(self, plan: ArrayPlan, index: Index) -> Located:
        if plan.path == INDEX_PATH:
            return Located(_UNPADDED, InMemory(self._model.index_raw), None)
        piece = plan.piece(index)
        return Located(_UNPADDED, self._source, self._parts[plan.file](piece.offset, piece.nbytes))

    def _digests(self, part: Callable[[int, int], Any], size: int, kinds: Sequence[str]) -> Digests:
        hashes = FileHash(kinds, size)
        for at in range(0, size, _PIECE_BYTES):
            nbytes = min(_PIECE_BYTES, size - at)
            with self._source.open(part(at, nbytes)) as chunk:
                (data,) = chunk.read([(0, nbytes)])
            hashes.add(at, data)
        return hashes.digests()


def open_safetensors(path: Path, limits: Limits) -> SafetensorsReader:
    """Open a file, a folder of shards, or a ``*.safetensors.index.json``.

    Errors are those of `open_source`.
    """
    model = open_source(path)
    files = [_open_same(file) for file in model.files]
    parts = [partial(FilePart, file) for file in files]
    return SafetensorsReader(str(path), model, FileSource(), parts, limits, partial(_state, files))


def _state(files: Sequence[SharedFile]) -> Any:
    states = [os.fstat(file.descriptor) for file in files]
    return [(status.st_size, status.st_mtime_ns) for status in states]


def _open_same(file: SourceFile) -> SharedFile:
    """Open a file to keep, which has to be the one whose header was read."""
    opened = SharedFile(file.path)
    prefix = np.empty(file.header.data_start, np.uint8)
    size = os.fstat(opened.descriptor).st_size
    read_at(opened.descriptor, 0, prefix)
    if size != file.header.file_size or prefix[8:].tobytes() != file.header.raw:
        raise SafetensorsError(f"{file.path}: changed while it was read")
    return opened
