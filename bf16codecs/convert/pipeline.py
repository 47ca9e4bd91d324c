"""The two directions of a conversion, for every kind of store: pack a model, and unpack it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bf16codecs import _core
from bf16codecs._buffers import Bytes, ThreadBuffer
from bf16codecs._chunks.grid import ArrayPlan, Piece
from bf16codecs._half import HalfLoss
from bf16codecs._limits import IN_FLIGHT_BYTES
from bf16codecs._messages import counted
from bf16codecs._threads import run_ahead, worker_count
from bf16codecs.convert.bases import Base
from bf16codecs.convert.plan import ModelPlan, pad, plan_model
from bf16codecs.errors import CorruptDataError, SafetensorsError
from bf16codecs.safetensors import Header, Source, SourceFile
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.entries import ROUNDED, StoredFile
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import array_paths
from bf16codecs.store.plan import INDEX_PATH, header_path, plan_bytes
from bf16codecs.store.whole import stored_arrays
from bf16codecs.store.writer import StoreWriter

__all__ = [
    "LOCAL",
    "Encoded",
    "Engine",
    "Measure",
    "Measured",
    "Packed",
    "Progress",
    "file_prefix",
    "in_file_order",
    "pack",
    "read_chunk",
    "unpack",
    "verify_packed",
]

#: Called with the bytes done so far and the bytes in all.
Progress = Callable[[int, int], None]
#: Called with the file's number, the piece, and its decoded bytes; by several threads.
Consume = Callable[[int, Piece, Bytes], None]


def file_prefix(header: Header) -> bytes:
    """Return what comes before a file's data: the header's length and the header."""
    return len(header.raw).to_bytes(8, "little") + header.raw


def read_chunk(file: SourceFile, piece: Piece, chunk: Bytes) -> Bytes:
    """Read a chunk from its safetensors file, fill its padding, and return the part read."""
    data = chunk[: piece.nbytes]
    file.read_into(piece.offset, data)
    pad(piece, chunk)
    return data


@dataclass(frozen=True)
class Packed:
    """What was packed: the store's attributes, sizes, and a checksum of each piece."""

    info: StoreInfo
    nbytes: int
    stored_nbytes: int
    #: By file number and offset; empty if nothing is to be verified.
    checksums: dict[tuple[int, int], int]


@dataclass(frozen=True)
class Encoded:
    """Result of encoding all tensors: SHA-256 of each file, stored bytes, checksums by piece."""

    digests: list[str]
    stored_nbytes: int
    checksums: dict[tuple[int, int], int]


@dataclass(frozen=True)
class Measured:
    """What a lossy store loses: its plan, SHA-256 of each original file, and the loss of all."""

    plan: ModelPlan
    digests: list[str]
    loss: HalfLoss


