"""Encode the tensors of a new step of a run, in this process or on a cluster.

Workers encode, and this process writes: chunks of a run grow in place, which no process may do that
was given up and still runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.array import ArrayReader, RangeReader
from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.cluster import Cluster, batch_nbytes, batches, current_cluster
from bf16codecs._base.threads import codec_threads, run_ahead
from bf16codecs._files.digests import Digests
from bf16codecs.codecs.frames import decode
from bf16codecs.codecs.growing import EncodedVersion, Version, encode_for_growing
from bf16codecs.convert.checks import digest_kinds
from bf16codecs.convert.options import RunOptions
from bf16codecs.convert.pieces import all_pieces, file_hash, read_pieces, these_pieces
from bf16codecs.convert.plan import read_base
from bf16codecs.convert.runs.plan import StepPlan
from bf16codecs.convert.summary import BytesDone
from bf16codecs.convert.workers import Shared, SourceRead, sharing
from bf16codecs.errors import CorruptDataError
from bf16codecs.store.choice import CodecChoice, as_rows
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.layout import RunInfo
from bf16codecs.store.runs.writer import RunArray, RunWriter

__all__ = ["NewStep", "Parent", "encode_step", "fill_values"]

# Results are frames, which wait here to be written: 2 for each thread of the cluster.
_RESULT_BYTES, _AHEAD = 1 << 25, 2


@dataclass(frozen=True)
class Parent:
    """The earlier step that a step is coded against, and its tensors' arrays by path."""

    #: Its index among the steps of the run, and in its group.
    index: int
    slot: int
    arrays: Mapping[str, ArrayReader]
    #: The tensor of each array.
    names: Mapping[str, str]
    reader: ModelReader


@dataclass(frozen=True)
class NewStep:
    """A checkpoint that becomes a step of a run.

    `options` are the caller's, with the group and codec of the run. `largest_chunk` is the largest
    size of a chunk with all steps of a group, in bytes; None for any.
    """

    source: ModelReader
    number: int
    options: RunOptions
    largest_chunk: int | None
    progress: BytesDone | None
    #: By number, earlier steps that other processes can open, if they do not see the run.
    earlier: Mapping[int, Shared] = field(default_factory=dict)

    @property
    def choice(self) -> CodecChoice:
        """Codec of the run."""
        return self.options.choice

    @property
    def digests(self) -> Sequence[str]:
        """Kinds of the files' digests."""
        return digest_kinds(self.source, self.options.sha256)


def encode_step(
    writer: RunWriter,
    plan: StepPlan,
    info: RunInfo,
    step: NewStep,
    parent: Parent | None,
) -> tuple[list[Digests], int]:
    """Encode all tensors; return the files' digests, and the number of bytes written."""
    cluster = current_cluster()
    if cluster is not None and writer.is_readable:
        return _encode_on(cluster, writer, plan, info, step, parent)
    group, slot = divmod(len(info.steps), info.group)
    bases, decoded = ThreadBuffer(), ThreadBuffer()
    grown = info.grown()

    def work(piece: Piece, chunk: Bytes) -> int:
        if not piece.array.is_written:
            return 0
        array = plan.arrays[piece.array.path]
        earlier = None if parent is None else parent.arrays.get(piece.array.path)
        base = None if earlier is None else read_base(earlier, piece, bases.get(chunk.size))
        version = _version(piece.array, chunk, 0 if parent is None else parent.slot, base)
        fill = None if array.path in grown else partial(fill_values, piece.array)
        appended = writer.append(array, (group, *piece.index), slot, version, fill)
        if step.options.verify:
            found = decoded.get(chunk.size)
            decode(writer.read(appended), found, base)
            if not np.array_equal(found, chunk):
                raise CorruptDataError(f"{array.path}: what was read back is not what was written")
        return appended.nbytes

    hashes = [file_hash(header, step.digests) for header in step.source.headers]
    read = partial(read_pieces, at_once=writer.concurrency)
    with closing(read(step.source, work, all_pieces(plan.pieces), hashes, step.progress)) as pieces:
        nbytes = sum(size for _, size in pieces)
    return [hasher.digests() for hasher in hashes], nbytes


def _version(array: ArrayPlan, chunk: Bytes, slot: int, base: Bytes | None) -> Version:
    """Return a chunk as a version that is coded against the one with a slot, if it has a base."""
    if base is None:
        return Version(as_rows(array, chunk))
    return Version(as_rows(array, chunk), slot, as_rows(array, base))


def fill_values(array: ArrayPlan) -> Bytes:
    """Return a chunk of fill values."""
    fill = np.empty(array.chunk_nbytes, np.uint8)
    fill.view(array.dtype)[:] = array.fill_value
    return fill


