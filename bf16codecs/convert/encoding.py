"""Encode the tensors of a model into a store, in this process or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from bf16codecs import _core
from bf16codecs._arrays.array import RangeReader
from bf16codecs._arrays.grid import Piece
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.cluster import Cluster, batch_nbytes, batches, current_cluster
from bf16codecs._base.threads import codec_threads
from bf16codecs._files.digests import Digests, FileHash
from bf16codecs.convert.pieces import (
    Todo,
    all_pieces,
    arrays_by_file,
    file_hash,
    read_pieces,
    these_pieces,
)
from bf16codecs.convert.plan import ModelPlan, read_base
from bf16codecs.convert.summary import BytesDone
from bf16codecs.convert.workers import LEAST_FILES, FileDigests, Shared, SourceRead, sharing
from bf16codecs.errors import StoreError
from bf16codecs.store.attributes import Difference
from bf16codecs.store.plan import difference_spec
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.writer import ModelWriter
from bf16codecs.store.zarr.writer import ChunkWriter, ZarrWriter

__all__ = ["Encoded", "encode"]

#: Writes a chunk, or its difference to another one, and returns the stored size.
Write = Callable[[Piece, Bytes, "Bytes | None"], int]


@dataclass(frozen=True)
class Encoded:
    """Result of encoding all tensors: digests of the files, stored bytes, checksums of pieces."""

    digests: list[Digests]
    stored_nbytes: int
    checksums: dict[tuple[int, int], int]


class ChunkEncoder:
    """Encodes chunks of a source into a store, and takes their checksums; several threads may."""

    def __init__(
        self, write: Write, bases: Mapping[str, RangeReader], keep_checksums: bool
    ) -> None:
        self._write, self._bases, self._keep_checksums = write, bases, keep_checksums
        self._buffer = ThreadBuffer()

    def __call__(self, piece: Piece, chunk: Bytes) -> tuple[int, int | None]:
        """Encode and write a chunk; return its stored size, and the checksum of the piece."""
        size = 0
        if piece.array.is_written:
            base = None
            if piece.array.has_base:
                memory = self._buffer.get(chunk.size)
                base = read_base(self._bases[piece.array.path], piece, memory)
            size = self._write(piece, chunk, base)
        return size, _core.checksum(chunk[: piece.nbytes]) if self._keep_checksums else None


def encode(
    source: ModelReader,
    writer: ModelWriter,
    plan: ModelPlan,
    base: ModelReader | None,
    kinds: Sequence[str],
    keep_checksums: bool,
    progress: BytesDone | None,
) -> Encoded:
    """Encode all tensors, which may be differences to a base, and compute the files' digests."""
    cluster = current_cluster()
    if cluster is not None:
        return _encode_on(cluster, source, writer, plan, base, kinds, keep_checksums, progress)
    work = ChunkEncoder(writer.write, plan.bases, keep_checksums)
    hashes = [file_hash(header, kinds) for header in source.headers]
    todo, at_once = all_pieces(plan.arrays), writer.concurrency
    stored, checksums = _encode_pieces(source, work, todo, hashes, progress, at_once)
    return Encoded([hasher.digests() for hasher in hashes], stored, checksums)


def _encode_pieces(
    source: ModelReader,
    work: ChunkEncoder,
    todo: Todo,
    hashes: Sequence[FileHash],
    progress: BytesDone | None,
    at_once: int,
) -> tuple[int, dict[tuple[int, int], int]]:
    """Encode pieces; return their stored size, and their checksums by file and offset."""
    stored, checksums = 0, dict[tuple[int, int], int]()
    with closing(read_pieces(source, work, todo, hashes, progress, at_once)) as pieces:
        for piece, (size, checksum) in pieces:
            stored += size
            if checksum is not None:
                checksums[piece.array.file, piece.offset] = checksum
    return stored, checksums


