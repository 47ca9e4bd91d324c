"""The two directions of a conversion, whatever the store: pack a model, unpack it again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._chunks.grid import ArrayPlan, Piece
from bf16codecs._threads import Turns, run_jobs
from bf16codecs.errors import CorruptDataError, SafetensorsError
from bf16codecs.safetensors import Header, Source, SourceFile
from bf16codecs.store.layout import (
    StoredFile,
    StoreInfo,
    StoreReader,
    StoreWriter,
    plan_arrays,
    plan_bytes,
    stored_arrays,
)
from bf16codecs.store.paths import RESERVED_ROOT

__all__ = [
    "LOCAL",
    "Encoded",
    "Engine",
    "Packed",
    "Progress",
    "file_prefix",
    "pack",
    "read_chunk",
    "unpack",
    "verify_packed",
]

#: Called with the bytes done so far and the bytes in all.
Progress = Callable[[int, int], None]
#: What is done with each decoded piece; several threads call it.
Consume = Callable[[int, Piece, NDArray[np.uint8]], None]


def file_prefix(header: Header) -> bytes:
    """Return what a file has before its data."""
    return len(header.raw).to_bytes(8, "little") + header.raw


def read_chunk(file: SourceFile, piece: Piece, chunk: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Read a chunk from its safetensors file, fill up its padding, and return what was read."""
    data, padding = chunk[: piece.nbytes], chunk[piece.nbytes :]
    file.read_into(piece.offset, data)
    padding.view(piece.array.dtype)[:] = piece.array.fill_value
    return data


@dataclass(frozen=True)
class Packed:
    """What was packed: the store's attributes, sizes, and a checksum of each piece."""

    info: StoreInfo
    nbytes: int
    stored_nbytes: int
    #: By file and offset; empty if there is nothing to be verified.
    checksums: dict[tuple[int, int], int]


@dataclass(frozen=True)
class Encoded:
    """What encoding all tensors gave: SHA-256 of each file, stored size, checksums by piece."""

    digests: list[str]
    stored_nbytes: int
    checksums: dict[tuple[int, int], int]


def encode(
    source: Source,
    writer: StoreWriter,
    arrays: Sequence[ArrayPlan],
    keep_checksums: bool,
    progress: Progress | None,
) -> Encoded:
    """Encode all tensors, reading every byte of them once."""
    digests = [hashlib.sha256(file_prefix(file.header)) for file in source.files]
    pieces = (piece for array in arrays for piece in array.pieces())
    largest = max((array.chunk_nbytes for array in arrays if array.nbytes), default=0)
    checksums: dict[tuple[int, int], int] = {}
    stored: list[int] = []
    turns = Turns()

    def make_worker() -> Callable[[int, Piece], int]:
        buffer = np.empty(largest, np.uint8)

        def work(number: int, piece: Piece) -> int:
            chunk = buffer[: piece.array.chunk_nbytes]
            data = read_chunk(source.files[piece.array.file], piece, chunk)
            if keep_checksums:
                checksums[piece.array.file, piece.offset] = _core.checksum(data)
            with turns.turn(number):
                digests[piece.array.file].update(data.data)
            stored.append(writer.write(piece, chunk))
            return piece.nbytes

        return work

    total = sum(array.nbytes for array in arrays)
    run_jobs(pieces, make_worker, turns, progress and (lambda done: progress(done, total)))
    return Encoded([digest.hexdigest() for digest in digests], sum(stored), checksums)


def pack(
    source: Source,
    writer: StoreWriter,
    chunk_size: int,
    keep_checksums: bool,
    progress: Progress | None = None,
    encode: Encode = encode,
) -> Packed:
    """Write a model into a store; `encode` does so with the tensors."""
    paths, arrays = plan_arrays(source, chunk_size)
    for array in arrays:
        writer.create(array)
    stored = [
        _write_bytes(writer, _header_path(i), file.header.raw, chunk_size)
        for i, file in enumerate(source.files)
    ]
    before = [file.state() for file in source.files]
    encoded = encode(source, writer, arrays, keep_checksums, progress)
    for file, state in zip(source.files, before, strict=True):
        if file.state() != state:
            raise SafetensorsError(f"{file.path}: changed while it was read")
    files = tuple(
        StoredFile(file.name, file.header.file_size, digest, _header_path(i))
        for i, (file, digest) in enumerate(zip(source.files, encoded.digests, strict=True))
    )
    index = None
    if source.index is not None:
        raw, path = source.index_raw, f"{RESERVED_ROOT}/index"
        stored.append(_write_bytes(writer, path, raw, chunk_size))
        index = StoredFile(source.index.name, len(raw), hashlib.sha256(raw).hexdigest(), path)
    info = StoreInfo(files, index, paths)
    stored.append(writer.finish(info))
    stored_nbytes = encoded.stored_nbytes + sum(stored)
    nbytes = source.nbytes + len(source.index_raw)
    return Packed(info, nbytes, stored_nbytes, encoded.checksums)


def _header_path(number: int) -> str:
    return f"{RESERVED_ROOT}/header/{number}"


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
        If a file's bytes, all of which were consumed by then, do not have its digest.
    """
    arrays = stored_arrays(reader, headers)
    pieces = (piece for array in arrays for piece in array.pieces())
    largest = max((array.chunk_nbytes for array in arrays if array.nbytes), default=0)
    digests = [hashlib.sha256(file_prefix(header)) for header in headers]
    turns = Turns()

    def make_worker() -> Callable[[int, Piece], int]:
        buffer = np.empty(largest, np.uint8)

        def work(number: int, piece: Piece) -> int:
            chunk = buffer[: piece.array.chunk_nbytes]
            reader.read(piece, chunk)
            data = chunk[: piece.nbytes]
            consume(piece.array.file, piece, data)
            if check_digests:
                with turns.turn(number):
                    digests[piece.array.file].update(data.data)
            return piece.nbytes

        return work

    total = sum(array.nbytes for array in arrays)
    run_jobs(pieces, make_worker, turns, progress and (lambda done: progress(done, total)))
    if check_digests:
        for file, digest in zip(reader.info.files, digests, strict=True):
            if digest.hexdigest() != file.sha256:
                raise CorruptDataError(
                    f"{reader.where}: {file.name} is restored with another SHA-256 than it had"
                )


def verify_packed(
    reader: StoreReader,
    headers: Sequence[Header],
    packed: Packed,
    progress: Progress | None = None,
) -> None:
    """Decode a store that was just packed and compare each piece with the source's checksum."""
    remaining = dict(packed.checksums)

    def consume(file: int, piece: Piece, data: NDArray[np.uint8]) -> None:
        if remaining.pop((file, piece.offset), None) != _core.checksum(data):
            raise CorruptDataError(f"{reader.where}: {piece.array.path} differs from its source")

    unpack(reader, headers, consume, check_digests=False, progress=progress)
    if remaining:
        raise CorruptDataError(f"{reader.where}: {len(remaining)} chunks were not read back")


#: Encodes all arrays of a source into a writer: `encode`.
Encode = Callable[[Source, Any, Sequence[ArrayPlan], bool, Progress | None], Encoded]
#: Compares a store with what was packed into it: `verify_packed`.
Verify = Callable[[StoreReader, Sequence[Header], Packed, Progress | None], None]


@dataclass(frozen=True)
class Engine:
    """What does the work of a conversion: this process, or many."""

    encode: Encode
    verify: Verify


LOCAL = Engine(encode, verify_packed)
