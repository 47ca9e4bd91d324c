"""The two directions of a conversion, for every kind of store: pack a model, or unpack a store."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from bf16codecs import _core
from bf16codecs._arrays.grid import Piece
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.half import HalfLoss
from bf16codecs._base.messages import causes, counted, one_line
from bf16codecs._files.digests import Digests
from bf16codecs.convert.bases import Base
from bf16codecs.convert.checks import (
    check_chunk_count,
    check_digests,
    check_unchanged,
    stored_index,
)
from bf16codecs.convert.damages import NO_DAMAGE
from bf16codecs.convert.pieces import do_pieces, file_hash, read_pieces
from bf16codecs.convert.plan import ModelPlan, plan_model
from bf16codecs.convert.summary import BytesDone
from bf16codecs.errors import BF16CodecsError, CorruptDataError, StoreError
from bf16codecs.safetensors import Header
from bf16codecs.store.attributes import ROUNDED, StoredFile
from bf16codecs.store.kinds import path_of
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.objects import read_parts
from bf16codecs.store.paths import array_paths
from bf16codecs.store.plan import INDEX_PATH, header_path
from bf16codecs.store.reader import ModelReader, stored_arrays
from bf16codecs.store.writer import ModelWriter, write_bytes, write_checkpoint

__all__ = [
    "LOCAL",
    "Encoded",
    "Engine",
    "Measure",
    "Measured",
    "Packed",
    "pack",
    "unpack",
    "verify_packed",
]

#: Called by several threads with a piece, its decoded bytes, and its bytes in the original model,
#: if that was given.
Consume = Callable[[Piece, Bytes, Bytes | None], None]
#: Called with an error, and with the damaged piece, None if the error concerns a whole file.
Failed = Callable[[BF16CodecsError, Piece | None], None]


@dataclass(frozen=True)
class Packed:
    """Result of packing: the store's attributes, sizes, and checksums of the pieces."""

    info: StoreInfo
    nbytes: int
    stored_nbytes: int
    #: By number of the file and offset in it; empty without verification.
    checksums: dict[tuple[int, int], int]


@dataclass(frozen=True)
class Encoded:
    """Result of encoding all tensors: digests of the files, stored bytes, checksums of pieces."""

    digests: list[Digests]
    stored_nbytes: int
    checksums: dict[tuple[int, int], int]


@dataclass(frozen=True)
class Measured:
    """Measured loss of a lossy store, with its plan and the digests of the original files."""

    plan: ModelPlan
    digests: list[Digests]
    loss: HalfLoss


def encode(
    source: ModelReader,
    writer: ModelWriter,
    plan: ModelPlan,
    kinds: Sequence[str],
    keep_checksums: bool,
    progress: BytesDone | None,
) -> Encoded:
    """Encode all tensors, and read every byte of them once."""
    buffer = ThreadBuffer()

    def work(piece: Piece, chunk: Bytes) -> tuple[int, int | None]:
        size = 0
        if piece.array.is_written:
            base = plan.read_base(piece, buffer.get(chunk.size)) if piece.array.has_base else None
            size = writer.write(piece, chunk, base)
        return size, _core.checksum(chunk[: piece.nbytes]) if keep_checksums else None

    hashes = [file_hash(header, kinds) for header in source.headers]
    checksums: dict[tuple[int, int], int] = {}
    stored = 0
    at_once = writer.concurrency
    with closing(read_pieces(source, work, plan.arrays, hashes, progress, at_once)) as pieces:
        for piece, (size, checksum) in pieces:
            stored += size
            if checksum is not None:
                checksums[piece.array.file, piece.offset] = checksum
    return Encoded([hasher.digests() for hasher in hashes], stored, checksums)


def pack(
    source: ModelReader,
    writer: ModelWriter,
    kinds: Sequence[str],
    *,
    chunk_size: int,
    keep_checksums: bool,
    progress: BytesDone | None,
    engine: Engine,
    base: Base | None,
    measure: Measure | None,
    levels: Mapping[str, str],
) -> Packed:
    """Write a model into a store, with digests of these kinds.

    `measure` makes the store lossy. `levels` override the writer's level for some tensors.
    """
    before = source.opened_state()
    base_model = None if base is None else base.model
    plan = plan_model(source, chunk_size, base_model, measure is not None, levels)
    plan = plan.with_differences_below(writer.difference_folder)
    check_chunk_count((array for array in plan.arrays if array.is_written), chunk_size)
    measured = None if measure is None else measure(plan)
    if measured is not None:
        plan = measured.plan
    _create(writer, plan)
    stored = [
        write_bytes(writer, header_path(i), header.raw, chunk_size)
        for i, header in enumerate(source.headers)
    ]
    encoded = engine.encode(source, writer, plan, kinds, keep_checksums, progress)
    check_unchanged(source, before)
    check_digests(source, encoded.digests)
    files = _stored_files(source, encoded.digests, measured)
    index, raw = None, stored_index(source)
    if source.info.index is not None:
        stored.append(write_bytes(writer, INDEX_PATH, raw, chunk_size))
        name = source.info.index.name
        index = StoredFile(name, len(raw), Digests.of(raw, kinds), INDEX_PATH)
    checkpoint, parts = None, read_parts(source)
    if parts is not None:
        checkpoint, nbytes = write_checkpoint(writer, *parts, chunk_size)
        stored.append(nbytes)
    reference = None if base is None else base.reference
    loss = None if measured is None else measured.loss
    info = StoreInfo(files, index, plan.paths, reference, plan.differences, None, loss, checkpoint)
    stored.append(writer.finish(info))
    stored_nbytes = encoded.stored_nbytes + sum(stored)
    nbytes = sum(header.file_size for header in source.headers) + len(raw)
    return Packed(info, nbytes, stored_nbytes, encoded.checksums)