def _encode_on(
    cluster: Cluster,
    source: ModelReader,
    writer: ModelWriter,
    plan: ModelPlan,
    base: ModelReader | None,
    kinds: Sequence[str],
    keep_checksums: bool,
    progress: BytesDone | None,
) -> Encoded:
    """Encode all tensors on a cluster, and read every byte of a few large files twice."""
    if not isinstance(writer, ZarrWriter):
        raise ValueError("only Zarr stores can be written by several processes")
    read, checksums = SourceRead(source), dict[tuple[int, int], int]()
    done, stored, total = 0, 0, sum(array.nbytes for array in plan.arrays)
    with sharing(cluster, source, base) as (model, base_model):
        assert model is not None
        workers = _Workers(model, base_model, writer.shared(), keep_checksums, cluster.threads)
        if len(source.headers) >= LEAST_FILES * cluster.slots:
            jobs = _jobs_of_files(workers, plan, len(source.headers), kinds)
        else:
            # Digests take longest, since a file is hashed in one go: they start first.
            hashing = read.jobs(model, kinds, plan.arrays, cluster.threads)
            alone = (partial(_digests_alone, job, file) for file, job in enumerate(hashing))
            jobs = chain(alone, _jobs_of_batches(workers, plan, batch_nbytes(cluster, total)))
        with closing(cluster.run(jobs)) as results:
            for _, part in results:
                done, stored = done + part.nbytes, stored + part.stored_nbytes
                checksums.update(part.checksums)
                if part.digests is not None:
                    read.add_file(*part.digests)
                if progress is not None and part.nbytes:
                    progress(done, total)
    for (file, offset), checksum in checksums.items():
        read.add_piece(file, offset, checksum)
    return Encoded(read.digests(), stored, checksums)


def _jobs_of_files(
    workers: _Workers, plan: ModelPlan, files: int, kinds: Sequence[str]
) -> Iterator[Callable[[], _Part]]:
    """Yield the jobs of a model with many files: each reads one, and hashes it on the way."""
    arrays = arrays_by_file(plan.arrays)
    for file in range(files):
        pieces = [piece for array in arrays.get(file, []) for piece in array.pieces()]
        of_file = file, tuple(kinds)
        yield partial(workers.encode, pieces, _differences(plan, pieces), of_file)


def _jobs_of_batches(
    workers: _Workers, plan: ModelPlan, nbytes: int
) -> Iterator[Callable[[], _Part]]:
    """Yield jobs that encode pieces and compute no digests."""
    pieces = (piece for array in plan.arrays for piece in array.pieces())
    for batch in batches(pieces, lambda piece: piece.nbytes, nbytes):
        yield partial(workers.encode, batch, _differences(plan, batch))


class _Part(NamedTuple):
    """The result of a job: sizes and checksums of pieces, and the digests of a file."""

    nbytes: int
    stored_nbytes: int
    checksums: Mapping[tuple[int, int], int]
    digests: tuple[int, FileDigests] | None = None


def _digests_alone(job: Callable[[], FileDigests], file: int) -> _Part:
    return _Part(0, 0, {}, (file, job()))


def _differences(plan: ModelPlan, pieces: Sequence[Piece]) -> dict[str, Difference]:
    """Return the differences, by path, that pieces are part of."""
    paths = {piece.array.path for piece in pieces if piece.array.has_base}
    return {path: plan.differences[path] for path in paths}


@dataclass(frozen=True)
class _Workers:
    """The jobs of an encoding; this travels to the workers with each."""

    source: Shared
    base: Shared | None
    writer: ChunkWriter
    keep_checksums: bool
    threads: int

    def encode(
        self,
        pieces: Sequence[Piece],
        differences: Mapping[str, Difference],
        of_file: tuple[int, Sequence[str]] | None = None,
    ) -> _Part:
        """Encode chunks, which may be all of a file, whose digests are of some kinds then."""
        bases: dict[str, RangeReader] = {}
        for path, difference in differences.items():
            assert self.base is not None
            base = self.base.model()
            found = base.counterpart(difference.tensor, *difference_spec(difference))
            if found is None:
                raise StoreError(f"{base.where}: has no tensor {difference.tensor!r} any more")
            bases[path] = found
        writer, source = self.source.kept(self.writer), self.source.model()
        work = ChunkEncoder(writer.write, bases, self.keep_checksums)
        todo, at_once = these_pieces(pieces), writer.concurrency
        file, kinds = of_file or (0, ())
        hashes = [file_hash(header, kinds) for header in source.headers] if of_file else []
        with codec_threads(self.threads):
            stored, checksums = _encode_pieces(source, work, todo, hashes, None, at_once)
        if of_file is None:
            return _Part(todo.nbytes, stored, checksums)
        by_offset = {offset: checksum for (_, offset), checksum in checksums.items()}
        digests = file, FileDigests(hashes[file].digests(), by_offset)
        return _Part(todo.nbytes, stored, checksums, digests)
