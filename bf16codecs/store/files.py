"""Models in files laid out as safetensors files are, on a disk or made on the fly."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bf16codecs._arrays.array import ChunkedArray, Located, UnitArray
from bf16codecs._arrays.formats import RawFormat
from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex
from bf16codecs._arrays.storage import (
    READ_BYTES,
    AtMost,
    InMemory,
    OpenRange,
    Request,
    StoredChunk,
    StoredRange,
)
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.cached import cached_property
from bf16codecs._base.limits import DEFAULT_LIMITS, Limits
from bf16codecs._files.digests import Digests, FileHash, kinds_of
from bf16codecs._files.reading import SharedFile, read_at
from bf16codecs.errors import SafetensorsError, StoreError
from bf16codecs.safetensors import Header, SourceFile, open_source
from bf16codecs.store.arrays import CheckSize, StoredArrays
from bf16codecs.store.attributes import StoredFile
from bf16codecs.store.checkpoint import CHECKPOINT_PATH, OBJECTS_PATH, CheckpointPaths
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo
from bf16codecs.store.paths import array_paths
from bf16codecs.store.plan import INDEX_PATH, header_path, plan_arrays, plan_bytes
from bf16codecs.store.reader import ModelReader

__all__ = ["FilesReader", "ModelFile", "ReadBytes", "open_files", "open_safetensors", "state_of"]

# Bytes of the chunks that a file is read in.
_PIECE_BYTES = 1 << 22
_UNPADDED = RawFormat(is_padded=False)


class ModelFile(NamedTuple):
    """A file of a model.

    The header has the offsets of tensors in `content`, which begins behind it; only their bytes are
    read. `location` is the file's path or address, for messages.
    """

    name: str
    header: Header
    content: StoredChunk
    location: str


class ReadBytes(StoredChunk):
    """The bytes of a virtual file, which a function returns.

    `read` is called with an offset in the file and a buffer to fill from there on, which is a part
    of one tensor in whole items.
    """

    def __init__(self, read: Callable[[int, Bytes], None], size: int) -> None:
        self._read, self.size = read, size

    def read(self, request: Request) -> Sequence[Bytes]:
        """Read ranges of the file."""
        assert self.size is not None
        ranges = [(0, self.size)] if isinstance(request, AtMost) else request
        parts = [np.empty(stop - start, np.uint8) for start, stop in ranges]
        for (start, _), part in zip(ranges, parts, strict=True):
            self._read(start, part)
        return parts

    def read_into(self, start: int, out: Bytes) -> int:
        """Read a range straight into memory."""
        self._read(start, out)
        return out.size


class _FileArrays(StoredArrays):
    """The tensors and documents of files, as arrays of a store."""

    is_near = False  # the arrays come from the headers already

    def __init__(
        self,
        where: str,
        info: StoreInfo,
        limits: Limits,
        files: Sequence[ModelFile],
        documents: Mapping[str, bytes],
        concurrency: int,
    ) -> None:
        super().__init__(where, info, limits)
        self._files, self._documents, self.concurrency = files, documents, concurrency

    @cached_property
    def _plans(self) -> dict[str, ArrayPlan]:
        """All arrays by path, made on demand: conversions of many checkpoints need none."""
        _, plans = plan_arrays([file.header for file in self._files], _PIECE_BYTES)
        documents = self._documents.items()
        plans += [plan_bytes(path, len(raw), len(raw)) for path, raw in documents]
        return {plan.path: plan for plan in plans}

    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes that a store's array of the tensor would have."""
        attributes: Mapping[str, Any] = self._plans[path].attributes[ATTRIBUTES_KEY]
        return attributes

    def open_zarr(self, path: str, check_size: CheckSize) -> NoReturn:
        """Raise ValueError: files have no Zarr arrays."""
        raise ValueError(
            f"{self.where}: safetensors files have no Zarr arrays; convert them with st2zarr"
        )

    def stored_nbytes(self, path: str) -> int:
        """Return the size of a tensor's data."""
        return self._plans[path].nbytes

    def total_nbytes(self) -> int:
        """Return the size of all files."""
        return sum(file.header.file_size for file in self._files)

    def codec_name(self, path: str) -> str:
        """Return the name of a tensor's codec: always ``"none"``."""
        return "none"

    def close(self) -> None:
        """Close files and connections."""
        for file in self._files:
            file.content.close()

    def open(self, path: str, check_size: CheckSize) -> UnitArray:
        """Open the array of a tensor, or of a document."""
        plan, label = self._plans.get(path), self.label(path)
        if plan is None:
            raise StoreError(f"{label}: is missing")
        locate, dtype = partial(self._locate, plan), np.dtype(plan.dtype)
        return ChunkedArray(label, plan.shape, dtype, plan.chunks, locate, True, self.concurrency)

    def _locate(self, plan: ArrayPlan, index: ChunkIndex) -> Located:
        if plan.path in self._documents:
            return Located(_UNPADDED, InMemory(self._documents[plan.path]), None)
        content, piece = self._files[plan.file].content, plan.piece(index)
        return Located(_UNPADDED, StoredRange(content, piece.offset, piece.nbytes), None)


