"""Models whose FP32 tensors are rounded to float16."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from bf16codecs._arrays.grid import Piece
from bf16codecs._base.arguments import argument
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.half import HalfLoss, from_half, to_half
from bf16codecs.convert.checks import stored_index
from bf16codecs.convert.packing import Measured
from bf16codecs.convert.pieces import all_pieces, file_hash, read_pieces
from bf16codecs.convert.plan import ModelPlan, is_convertible
from bf16codecs.convert.summary import BytesDone
from bf16codecs.safetensors import Header
from bf16codecs.store.attributes import loss_entry
from bf16codecs.store.files import FilesReader, ModelFile, ReadBytes
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.objects import read_parts
from bf16codecs.store.reader import ModelReader

__all__ = ["half_source", "measure_loss"]


def half_source(source: ModelReader) -> FilesReader:
    """Return a model with its FP32 tensors rounded to float16, as a lossy store restores it.

    The result reads from `source`. Raises ValueError if that has no FP32 tensor.
    """
    if not any(is_convertible(t) for header in source.headers for t in header.tensors):
        raise ValueError(
            f"{source.file_path(0)}: has no FP32 tensor, and a lossy store converts no others:"
            f" leave out {argument('lossy')}"
        )
    files = [
        ModelFile(stored.name, header, _half_content(source, i, header), source.file_path(i))
        for i, (stored, header) in enumerate(zip(source.info.files, source.headers, strict=True))
    ]
    index = source.info.index
    return FilesReader(
        source.where,
        files,
        source.limits,
        index=None if index is None else (index.name, stored_index(source)),
        checkpoint=read_parts(source),
        paths=source.paths,
        left_out=source.left_out,
        concurrency=source.stored.concurrency,
        state=source.state,
    )


def _half_content(source: ModelReader, file: int, header: Header) -> ReadBytes:
    """Return the content of a file with its FP32 numbers rounded to float16."""
    # Offsets of the FP32 tensors, ascending.
    wide = [tensor for tensor in header.tensors if is_convertible(tensor)]
    starts = [header.data_start + tensor.start for tensor in wide]
    stops = [start + tensor.nbytes for start, tensor in zip(starts, wide, strict=True)]

    def read(offset: int, out: Bytes) -> None:
        source.read_range(file, offset, out)
        end = offset + out.size
        first, last = bisect_right(stops, offset), bisect_left(starts, end)
        for start, stop in zip(starts[first:last], stops[first:last], strict=True):
            values = out[max(start, offset) - offset : min(stop, end) - offset].view("<f4")
            values[:] = from_half(to_half(values))

    return ReadBytes(read, header.file_size)


def measure_loss(
    source: ModelReader,
    kinds: Sequence[str],
    progress: BytesDone | None,
    plan: ModelPlan,
) -> Measured:
    """Read a whole model to measure its loss before conversion, with its files' digests `kinds`."""
    hashes = [file_hash(header, kinds) for header in source.headers]
    # By path: tensors that share an array have one loss.
    losses: dict[str, HalfLoss] = {}

    def work(piece: Piece, chunk: Bytes) -> HalfLoss | None:
        if not piece.array.is_lossy:
            return None
        numbers = chunk[: piece.nbytes].view("<f4")
        return HalfLoss.of(numbers, to_half(numbers))

    with closing(read_pieces(source, work, all_pieces(plan.arrays), hashes, progress)) as pieces:
        for piece, loss in pieces:
            if loss is not None:
                path = piece.array.path
                losses[path] = losses.get(path, HalfLoss()).joined(loss)
    total = HalfLoss()
    for loss in losses.values():
        total = total.joined(loss)
    return Measured(_with_losses(plan, losses), [hasher.digests() for hasher in hashes], total)


def _with_losses(plan: ModelPlan, losses: Mapping[str, HalfLoss]) -> ModelPlan:
    """Return a plan whose arrays have their losses as attributes."""
    arrays = []
    for array in plan.arrays:
        if array.is_lossy:
            entry = loss_entry(losses.get(array.path, HalfLoss()))
            attributes = {**array.attributes[ATTRIBUTES_KEY], "lossy": entry}
            array = replace(array, attributes={ATTRIBUTES_KEY: attributes})
        arrays.append(array)
    return replace(plan, arrays=arrays)
