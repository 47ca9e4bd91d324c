"""Models whose FP32 tensors lose what float16 has no room for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.grid import Piece
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.half import HalfLoss, from_half, to_half
from bf16codecs.convert.pieces import do_pieces, file_hash, read_chunk
from bf16codecs.convert.pipeline import Measured
from bf16codecs.convert.plan import ModelPlan, is_convertible
from bf16codecs.safetensors import Source, SourceFile
from bf16codecs.store.attributes import loss_entry
from bf16codecs.store.layout import ATTRIBUTES_KEY

__all__ = ["half_source", "measure_loss"]


@dataclass(frozen=True)
class _HalfFile(SourceFile):
    """A file whose FP32 numbers are read as float16 has them."""

    original: SourceFile
    #: Where its FP32 tensors begin and end, ascending.
    starts: tuple[int, ...]
    stops: tuple[int, ...]

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return self.original.name

    def state(self) -> Any:
        """Return something that differs once the file has changed."""
        return self.original.state()

    def read_into(self, offset: int, out: NDArray[np.uint8]) -> None:
        """Read bytes of the file from `offset` on; of FP32 tensors, whole numbers."""
        self.original.read_into(offset, out)
        end = offset + out.size
        first, last = bisect_right(self.stops, offset), bisect_left(self.starts, end)
        for start, stop in zip(self.starts[first:last], self.stops[first:last], strict=True):
            values = out[max(start, offset) - offset : min(stop, end) - offset].view("<f4")
            values[:] = from_half(to_half(values))


def half_source(source: Source) -> Source:
    """Return a model as a lossy store of it restores it.

    Parameters
    ----------
    source
        The model. Its files are read when that one's are.

    Raises
    ------
    ValueError
        If it has no FP32 tensor.
    """
    files = tuple(map(_half_file, source.files))
    if not any(file.starts for file in files):
        names = " and ".join(str(file.path) for file in source.files[:1])
        raise ValueError(
            f"{names}: has no FP32 tensor, and a lossy store converts no others: convert it"
            " without lossy"
        )
    return replace(source, files=files)


def _half_file(file: SourceFile) -> _HalfFile:
    wide = [tensor for tensor in file.header.tensors if is_convertible(tensor)]
    starts = tuple(file.header.data_start + tensor.start for tensor in wide)
    stops = tuple(start + tensor.nbytes for start, tensor in zip(starts, wide, strict=True))
    return _HalfFile(file.path, file.header, file, starts, stops)


def measure_loss(
    source: Source,
    kinds: Sequence[str],
    progress: Callable[[int, int], None] | None,
    plan: ModelPlan,
) -> Measured:
    """Find out what a model loses, before it is converted.

    Parameters
    ----------
    source
        The original model: all of it is read.
    kinds
        Digests of its files to compute.
    progress
        Called with the bytes done and all bytes.
    plan
        Of its lossy store.
    """
    hashes = [file_hash(file.header, kinds) for file in source.files]
    # Of those that share an array, together.
    losses: dict[str, HalfLoss] = {}

    def work(piece: Piece, chunk: Bytes) -> HalfLoss | None:
        values = read_chunk(source.files[piece.array.file], piece, chunk)
        if not piece.array.is_lossy:
            return None
        numbers = values.view("<f4")
        return HalfLoss.of(numbers, to_half(numbers))

    with closing(do_pieces(work, plan.arrays, hashes, progress)) as pieces:
        for piece, loss in pieces:
            if loss is not None:
                path = piece.array.path
                losses[path] = losses.get(path, HalfLoss()).joined(loss)
    total = HalfLoss()
    for loss in losses.values():
        total = total.joined(loss)
    return Measured(_noted(plan, losses), [own.digests() for own in hashes], total)


def _noted(plan: ModelPlan, losses: Mapping[str, HalfLoss]) -> ModelPlan:
    """Return a plan whose arrays say what they lose."""
    arrays = []
    for array in plan.arrays:
        if array.is_lossy:
            entry = loss_entry(losses.get(array.path, HalfLoss()))
            own = {**array.attributes[ATTRIBUTES_KEY], "lossy": entry}
            array = replace(array, attributes={ATTRIBUTES_KEY: own})
        arrays.append(array)
    return replace(plan, arrays=arrays)