class FilesReader(ModelReader):
    """Reads the tensors of files at a path or an address, `where`.

    `index` has the name and the content of their index, and `checkpoint` the text and all objects
    of a checkpoint of a training job. `paths` are those of them that are on a local disk, the index
    last, and `left_out` is what else is in the folder that was named. `concurrency` is how many
    reads at a time pay off. `state` returns something for each file, by its path, that differs
    once the file has changed, and `opened` is that from before the headers were read.
    """

    def __init__(
        self,
        where: str,
        files: Sequence[ModelFile],
        limits: Limits = DEFAULT_LIMITS,
        *,
        index: tuple[str, bytes] | None = None,
        checkpoint: tuple[bytes, bytes] | None = None,
        paths: Iterable[Path] = (),
        left_out: tuple[str, ...] = (),
        concurrency: int = 1,
        state: Callable[[], Mapping[str, Any]] = dict,
        opened: Mapping[str, Any] | None = None,
    ) -> None:
        self.files, self.left_out, self._paths, self._state = files, left_out, list(paths), state
        self._opened = opened
        tensors = array_paths(name for file in files for name in file.header.entries)
        aliases = [alias for file in files for alias in file.header.aliases.items()]
        tensors |= {alias: tensors[name] for alias, name in aliases}
        stored = tuple(
            StoredFile(
                file.name,
                file.header.file_size,
                Digests(),
                header_path(i),
                kind=file.header.kind,
            )
            for i, file in enumerate(files)
        )
        info = StoreInfo(stored, None, tensors)
        documents = {header_path(i): file.header.raw for i, file in enumerate(files)}
        if index is not None:
            name, raw = index
            entry = StoredFile(name, len(raw), Digests.of(raw, kinds_of(False)), INDEX_PATH)
            info, documents[INDEX_PATH] = replace(info, index=entry), raw
        if checkpoint is not None:
            text, objects = checkpoint
            documents[CHECKPOINT_PATH] = text
            if objects:
                documents[OBJECTS_PATH] = objects
            at = CheckpointPaths(CHECKPOINT_PATH, OBJECTS_PATH if objects else None)
            info = replace(info, checkpoint=at)
        super().__init__(_FileArrays(where, info, limits, files, documents, concurrency))

    @property
    def paths(self) -> list[Path]:
        """The files that are on a local disk, the index last."""
        return self._paths

    @property
    def headers(self) -> list[Header]:
        """The headers of the files."""
        return [file.header for file in self.files]

    def file_path(self, file: int) -> str:
        """Return the path or address of a file, for messages."""
        return self.files[file].location

    def read_range(self, file: int, offset: int, out: Bytes) -> None:
        """Read the bytes of tensors in a file from an offset on, which counts its header."""
        if self.files[file].content.read_into(offset, out) < out.size:
            raise SafetensorsError(f"{self.file_path(file)}: truncated while it was read")

    def read_ranges(self, file: int, parts: Sequence[tuple[int, Bytes]]) -> None:
        """Read several parts of a file, together if it is at an address."""
        if self.stored.concurrency <= 1:
            super().read_ranges(file, parts)
            return
        replies = self.files[file].content.read([(at, at + out.size) for at, out in parts])
        for (_, out), reply in zip(parts, replies, strict=True):
            if reply.size < out.size:
                raise SafetensorsError(f"{self.file_path(file)}: truncated while it was read")
            out[:] = reply

    def digests(self, kinds: Sequence[str]) -> list[Digests]:
        """Compute the digests of each file."""
        return [self._digests(file, kinds) for file in range(len(self.files))]

    def state(self) -> Mapping[str, Any]:
        """Return a token for each file, by its path, that differs once it has changed."""
        return self._state()

    def opened_state(self) -> Mapping[str, Any]:
        """Return the state from before the headers were read, if it was noted."""
        return self.state() if self._opened is None else self._opened

    def _digests(self, file: int, kinds: Sequence[str]) -> Digests:
        header = self.files[file].header
        hashes = FileHash(kinds, header.file_size, header.prefix)
        memory = np.empty(_PIECE_BYTES, np.uint8)
        for at in range(header.data_start, header.file_size, _PIECE_BYTES):
            part = memory[: header.file_size - at]
            self.read_range(file, at, part)
            hashes.add(at, part)
        return hashes.digests()


