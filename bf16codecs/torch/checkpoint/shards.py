"""Shards: the parts of tensors that a process has, and which of them follow from others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch.distributed.checkpoint import SavePlanner
from torch.distributed.checkpoint.planner import WriteItem

from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._base.torch_tensors import in_a_row, plain_tensor
from bf16codecs.convert.plan import find_repeated
from bf16codecs.torch.checkpoint.encoding import chunks_of
from bf16codecs.torch.checkpoint.planning import Bounds, bounds_of, common, is_small
from bf16codecs.torch.tensors import source_of

__all__ = ["COPY", "ROUNDING", "Shard", "followers"]

#: How a tensor follows from another one.
COPY, ROUNDING = "copy", "rounding"


@dataclass(frozen=True)
class Shard:
    """A part of a tensor that this process has."""

    item: WriteItem
    bounds: Bounds
    tensor: torch.Tensor

    @classmethod
    def of(cls, item: WriteItem, planner: SavePlanner) -> Shard:
        """Return the shard of a plan's item.

        Raises ValueError if its tensor has no data, or another shape or dtype than planned, or is
        of a class that computes its numbers from other data.
        """
        found = planner.resolve_data(item)
        assert isinstance(found, torch.Tensor)
        tensor = plain_tensor(found, item.index.fqn)
        if tensor.is_meta:
            text = "it is on the device meta, and has no data"
            raise ValueError(f"tensor {item.index.fqn!r}: {text}")
        bounds = bounds_of(item)
        assert item.tensor_data is not None
        # A cached plan may be outdated: torch plans again only if shapes differ.
        planned = item.tensor_data.properties.dtype, bounds.sizes
        if (actual := (tensor.dtype, tuple(tensor.shape))) != planned:
            text = "is {} of {}, planned as {} of {}".format(*actual, *planned)
            raise ValueError(f"tensor {item.index.fqn!r}: {text}")
        return cls(item, bounds, tensor.detach())

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self.item.index.fqn

    def values(self, array: ArrayPlan, axes: Sequence[range]) -> NDArray[Any]:
        """Return a box of an array as unsigned integers, without a copy if it is contiguous."""
        selection = tuple(
            slice(axis.start - first, axis.stop - first)
            for axis, first in zip(axes, self.bounds.offsets, strict=True)
        )
        raw = _as_bytes(self.tensor[selection])
        return raw.view(f"u{array.item_size}").reshape([len(axis) for axis in axes])

    def content(self) -> bytes:
        """Return all of its bytes."""
        return _as_bytes(self.tensor).tobytes()


def _as_bytes(tensor: torch.Tensor) -> NDArray[Any]:
    # Conjugated and negated views change the numbers, not the bytes in memory.
    plain = tensor.resolve_conj().resolve_neg().contiguous().cpu()
    raw: NDArray[Any] = in_a_row(plain).view(torch.uint8).numpy()
    return raw


def followers(
    shards: Sequence[Shard], arrays: Mapping[str, ArrayPlan]
) -> dict[int, tuple[str, str]]:
    """Map indices of shards to `COPY` or `ROUNDING`, and the tensor that the shard follows from.

    Tensors that other processes write do not count: their values may differ.
    """
    # Indices of shards with the same bounds, in tensors of the same shape.
    comparable: dict[Any, dict[str, int]] = defaultdict(dict)
    for index, shard in enumerate(shards):
        if not is_small(shard.item):
            assert shard.item.tensor_data is not None
            comparable[shard.item.tensor_data.size, shard.bounds][shard.name] = index
    found: dict[int, tuple[str, str]] = {}
    for indices in comparable.values():
        if len(indices) > 1:
            tensors = {name: shards[index].tensor for name, index in indices.items()}
            repeated = find_repeated(source_of(tensors, {}, "memory"))
            for kind, pairs in ((COPY, repeated.copies), (ROUNDING, repeated.roundings)):
                for name, owner in pairs.items():
                    # A chunk that several processes share needs the parts of all.
                    if _has_whole_chunks(shards[indices[name]], arrays[name]):
                        found[indices[name]] = kind, owner
    return found


def _has_whole_chunks(shard: Shard, array: ArrayPlan) -> bool:
    """Tell whether a shard has all items of each chunk that it has items of."""
    box = shard.bounds.axes
    chunks = (array.region(index) for index in chunks_of(array, box))
    return all(tuple(map(common, axes, box)) == axes for axes in chunks)
