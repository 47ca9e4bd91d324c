"""What becomes of a model's tensors in a store: arrays, differences, or nothing at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from bf16codecs._arrays.bases import RangeReader
from bf16codecs._arrays.grid import ArrayPlan, Piece
from bf16codecs._base.buffers import Bytes
from bf16codecs.convert.repeated import find_repeated
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import TensorInfo
from bf16codecs.store.attributes import ROUNDED, Difference
from bf16codecs.store.plan import array_form, plan_arrays, with_others
from bf16codecs.store.reader import ModelReader

__all__ = ["ModelPlan", "NoCommonTensorError", "is_convertible", "plan_model"]


class NoCommonTensorError(StoreError):
    """A model and its base have no tensor of the same name, dtype and shape."""


@dataclass(frozen=True)
class ModelPlan:
    """Paths of all tensors, arrays in the order of their data, and which of them are differences.

    Attributes
    ----------
    paths : mapping
        By tensor, as `StoreInfo` has them.
    arrays : list of ArrayPlan
        One for each tensor; not all are written.
    differences : mapping
        By path.
    bases : mapping
        By path of a difference, the base's array.
    """

    paths: Mapping[str, str]
    arrays: list[ArrayPlan]
    differences: Mapping[str, Difference]
    bases: Mapping[str, RangeReader]

    def read_base(self, piece: Piece, out: Bytes) -> Bytes | None:
        """Read the base of a whole chunk, padded as that is; None if it has none."""
        if not piece.array.has_base:
            return None
        return read_base(self.bases[piece.array.path], piece, out)


def read_base(base: RangeReader, piece: Piece, out: Bytes) -> Bytes:
    """Read what a whole chunk is coded against, padded as that is, and return it."""
    start = piece.offset - piece.array.offset
    base.read_run(start, start + piece.nbytes, out[: piece.nbytes])
    pad(piece, out)
    return out


def pad(piece: Piece, chunk: Bytes) -> None:
    """Fill what a chunk has behind the array's items."""
    chunk[piece.nbytes :].view(piece.array.dtype)[:] = piece.array.fill_value


def is_convertible(tensor: TensorInfo) -> bool:
    """Tell whether a lossy store has a tensor in half precision."""
    return tensor.dtype == "F32" and array_form(tensor)[0] == "float32"


def plan_model(
    source: ModelReader,
    chunk_size: int,
    base: ModelReader | None,
    is_lossy: bool = False,
    levels: Mapping[str, str] = MappingProxyType({}),
) -> ModelPlan:
    """Plan a store.

    Parameters
    ----------
    source
        The model.
    chunk_size
        Largest size of a chunk, in bytes.
    base
        What tensors are stored as differences to, where it has the same ones.
    is_lossy
        Store FP32 tensors in half precision: the source's numbers are such.
    levels
        Those of tensors that are coded at another than most.

    Raises
    ------
    NoCommonTensorError
        If the base has none of the tensors.
    """
    paths, arrays = plan_arrays(source.headers, chunk_size)
    tensors = [tensor for header in source.headers for tensor in header.tensors]
    repeated = find_repeated(source)
    by_name = {tensor.name: array for tensor, array in zip(tensors, arrays, strict=True)}
    copies, roundings = _by_owner(repeated.copies), _by_owner(repeated.roundings)
    differences: dict[str, Difference] = {}
    bases: dict[str, RangeReader] = {}
    planned = []
    for tensor, array in zip(tensors, arrays, strict=True):
        name = tensor.name
        others = copies[name], roundings[name]
        is_half = is_lossy and is_convertible(tensor)
        array = replace(array, is_lossy=is_half, level=levels.get(name))
        if name in repeated.copies:
            paths[name] = by_name[repeated.copies[name]].path
            array = replace(array, path=paths[name], is_written=False)
        elif name in repeated.roundings:
            wide = by_name[repeated.roundings[name]]
            paths[name] = wide.path + ROUNDED
            # In the pieces in which it will be read.
            array = replace(array, path=paths[name], chunks=wide.chunks, is_written=False)
        elif base is not None and (found := _counterpart(base, tensor, array)) is not None:
            bases[array.path] = found
            form = tensor.dtype, tensor.shape, array.chunks
            differences[array.path] = Difference(name, *form, *others, array.level)
            array = replace(array, has_base=True)
        else:
            array = with_others(array, *others)
        planned.append(array)
    if base is not None and not differences:
        raise NoCommonTensorError(
            f"{source.place(0)}: has no tensor in common with its base, {base.where}:"
            " none of the same name, dtype and shape"
        )
    return ModelPlan(paths, planned, differences, bases)


def _by_owner(followers: Mapping[str, str]) -> defaultdict[str, tuple[str, ...]]:
    """Return which tensors follow from each."""
    found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for name, owner in followers.items():
        found[owner] += (name,)
    return found


def _counterpart(base: ModelReader, tensor: TensorInfo, array: ArrayPlan) -> RangeReader | None:
    # Scalars are not in chunks in HDF5, and nothing has no difference.
    if not array.shape or not array.nbytes:
        return None
    return base.counterpart(tensor.name, np.dtype(array.dtype).name, array.shape)
