"""Pack a model into a store of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bf16codecs._base.half import HalfLoss
from bf16codecs._files.digests import Digests
from bf16codecs.convert.bases import Base
from bf16codecs.convert.checks import (
    check_chunk_count,
    check_digests,
    check_unchanged,
    stored_index,
)
from bf16codecs.convert.encoding import encode
from bf16codecs.convert.plan import ModelPlan, plan_model
from bf16codecs.convert.summary import BytesDone
from bf16codecs.store.attributes import ROUNDED, StoredFile
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.objects import read_parts
from bf16codecs.store.paths import array_paths
from bf16codecs.store.plan import INDEX_PATH, header_path
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.writer import ModelWriter, write_bytes, write_checkpoint

__all__ = ["Measure", "Measured", "Packed", "pack"]


@dataclass(frozen=True)
class Packed:
    """Result of packing: the store's attributes, sizes, and checksums of the pieces."""

    info: StoreInfo
    nbytes: int
    stored_nbytes: int
    #: By number of the file and offset in it; empty without verification.
    checksums: dict[tuple[int, int], int]


@dataclass(frozen=True)
class Measured:
    """Measured loss of a lossy store, with its plan and the digests of the original files."""

    plan: ModelPlan
    digests: list[Digests]
    loss: HalfLoss


#: Measures the loss of a lossy store.
Measure = Callable[[ModelPlan], Measured]


def pack(
    source: ModelReader,
    writer: ModelWriter,
    kinds: Sequence[str],
    *,
    chunk_size: int,
    keep_checksums: bool,
    progress: BytesDone | None,
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
    encoded = encode(source, writer, plan, base_model, kinds, keep_checksums, progress)
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