class _LocalFile(StoredChunk):
    """A safetensors file on a disk, whose header was read.

    If `is_held`, it stays open, so that what takes its path later is another file. Otherwise it is
    opened for each read: of a series of checkpoints, or hundreds of shards, none takes a
    descriptor.
    """

    def __init__(self, file: SourceFile, buffer: ThreadBuffer, is_held: bool) -> None:
        self._file, self._buffer = file, buffer
        with self._named():
            self._held = _open_same(file) if is_held else None

    @property
    def read_nbytes(self) -> int:
        """Bytes to read at a time."""
        return READ_BYTES

    def read(self, request: Request) -> Sequence[Bytes]:
        """Read ranges of it into this thread's buffer."""
        with self._named(), self._opened() as part:
            return part.read(request)

    def read_into(self, start: int, out: Bytes) -> int:
        """Read a range of it straight into memory."""
        with self._named(), self._opened() as part:
            return part.read_into(start, out)

    def close(self) -> None:
        """Close it, once no thread reads it."""
        self._held = None

    @contextmanager
    def _opened(self) -> Iterator[OpenRange]:
        # This reference keeps the file open until the read is done.
        shared = self._held or SharedFile(self._file.path)
        size = self._file.header.file_size
        yield OpenRange(None, shared.descriptor, 0, size, self._buffer)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file in errors: reading knows the descriptor alone."""
        try:
            yield
        except OSError as e:
            e.filename = str(self._file.path)
            raise


def open_safetensors(
    path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS, is_held: bool = True
) -> FilesReader:
    """Open a file, a folder of shards, or a ``*.safetensors.index.json``: see `open_source`.

    Its files stay open if `is_held`.
    """
    model = open_source(path)
    index = None if model.index is None else (model.index.name, model.index_raw)
    return open_files(path, model.files, limits, is_held, index, model.paths, model.left_out)


def open_files(
    path: str | os.PathLike[str],
    files: Sequence[SourceFile],
    limits: Limits = DEFAULT_LIMITS,
    is_held: bool = False,
    index: tuple[str, bytes] | None = None,
    paths: Iterable[Path] = (),
    left_out: tuple[str, ...] = (),
    opened: Mapping[str, Any] | None = None,
) -> FilesReader:
    """Open files on a disk whose headers were read; the parameters are those of `FilesReader`."""
    buffer = ThreadBuffer()
    contents = [
        ModelFile(file.name, file.header, _LocalFile(file, buffer, is_held), str(file.path))
        for file in files
    ]
    state = partial(state_of, [file.path for file in files])
    return FilesReader(
        os.fspath(path),
        contents,
        limits,
        index=index,
        paths=paths,
        left_out=left_out,
        state=state,
        opened=opened,
    )


def state_of(paths: Iterable[Path]) -> dict[str, Any]:
    """Return something for each file, by its path, that differs once the file has changed."""
    status = {str(path): os.stat(path) for path in paths}
    return {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in status.items()}


def _open_same(file: SourceFile) -> SharedFile:
    """Open a file to hold, which has to be the one whose header was read."""
    opened = SharedFile(file.path)
    prefix = np.empty(file.header.data_start, np.uint8)
    size = os.fstat(opened.descriptor).st_size
    read_at(opened.descriptor, 0, prefix)
    if size != file.header.file_size or prefix[8:].tobytes() != file.header.raw:
        raise SafetensorsError(f"{file.path}: changed while it was read")
    return opened