def in_file_order(
    work: Callable[[Piece, Bytes], Any],
    arrays: Sequence[ArrayPlan],
    progress: Progress | None,
) -> Generator[tuple[Piece, Bytes, Any], None, None]:
    """Do the work on all pieces with several threads; yield pieces, their bytes, and results.

    `work` is called with a piece and memory for a whole chunk, whose first bytes are then the
    piece's. They are valid until the next ones are asked for.
    """
    largest = max((array.chunk_nbytes for array in arrays if array.nbytes), default=0)
    free: list[Bytes] = []  # used again: fresh pages cost more than decoding into them

    def job(piece: Piece, memory: Bytes) -> tuple[Piece, Bytes, Any]:
        return piece, memory, work(piece, memory[: piece.array.chunk_nbytes])

    done, total = 0, sum(array.nbytes for array in arrays)
    pieces = (piece for array in arrays for piece in array.pieces())
    jobs = (
        partial(job, piece, free.pop() if free else np.empty(largest, np.uint8)) for piece in pieces
    )
    workers = min(worker_count(), max(1, IN_FLIGHT_BYTES // max(1, largest)))
    with closing(run_ahead(jobs, workers)) as results:
        for piece, memory, result in results:
            yield piece, memory[: piece.nbytes], result
            free.append(memory)
            done += piece.nbytes
            if progress is not None:
                progress(done, total)


def encode(
    source: Source,
    writer: StoreWriter,
    plan: ModelPlan,
    keep_checksums: bool,
    progress: Progress | None,
) -> Encoded:
    """Encode all tensors, reading every byte of them once."""
    buffer = ThreadBuffer()

    def work(piece: Piece, chunk: Bytes) -> tuple[int, int | None]:
        data = read_chunk(source.files[piece.array.file], piece, chunk)
        size = 0
        if piece.array.is_written:
            base = plan.read_base(piece, buffer.get(chunk.size)) if piece.array.has_base else None
            size = writer.write(piece, chunk, base)
        return size, _core.checksum(data) if keep_checksums else None

    digests = [hashlib.sha256(file_prefix(file.header)) for file in source.files]
    checksums: dict[tuple[int, int], int] = {}
    stored = 0
    with closing(in_file_order(work, plan.arrays, progress)) as pieces:
        for piece, data, (size, checksum) in pieces:
            digests[piece.array.file].update(data.data)
            stored += size
            if checksum is not None:
                checksums[piece.array.file, piece.offset] = checksum
    return Encoded([digest.hexdigest() for digest in digests], stored, checksums)


def pack(
    source: Source,
    writer: StoreWriter,
    chunk_size: int,
    keep_checksums: bool,
    progress: Progress | None = None,
    encode: Encode = encode,
    base: Base | None = None,
    measure: Measure | None = None,
) -> Packed:
    """Write a model into a store; `encode` writes the tensors, `measure` makes it lossy."""
    before = [file.state() for file in source.files]
    plan = plan_model(
        source, chunk_size, None if base is None else base.model, is_lossy=measure is not None
    )
    measured = None if measure is None else measure(plan)
    if measured is not None:
        plan = measured.plan
    _create(writer, plan)
    stored = [
        _write_bytes(writer, header_path(i), file.header.raw, chunk_size)
        for i, file in enumerate(source.files)
    ]
    encoded = encode(source, writer, plan, keep_checksums, progress)
    for file, state, digest in zip(source.files, before, encoded.digests, strict=True):
        if file.state() != state:
            raise SafetensorsError(f"{file.path}: changed while it was read")
        if file.sha256 not in ("", digest):
            raise CorruptDataError(
                f"{file.path}: {file.name} has another SHA-256 than the original"
            )
    files = _stored_files(source, encoded.digests, measured)
    index = None
    if source.index is not None:
        raw, path = source.index_raw, INDEX_PATH
        stored.append(_write_bytes(writer, path, raw, chunk_size))
        index = StoredFile(source.index.name, len(raw), hashlib.sha256(raw).hexdigest(), path)
    reference = None if base is None else base.reference
    loss = None if measured is None else measured.loss
    info = StoreInfo(files, index, plan.paths, reference, plan.differences, loss=loss)
    stored.append(writer.finish(info))
    stored_nbytes = encoded.stored_nbytes + sum(stored)
    nbytes = source.nbytes + len(source.index_raw)
    return Packed(info, nbytes, stored_nbytes, encoded.checksums)


def _stored_files(
    source: Source, digests: Sequence[str], measured: Measured | None
) -> tuple[StoredFile, ...]:
    files = [
        StoredFile(file.name, file.header.file_size, digest, header_path(i))
        for i, (file, digest) in enumerate(zip(source.files, digests, strict=True))
    ]
    if measured is not None:
        files = [
            replace(file, sha256=original, restored_sha256=file.sha256)
            for file, original in zip(files, measured.digests, strict=True)
        ]
    return tuple(files)


def _create(writer: StoreWriter, plan: ModelPlan) -> None:
    for array in plan.arrays:
        if array.is_written:
            writer.create(array)
    # Where a tensor shares another's array, HDF5 can still have it at the path it would have had.
    for name, path in array_paths(plan.paths).items():
        if path != plan.paths[name] and not plan.paths[name].endswith(ROUNDED):
            writer.share(path, plan.paths[name])


def _write_bytes(writer: StoreWriter, path: str, raw: bytes, chunk_size: int) -> int:
    plan = plan_bytes(path, len(raw), chunk_size)
    writer.create(plan)
    stored = 0
    for piece in plan.pieces():
        chunk = np.zeros(plan.chunk_nbytes, np.uint8)
        chunk[: piece.nbytes] = np.frombuffer(raw, np.uint8, piece.nbytes, piece.offset)
        stored += writer.write(piece, chunk)
    return stored


def unpack(
    reader: StoreReader,
    headers: Sequence[Header],
    consume: Consume,
    check_digests: bool,
    progress: Progress | None = None,
) -> None:
    """Decode a whole store, in the order of the files' bytes.

    Raises
    ------
    CorruptDataError
        If the bytes of a file do not have its SHA-256. All were consumed by then.
    """
    digests = [hashlib.sha256(file_prefix(header)) for header in headers]

    def work(piece: Piece, chunk: Bytes) -> None:
        reader.read(piece, chunk)
        consume(piece.array.file, piece, chunk[: piece.nbytes])

    arrays = stored_arrays(reader, headers)
    with closing(in_file_order(work, arrays, progress)) as pieces:
        for piece, data, _ in pieces:
            if check_digests:
                digests[piece.array.file].update(data.data)
    if check_digests:
        for file, digest in zip(reader.info.files, digests, strict=True):
            if digest.hexdigest() != file.digest:
                what = "the original" if reader.info.loss is None else "when it was stored"
                raise CorruptDataError(
                    f"{reader.where}: {file.name} has another SHA-256 than {what}"
                )


def verify_packed(
    reader: StoreReader,
    headers: Sequence[Header],
    packed: Packed,
    progress: Progress | None = None,
) -> None:
    """Decode a store that was just packed and compare each piece with the source's checksum."""
    remaining = dict(packed.checksums)

    def consume(file: int, piece: Piece, data: Bytes) -> None:
        if remaining.pop((file, piece.offset), None) != _core.checksum(data):
            raise CorruptDataError(f"{reader.where}: {piece.array.path} differs from its source")

    unpack(reader, headers, consume, check_digests=False, progress=progress)
    if remaining:
        raise CorruptDataError(f"{reader.where}: not read back: {counted(len(remaining), 'chunk')}")


#: Encodes all arrays of a source into a writer: `encode`.
Encode = Callable[[Source, Any, ModelPlan, bool, Progress | None], Encoded]
#: Finds out what a lossy store of a plan loses.
Measure = Callable[[ModelPlan], Measured]
#: Compares a store with what was packed into it: `verify_packed`.
Verify = Callable[[StoreReader, Sequence[Header], Packed, Progress | None], None]


@dataclass(frozen=True)
class Engine:
    """Who does the work of a conversion: this process, or a cluster."""

    encode: Encode
    verify: Verify


LOCAL = Engine(encode, verify_packed)
