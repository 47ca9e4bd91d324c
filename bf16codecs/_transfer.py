"""The two directions of a conversion, whatever the store: pack a model, unpack it again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._chunks import Piece
from bf16codecs._paths import RESERVED_ROOT
from bf16codecs._pipeline import Turns, run_jobs
from bf16codecs.errors import CorruptDataError
from bf16codecs.safetensors import Header, SafetensorsError, Source, SourceFile
from bf16codecs.store import (
    StoredFile,
    StoreInfo,
    StoreReader,
    StoreWriter,
    plan_arrays,
    plan_bytes,
    stored_arrays,
)

__all__ = ["Packed", "file_prefix", "pack", "read_piece", "unpack", "verify_packed"]

#: Called with the bytes done so far and the bytes in all.
Progress = Callable[[int, int], None]
#: What is done with each decoded piece; several threads call it.
Consume = Callable[[int, Piece, NDArray[np.uint8]], None]


def file_prefix(header: Header) -> bytes:
    """Return what a file has before its data."""
    return len(header.raw).to_bytes(8, "little") + header.raw


def read_piece(file: SourceFile, piece: Piece, out: NDArray[np.uint8]) -> None:
    """Read a piece's bytes from its safetensors file."""
    # Not mapped into memory: mapped pages would count as this process's memory.
    with open(file.path, "rb", buffering=0) as source:
        source.seek(piece.offset)
        done = 0
        while done < out.size:
            count = source.readinto(out[done:].data)
            if not count:
                raise SafetensorsError(f"{file.path}: truncated while it was read")
            done += count


@dataclass(frozen=True)
class Packed:
    """What was packed: the store's attributes, sizes, and a checksum of each piece."""

    info: StoreInfo
    nbytes: int
    stored_nbytes: int
    #: By file and offset; empty if there is nothing to be verified.
    checksums: dict[tuple[int, int], int]


def pack(
    source: Source,
    writer: StoreWriter,
    chunk_size: int,
    keep_checksums: bool,
    progress: Progress | None = None,
) -> Packed:
    """Write a model into a store, reading every byte of it once."""
    paths, arrays = plan_arrays(source, chunk_size)
    for array in arrays:
        writer.create(array)
    stored = [
        _write_bytes(writer, _header_path(i), file.header.raw, chunk_size)
        for i, file in enumerate(source.files)
    ]
    before = [_identity(file.path) for file in source.files]
    digests = [hashlib.sha256(file_prefix(file.header)) for file in source.files]
    pieces = (piece for array in arrays for piece in array.pieces())
    largest = max((array.chunk_nbytes for array in arrays if array.nbytes), default=0)
    checksums: dict[tuple[int, int], int] = {}
    turns = Turns()

    def make_worker() -> Callable[[int, Piece], int]:
        buffer = np.empty(largest, np.uint8)

        def work(number: int, piece: Piece) -> int:
            chunk = buffer[: piece.array.chunk_nbytes]
            data, padding = chunk[: piece.nbytes], chunk[piece.nbytes :]
            read_piece(source.files[piece.array.file], piece, data)
            padding.view(piece.array.dtype)[:] = piece.array.fill_value
            if keep_checksums:
                checksums[piece.array.file, piece.offset] = _core.checksum(data)
            with turns.turn(number):
                digests[piece.array.file].update(data.data)
            stored.append(writer.write(piece, chunk))
            return piece.nbytes

        return work

    total = sum(array.nbytes for array in arrays)
    run_jobs(pieces, make_worker, turns, progress and (lambda done: progress(done, total)))
    for file, identity in zip(source.files, before, strict=True):
        if _identity(file.path) != identity:
            raise SafetensorsError(f"{file.path}: changed while it was read")
    files = tuple(
        StoredFile(file.name, file.header.file_size, digest.hexdigest(), _header_path(i))
        for i, (file, digest) in enumerate(zip(source.files, digests, strict=True))
    )
    index = None
    if source.index is not None:
        raw, path = source.index_raw, f"{RESERVED_ROOT}/index"
        stored.append(_write_bytes(writer, path, raw, chunk_size))
        index = StoredFile(source.index.name, len(raw), hashlib.sha256(raw).hexdigest(), path)
    info = StoreInfo(files, index, paths)
    stored.append(writer.finish(info))
    return Packed(info, source.nbytes + len(source.index_raw), sum(stored), checksums)


def _header_path(number: int) -> str:
    return f"{RESERVED_ROOT}/header/{number}"


def _identity(path: Path) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


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
