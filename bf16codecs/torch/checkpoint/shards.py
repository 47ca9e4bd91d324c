"""Parts of tensors that a process has, and those that follow from other tensors."""

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
from bf16codecs.torch.checkpoint.planning import Box, box_of, common, is_small
from bf16codecs.torch.tensors import source_of

__all__ = ["COPY", "ROUNDING", "Shard", "followers"]

#: How a tensor follows from another one.
COPY, ROUNDING = "copy", "rounding"


@dataclass(frozen=True)
class Shard:
    """A part of a tensor that this process has."""

    item: WriteItem
    box: Box
    tensor: torch.Tensor

    @classmethod
    def of(cls, item: WriteItem, planner: SavePlanner) -> Shard:
        """Take an item's tensor; raise ValueError if its shape or dtype was not planned.

        Also raises ValueError without data, or for classes that compute numbers from other data.
        """
        found = planner.resolve_data(item)
        assert isinstance(found, torch.Tensor)
        tensor = plain_tensor(found, item.index.fqn)
        if tensor.is_meta:
            text = "it is on the device meta, and has no data"
            raise ValueError(f"tensor {item.index.fqn!r}: {text}")
        box = box_of(item)
        assert item.tensor_data is not None
        # With cached plans, torch plans again only where shapes differ.
        planned = item.tensor_data.properties.dtype, box.sizes
        if (own := (tensor.dtype, tuple(tensor.shape))) != planned:
            text = "is {} of {}, planned as {} of {}".format(*own, *planned)
            raise ValueError(f"tensor {item.index.fqn!r}: {text}")
        return cls(item, box, tensor.detach())

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self.item.index.fqn

    def values(self, array: ArrayPlan, axes: Sequence[range]) -> NDArray[Any]:
        """Return a box of an array as unsigned integers, without a copy where it is in order."""
        own = zip(axes, self.box.axes, strict=True)
        place = tuple(slice(a.start - o.start, a.stop - o.start) for a, o in own)
        raw = _as_bytes(self.tensor[place])
        return raw.view(f"u{array.item_size}").reshape([len(axis) for axis in axes])

    def content(self) -> bytes:
        """Return all of its bytes."""
        return _as_bytes(self.tensor).tobytes()


def _as_bytes(tensor: torch.Tensor) -> NDArray[Any]:
    # Conjugated and negated views have other bytes than numbers.
    whole = tensor.resolve_conj().resolve_neg().contiguous().cpu()
    found: NDArray[Any] = in_a_row(whole).view(torch.uint8).numpy()
    return found


def followers(
    shards: Sequence[Shard], arrays: Mapping[str, ArrayPlan]
) -> dict[int, tuple[str, str]]:
    """Map numbers of shards to `COPY` or `ROUNDING`, and the tensor of these that they follow from.

    Tensors that other processes write do not count: their values may differ.
    """
    # Shards at the same place in tensors of the same shape.
    alike: dict[Any, dict[str, int]] = defaultdict(dict)
    for number, shard in enumerate(shards):
        if not is_small(shard.item):
            assert shard.item.tensor_data is not None
            alike[shard.item.tensor_data.size, shard.box][shard.name] = number
    found: dict[int, tuple[str, str]] = {}
    for numbers in alike.values():
        if len(numbers) > 1:
            tensors = {name: shards[number].tensor for name, number in numbers.items()}
            repeated = find_repeated(source_of(tensors, {}, "memory"))
            for kind, pairs in ((COPY, repeated.copies), (ROUNDING, repeated.roundings)):
                for name, owner in pairs.items():
                    # Other processes would miss its part of a chunk that they share.
                    if _has_chunks(shards[numbers[name]], arrays[name]):
                        found[numbers[name]] = kind, owner
    return found


def _has_chunks(shard: Shard, array: ArrayPlan) -> bool:
    """Tell whether a process has all items of all chunks of which it has some."""
    box = shard.box.axes
    chunks = (array.region(index) for index in chunks_of(array, box))
    return all(tuple(map(common, axes, box)) == axes for axes in chunks)