def _stored_files(
    source: ModelReader, digests: Sequence[Digests], measured: Measured | None
) -> tuple[StoredFile, ...]:
    files = [
        StoredFile(file.name, file.size, file_digests, header_path(i), kind=file.kind)
        for i, (file, file_digests) in enumerate(zip(source.info.files, digests, strict=True))
    ]
    if measured is not None:
        files = [
            replace(file, digests=original, restored_digests=file.digests)
            for file, original in zip(files, measured.digests, strict=True)
        ]
    return tuple(files)


def _create(writer: ModelWriter, plan: ModelPlan) -> None:
    for array in plan.arrays:
        if array.is_written:
            writer.create(array)
    # In HDF5, a tensor that shares another's array gets a link at the path of an array of its own.
    for name, path in array_paths(plan.paths).items():
        if path != plan.paths[name] and not plan.paths[name].endswith(ROUNDED):
            writer.share(path, plan.paths[name])


def unpack(
    reader: ModelReader,
    headers: Sequence[Header],
    consume: Consume,
    expected: Sequence[Digests],
    progress: BytesDone | None = None,
    failed: Failed | None = None,
    original: ModelReader | None = None,
) -> None:
    """Decode a whole store, each file in the order of its bytes, and read `original` beside it.

    The calling thread passes damage to `failed`, and the rest is decoded; without `failed`, damage
    is raised. `expected` has the digests of each file, or is empty. Raises CorruptDataError if a
    file's digests differ, after all of it was consumed.
    """
    hashes = [
        file_hash(header, digests.kinds)
        for digests, header in zip(expected, headers, strict=bool(expected))
    ]

    def work(piece: Piece, chunk: Bytes, copy: Bytes | None) -> BF16CodecsError | None:
        try:
            reader.read(piece, chunk)
        except OSError as e:
            if not is_on_disk or _is_of_process(e):
                raise  # every other chunk would fail alike
            return StoreError(one_line(e))
        except BF16CodecsError as e:
            if failed is None or isinstance(e, NO_DAMAGE):
                raise
            return e
        consume(piece, chunk[: piece.nbytes], copy)
        return None

    is_on_disk = failed is not None and bool(path_of(reader.location[0]))
    arrays, damaged = stored_arrays(reader, headers), set[int]()
    at_once = reader.stored.concurrency
    with closing(do_pieces(work, arrays, hashes, progress, at_once, original)) as pieces:
        for piece, error in pieces:
            if error is not None and failed is not None:
                damaged.add(piece.array.file)
                failed(error, piece)
    files = zip(reader.info.files, expected, hashes, strict=bool(expected))
    for number, (file, digests, hasher) in enumerate(files):
        if number in damaged:  # the hash lacks what could not be decoded
            continue
        difference = digests.difference(hasher.digests())
        if difference is not None:
            then = "the original" if reader.info.loss is None else "when it was stored"
            text = f"{reader.where}: {file.name} has another {difference[0]} than {then}"
            if failed is None:
                raise CorruptDataError(text)
            failed(CorruptDataError(text), None)


def _is_of_process(error: OSError) -> bool:
    """Return whether the process ran out of open files, which is no fault of the store."""
    limits = (errno.EMFILE, errno.ENFILE)
    return any(getattr(cause, "errno", None) in limits for cause in causes(error))


def verify_packed(
    reader: ModelReader,
    headers: Sequence[Header],
    packed: Packed,
    progress: BytesDone | None = None,
) -> None:
    """Decode a new store, and compare each piece with the checksum of its source."""
    remaining = dict(packed.checksums)

    def consume(piece: Piece, data: Bytes, _: Bytes | None) -> None:
        if remaining.pop((piece.array.file, piece.offset), None) != _core.checksum(data):
            raise CorruptDataError(f"{reader.label(piece.array.path)} differs from its source")

    unpack(reader, headers, consume, [], progress)
    if remaining:
        raise CorruptDataError(f"{reader.where}: not read back: {counted(len(remaining), 'chunk')}")


#: Encodes all arrays of a source into a writer: `encode`.
Encode = Callable[[ModelReader, Any, ModelPlan, Sequence[str], bool, BytesDone | None], Encoded]
#: Measures the loss of a lossy store.
Measure = Callable[[ModelPlan], Measured]
#: Compares a store with what was packed into it: `verify_packed`.
Verify = Callable[[ModelReader, Sequence[Header], Packed, BytesDone | None], None]


@dataclass(frozen=True)
class Engine:
    """The functions that do the work of a conversion, in this process or on a cluster."""

    encode: Encode
    verify: Verify


LOCAL = Engine(encode, verify_packed)
