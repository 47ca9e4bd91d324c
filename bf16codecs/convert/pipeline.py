"""The two directions of a conversion, for every kind of store: pack a model, and unpack it."""

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
from bf16codecs.convert.checks import check_chunk_count, check_unchanged, stored_index
from bf16codecs.convert.damages import NO_DAMAGE
from bf16codecs.convert.pieces import Progress, do_pieces, file_hash, read_chunk
from bf16codecs.convert.plan import ModelPlan, plan_model
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
    "Progress",
    "pack",
    "unpack",
    "verify_packed",
]

#: Called with the file's number, the piece, and its decoded bytes; by several threads.
Consume = Callable[[int, Piece, Bytes], None]
#: Called with an error, and with the piece that it is about if it is not about a whole file.
Failed = Callable[[BF16CodecsError, Piece | None], None]


@dataclass(frozen=True)
class Packed:
    """The result of packing: the store's attributes, sizes, and a checksum of each piece."""

    info: StoreInfo
    nbytes: int
    stored_nbytes: int
    #: By file number and offset; empty if nothing is to be verified.
    checksums: dict[tuple[int, int], int]


@dataclass(frozen=True)
class Encoded:
    """Result of encoding all tensors: digests of each file, stored bytes, checksums by piece."""

    digests: list[Digests]
    stored_nbytes: int
    checksums: dict[tuple[int, int], int]


@dataclass(frozen=True)
class Measured:
    """The measured loss of a lossy store, with its plan and the digests of the original files."""

    plan: ModelPlan
    digests: list[Digests]
    loss: HalfLoss


def encode(
    source: ModelReader,
    writer: ModelWriter,
    plan: ModelPlan,
    kinds: Sequence[str],
    keep_checksums: bool,
    progress: Progress | None,
) -> Encoded:
    """Encode all tensors, reading every byte of them once."""
    buffer = ThreadBuffer()

    def work(piece: Piece, chunk: Bytes) -> tuple[int, int | None]:
        data = read_chunk(source, piece, chunk)
        size = 0
        if piece.array.is_written:
            base = plan.read_base(piece, buffer.get(chunk.size)) if piece.array.has_base else None
            size = writer.write(piece, chunk, base)
        return size, _core.checksum(data) if keep_checksums else None

    hashes = [file_hash(header, kinds) for header in source.headers]
    checksums: dict[tuple[int, int], int] = {}
    stored = 0
    with closing(do_pieces(work, plan.arrays, hashes, progress)) as pieces:
        for piece, (size, checksum) in pieces:
            stored += size
            if checksum is not None:
                checksums[piece.array.file, piece.offset] = checksum
    return Encoded([own.digests() for own in hashes], stored, checksums)


def pack(
    source: ModelReader,
    writer: ModelWriter,
    kinds: Sequence[str],
    *,
    chunk_size: int,
    keep_checksums: bool,
    progress: Progress | None,
    engine: Engine,
    base: Base | None,
    measure: Measure | None,
    levels: Mapping[str, str],
) -> Packed:
    """Write a model into a store, with digests of these kinds.

    `measure` makes the store lossy. `levels` are those of tensors that are coded at another than
    the writer's.
    """
    before = source.state()
    on = None if base is None else base.model
    plan = plan_model(source, chunk_size, on, measure is not None, levels)
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
    for file, digests in zip(source.info.files, encoded.digests, strict=True):
        other = file.digests.difference(digests)
        if other is not None:
            raise CorruptDataError(
                f"{source.where}: {file.name} has another {other[0]} than the original"
            )
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
        StoredFile(file.name, file.size, own, header_path(i))
        for i, (file, own) in enumerate(zip(source.info.files, digests, strict=True))
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
    # Where a tensor shares another's array, HDF5 can still have it at the path it would have had.
    for name, path in array_paths(plan.paths).items():
        if path != plan.paths[name] and not plan.paths[name].endswith(ROUNDED):
            writer.share(path, plan.paths[name])


def unpack(
    reader: ModelReader,
    headers: Sequence[Header],
    consume: Consume,
    expected: Sequence[Digests],
    progress: Progress | None = None,
    failed: Failed | None = None,
) -> None:
    """Decode a whole store, each file in the order of its bytes.

    With `failed`, which the calling thread calls, damage is told there, and the rest goes on.

    Raises
    ------
    CorruptDataError
        If a file's bytes do not have the digests that are expected, if there are some for each
        file. All were consumed by then.
    """
    hashes = [
        file_hash(header, own.kinds)
        for own, header in zip(expected, headers, strict=bool(expected))
    ]

    def work(piece: Piece, chunk: Bytes) -> BF16CodecsError | None:
        try:
            reader.read(piece, chunk)
        except OSError as e:
            if not is_on_disk or _is_of_process(e):
                raise  # what fails so would do so for each chunk
            return StoreError(one_line(e))
        except BF16CodecsError as e:
            if failed is None or isinstance(e, NO_DAMAGE):
                raise
            return e
        consume(piece.array.file, piece, chunk[: piece.nbytes])
        return None

    is_on_disk = failed is not None and bool(path_of(reader.location[0]))
    arrays, damaged = stored_arrays(reader, headers), set[int]()
    with closing(do_pieces(work, arrays, hashes, progress)) as pieces:
        for piece, error in pieces:
            if error is not None and failed is not None:
                damaged.add(piece.array.file)
                failed(error, piece)
    files = zip(reader.info.files, expected, hashes, strict=bool(expected))
    for number, (file, own, found) in enumerate(files):
        if number in damaged:  # of what was hashed, a part was not the file's
            continue
        other = own.difference(found.digests())
        if other is not None:
            what = "the original" if reader.info.loss is None else "when it was stored"
            text = f"{reader.where}: {file.name} has another {other[0]} than {what}"
            if failed is None:
                raise CorruptDataError(text)
            failed(CorruptDataError(text), None)


def _is_of_process(error: OSError) -> bool:
    """Tell whether an error is that no more files may be opened, which says nothing of a store."""
    return any(getattr(own, "errno", None) in (errno.EMFILE, errno.ENFILE) for own in causes(error))


def verify_packed(
    reader: ModelReader,
    headers: Sequence[Header],
    packed: Packed,
    progress: Progress | None = None,
) -> None:
    """Decode a store that was just packed and compare each piece with the source's checksum."""
    remaining = dict(packed.checksums)

    def consume(file: int, piece: Piece, data: Bytes) -> None:
        if remaining.pop((file, piece.offset), None) != _core.checksum(data):
            raise CorruptDataError(f"{reader.label(piece.array.path)} differs from its source")

    unpack(reader, headers, consume, [], progress)
    if remaining:
        raise CorruptDataError(f"{reader.where}: not read back: {counted(len(remaining), 'chunk')}")


#: Encodes all arrays of a source into a writer: `encode`.
Encode = Callable[[ModelReader, Any, ModelPlan, Sequence[str], bool, Progress | None], Encoded]
#: Finds out what a lossy store of a plan loses.
Measure = Callable[[ModelPlan], Measured]
#: Compares a store with what was packed into it: `verify_packed`.
Verify = Callable[[ModelReader, Sequence[Header], Packed, Progress | None], None]


@dataclass(frozen=True)
class Engine:
    """Who does the work of a conversion: this process, or a cluster."""

    encode: Encode
    verify: Verify


LOCAL = Engine(encode, verify_packed)