class _Encoded(NamedTuple):
    """A piece that a worker has encoded."""

    piece: Piece
    version: EncodedVersion
    checksum: int


def _encode_on(
    cluster: Cluster,
    writer: RunWriter,
    plan: StepPlan,
    info: RunInfo,
    step: NewStep,
    parent: Parent | None,
) -> tuple[list[Digests], int]:
    """Encode all tensors on a cluster, and write them here."""
    given = None if parent is None else step.earlier.get(info.steps[parent.index].number)
    reader = None if parent is None or given is not None else parent.reader
    read, written_nbytes = SourceRead(step.source), 0
    with sharing(cluster, step.source, reader) as (source, of_run):
        assert source is not None
        workers = _Workers(
            source,
            given or of_run,
            {} if parent is None else parent.names,
            0 if parent is None else parent.slot,
            step.options.verify,
            cluster.threads,
        )
        jobs = read.jobs(source, step.digests, plan.pieces, cluster.threads)
        files = len(jobs)
        pieces = [piece for array in plan.pieces if array.is_written for piece in array.pieces()]
        total = sum(piece.nbytes for piece in pieces)
        most = min(_RESULT_BYTES, batch_nbytes(cluster, total))
        for batch in batches(pieces, lambda piece: piece.nbytes, most):
            arrays = {piece.array.path: plan.arrays[piece.array.path] for piece in batch}
            jobs.append(partial(workers.encode, batch, arrays))

        def encoded(results: Iterator[tuple[int, Any]]) -> Iterator[_Encoded]:
            for number, result in results:
                if number < files:
                    read.add_file(number, result)
                    continue
                for each in result:
                    read.add_piece(each.piece.array.file, each.piece.offset, each.checksum)
                yield from result

        done = 0
        write = partial(_write, writer, plan, info, step.options.verify)
        with closing(cluster.run(jobs, ahead=_AHEAD)) as results:
            writes = (partial(write, each) for each in encoded(results))
            with closing(run_ahead(writes, writer.concurrency)) as written:
                for size, stored in written:
                    done, written_nbytes = done + size, written_nbytes + stored
                    if step.progress is not None:
                        step.progress(done, total)
    return read.digests(), written_nbytes


def _write(
    writer: RunWriter, plan: StepPlan, info: RunInfo, verify: bool, encoded: _Encoded
) -> tuple[int, int]:
    """Write a version that a worker has encoded and verified; return its size, and stored size."""
    group, slot = divmod(len(info.steps), info.group)
    piece, version, _ = encoded
    array = plan.arrays[piece.array.path]
    fill = None if array.path in info.grown() else partial(fill_values, piece.array)
    appended = writer.append(array, (group, *piece.index), slot, version, fill)
    if verify and writer.read(appended).tobytes() != version.frame:
        raise CorruptDataError(f"{array.path}: what was read back is not what was written")
    return piece.nbytes, appended.nbytes


@dataclass(frozen=True)
class _Workers:
    """The jobs of an encoding; this travels to the workers with each."""

    source: Shared
    #: The parent: a step of the run, or the checkpoint that became that step.
    parent: Shared | None
    #: The parent's tensors, by the paths of their arrays, and its slot.
    names: Mapping[str, str]
    slot: int
    verify: bool
    threads: int

    def encode(self, pieces: Sequence[Piece], arrays: Mapping[str, RunArray]) -> list[_Encoded]:
        """Encode pieces for the arrays at their paths."""
        bases: dict[str, RangeReader] = {}
        if self.parent is not None:
            parent = self.parent.model()
            for piece in pieces:
                path = piece.array.path
                if path in self.names and path not in bases:
                    bases[path] = parent.ranges(parent.tensor(self.names[path]).array)
        memory, decoded = ThreadBuffer(), ThreadBuffer()

        def work(piece: Piece, chunk: Bytes) -> _Encoded:
            path, base = piece.array.path, None
            if path in bases:
                base = read_base(bases[path], piece, memory.get(chunk.size))
            version = _version(piece.array, chunk, self.slot, base)
            encoded = encode_for_growing(arrays[path].codec, version)
            if self.verify:
                found = decoded.get(chunk.size)
                decode(encoded.frame, found, base)
                if not np.array_equal(found, chunk):
                    raise CorruptDataError(f"{path}: what was decoded is not what was encoded")
            return _Encoded(piece, encoded, _core.checksum(chunk[: piece.nbytes]))

        source, todo = self.source.model(), these_pieces(pieces)
        with (
            codec_threads(self.threads),
            closing(read_pieces(source, work, todo, [], None)) as results,
        ):
            return [encoded for _, encoded in results]
