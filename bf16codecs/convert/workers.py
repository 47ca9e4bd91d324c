"""Models that the workers of a cluster open for themselves."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from bf16codecs import _core
from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cluster import Cluster, NotSeenError
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import Limits
from bf16codecs._base.paths import absolute
from bf16codecs._base.threads import codec_threads
from bf16codecs._files.digests import Digests
from bf16codecs.convert.pieces import (
    all_pieces,
    arrays_by_file,
    do_pieces,
    file_hash,
    read_pieces,
    these_pieces,
)
from bf16codecs.errors import SafetensorsError, StoreError
from bf16codecs.store.kinds import path_of
from bf16codecs.store.opening import Opening, open_any, open_either
from bf16codecs.store.reader import ModelReader

Kept = TypeVar("Kept")

#: So many files for each job that runs at a time make jobs of whole files, hashed on the way.
LEAST_FILES = 2

__all__ = ["LEAST_FILES", "FileDigests", "Shared", "SourceRead", "on_pieces", "shared", "sharing"]


@dataclass(frozen=True)
class Shared:
    """A model that was opened in one process, and that others open when they need it.

    Each opens it once for a conversion, which `token` tells from others, and checks that it has the
    same files and headers: workers may see other files at the same path.
    """

    open: Callable[[], ModelReader] = field(compare=False)
    #: What messages call it here.
    where: str
    identity: bytes
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def kept(self, own: Kept) -> Kept:
        """Return what an earlier job of this worker has kept with the model, or `own`, and keep it.

        A writer has memory for frames, which each job would otherwise ask the system for anew.
        """
        kept: Kept = _kept.setdefault(self.token, own)
        return kept

    def model(self) -> ModelReader:
        """Return the open model, in any process, until it is released."""
        with _lock:
            if self.token not in _opened:
                try:
                    reader = self.open()
                except FileNotFoundError as e:
                    raise NotSeenError.at(str(e.filename)) from e
                if _identity(reader) != self.identity:
                    reader.close()
                    raise StoreError(
                        f"{reader.where}: a worker found another model here than this process"
                    )
                reader.where = self.where
                _opened[self.token] = reader
            return _opened[self.token]


# The models that this worker has open; several of its threads use them. And what else jobs keep.
_opened: dict[str, ModelReader] = {}
_kept: dict[str, Any] = {}
_lock = make_lock()


def _release(tokens: Sequence[str]) -> None:
    """Close models, on a worker. A job that was given up and still runs fails."""
    with _lock:
        readers = [_opened.pop(token) for token in tokens if token in _opened]
        for token in tokens:
            _kept.pop(token, None)
    for reader in readers:
        with suppress(OSError):
            reader.close()


def _identity(reader: ModelReader) -> bytes:
    """Return what tells a model from others: its files, their digests, and their headers."""
    digest = hashlib.sha256(repr((reader.info.files, reader.info.run)).encode())
    for header in () if reader.info.run is not None else reader.headers:
        digest.update(hashlib.sha256(header.raw).digest())
    return digest.digest()


def shared(reader: ModelReader) -> Shared:
    """Return a model, a run or a step of one, for other processes to open."""
    where, step = reader.location
    path = path_of(where)
    where = where if path is None else absolute(path)
    base = None if reader.base is None else shared(reader.base)
    reopen = reader.reopen or partial(_reopened, where, step, reader.storage_options, reader.limits)
    if base is not None:
        reopen = partial(_with_base, reopen, base)
    return Shared(reopen, reader.where, _identity(reader))


@contextmanager
def sharing(cluster: Cluster, *readers: ModelReader | None) -> Iterator[list[Shared | None]]:
    """Yield models for a cluster's workers, which close them at the end."""
    models = [None if reader is None else shared(reader) for reader in readers]
    try:
        yield models
    finally:
        tokens = [model.token for model in models if model is not None]
        cluster.everywhere(partial(_release, tokens))


def _reopened(
    where: str, step: int | None, options: Mapping[str, Any] | None, limits: Limits
) -> ModelReader:
    opening = Opening(options, limits, step=step, with_base=False)
    return open_either(where, opening) if step is None else open_any(where, opening)


def _with_base(reopen: Callable[[], ModelReader], base: Shared) -> ModelReader:
    """Open a model with its base, which was compared with the reference to it before."""
    reader, opened = reopen(), base.open()
    if _identity(opened) != base.identity:
        raise StoreError(f"{opened.where}: a worker found another base here than this process")
    reader.open_base = lambda _: opened
    _ = reader.base
    return reader


def on_pieces(
    reader: ModelReader,
    work: Callable[[Piece, Bytes], object],
    pieces: Sequence[Piece],
    threads: int,
) -> int:
    """Decode pieces on a worker, and work on each; return their size."""

    def decode(piece: Piece, chunk: Bytes, _: Bytes | None) -> None:
        reader.read(piece, chunk)
        work(piece, chunk[: piece.nbytes])

    todo = these_pieces(pieces)
    with (
        codec_threads(threads),
        closing(do_pieces(decode, todo, [], None, reader.stored.concurrency)) as done,
    ):
        for _ in done:
            pass
    return todo.nbytes


@dataclass(frozen=True)
class FileDigests:
    """The digests of a file, and the checksums of its pieces by their offsets."""

    digests: Digests
    checksums: Mapping[int, int]


def digests_of(
    source: Shared, kinds: Sequence[str], file: int, arrays: Sequence[ArrayPlan], threads: int
) -> FileDigests:
    """Read one of a source's files on a worker, and return its digests.

    The checksums of the pieces of `arrays` tell whether other workers have read the same.
    """
    model = source.model()
    hashes = [file_hash(header, kinds) for header in model.headers]

    def work(piece: Piece, chunk: Bytes) -> int:
        return _core.checksum(chunk[: piece.nbytes])

    with (
        codec_threads(threads),
        closing(read_pieces(model, work, all_pieces(arrays), hashes, None)) as pieces,
    ):
        checksums = {piece.offset: checksum for piece, checksum in pieces}
    return FileDigests(hashes[file].digests(), checksums)


class SourceRead:
    """Compares what several workers have read of a source, and collects its digests."""

    def __init__(self, source: ModelReader) -> None:
        self._source = source
        self._files: dict[int, FileDigests] = {}
        self._read: dict[tuple[int, int], int] = {}

    def jobs(
        self, model: Shared, kinds: Sequence[str], arrays: Sequence[ArrayPlan], threads: int
    ) -> list[Callable[[], Any]]:
        """Return the jobs that compute the digests, one for each file."""
        by_file = arrays_by_file(arrays)
        return [
            partial(digests_of, model, kinds, file, by_file.get(file, []), threads)
            for file in range(len(self._source.headers))
        ]

    def add_file(self, file: int, found: FileDigests) -> None:
        """Take the result of a job of `jobs`."""
        self._files[file] = found

    def add_piece(self, file: int, offset: int, checksum: int) -> None:
        """Take the checksum of a piece that a worker has encoded."""
        self._read[file, offset] = checksum

    def digests(self) -> list[Digests]:
        """Return the digests; raise SafetensorsError if workers have read different bytes."""
        for (file, offset), checksum in self._read.items():
            if self._files[file].checksums.get(offset) != checksum:
                raise SafetensorsError(
                    f"{self._source.file_path(file)}: changed while it was read, or workers see"
                    " different files here"
                )
        return [self._files[file].digests for file in range(len(self._source.headers))]
