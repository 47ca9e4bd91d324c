"""Plans a checkpoint, in the coordinator, from the plans of all processes.

Edges of shards are edges of chunks where possible, so that no two processes share a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import SavePlan
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from bf16codecs._arrays.array import RangeReader
from bf16codecs._arrays.grid import ArrayPlan, chunk_counts, chunk_shape
from bf16codecs._base.limits import MAX_NDIM
from bf16codecs.safetensors import Header, make_header
from bf16codecs.store.checkpoint import check_names
from bf16codecs.store.paths import array_paths
from bf16codecs.store.plan import array_spec, tensor_attributes
from bf16codecs.store.reader import ModelReader
from bf16codecs.torch.tensors import DTYPES, header_spec

__all__ = [
    "SMALL_BYTES",
    "Bounds",
    "CheckpointPlan",
    "base_arrays",
    "bounds_of",
    "check_item",
    "chunk_grid",
    "common",
    "is_small",
    "names_of",
    "plan_checkpoint",
]

# Chunks that several processes share are written twice, and encoded by the coordinator alone: up to
# this many times as many chunks as `chunk_size` needs are better.
_MANY = 8
# The smallest chunk: the head of its frame is 1 % of it.
_LEAST_BYTES = 1 << 12
# The largest chunk: a shard of a prime number of rows has no divisor near `chunk_size`.
_MOST_BYTES = 1 << 30


class Bounds(NamedTuple):
    """Bounds of a shard in its tensor: along each axis, the first index and the number of them."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def axes(self) -> tuple[range, ...]:
        """The indices along each axis."""
        return tuple(range(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))


def common(axis: range, other: range) -> range:
    """Return the indices that two ranges have in common."""
    return range(max(axis.start, other.start), min(axis.stop, other.stop))


def chunk_grid(
    shape: tuple[int, ...], item_size: int, shards: Sequence[Bounds], chunk_size: int
) -> tuple[int, ...]:
    """Return the shape of a tensor's chunks, of at most `chunk_size` bytes where shards allow it.

    Each chunk lies in one of the processes' `shards`, unless chunks would be too many or too small.

    Examples
    --------
    >>> halves = [Bounds((0, 0), (50, 64)), Bounds((50, 0), (50, 64))]
    >>> chunk_grid((100, 64), 2, halves, 1 << 20)
    (50, 64)
    >>> chunk_grid((100, 64), 2, halves, 3200)
    (25, 64)
    """
    plain = chunk_shape(shape, item_size, chunk_size)
    if 0 in shape:
        return plain
    # Shards that begin at 12, 24 and 30 allow chunks of 6, 3, 2 or 1.
    cells = tuple(
        math.gcd(*(shard.offsets[axis] for shard in shards if all(shard.sizes))) or size
        for axis, size in enumerate(shape)
    )
    row, found = item_size, []
    limits = chunk_shape(cells, item_size, chunk_size)
    for cell, limit, size in zip(reversed(cells), reversed(limits), reversed(shape), strict=True):
        # Where no shard ends within the axis, chunks may end anywhere.
        most = max(1, _MOST_BYTES // row)
        found.append(limit if cell == size else _divisor(cell, limit, most))
        row *= found[-1]
    chunks = tuple(reversed(found))
    is_large = math.prod(chunks) * item_size >= min(chunk_size, _LEAST_BYTES)
    most = _MANY * (math.prod(chunk_counts(shape, plain)) + len(shards))
    return chunks if is_large and math.prod(chunk_counts(shape, chunks)) <= most else plain


def _divisor(cell: int, limit: int, most: int) -> int:
    """Return a length that divides a cell: at most `limit`, unless that would be much less."""
    if cell <= limit:
        return cell
    small = [n for n in range(1, math.isqrt(cell) + 1) if cell % n == 0]
    divisors = sorted({*small, *(cell // n for n in small)})
    fitting = max(n for n in divisors if n <= limit)
    larger = min(n for n in divisors if n >= limit)
    return larger if fitting * _MANY < limit and larger <= most else fitting


#: Processes send tensors below this size, such as norms and counters of steps, to the coordinator,
#: which writes them, equal ones once. Otherwise each process would write chunks of a few bytes.
SMALL_BYTES = 1 << 14


@dataclass(frozen=True)
class CheckpointPlan:
    """The arrays of a checkpoint by tensor, and the header of its tensors as a safetensors file."""

    header: Header
    arrays: Mapping[str, ArrayPlan]

    @property
    def paths(self) -> dict[str, str]:
        """The path of each tensor's array."""
        return {name: array.path for name, array in self.arrays.items()}


def check_item(item: WriteItem) -> None:
    """Raise ValueError for a tensor that cannot be stored.

    That is one of a dtype or layout that safetensors lack, with too many axes, or whose name is not
    valid Unicode.
    """
    name = item.index.fqn
    if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
        raise ValueError(f"{name!a}: its name has an unpaired surrogate, which no file can have")
    if item.tensor_data is None:
        return
    properties, axes = item.tensor_data.properties, len(item.tensor_data.size)
    problem = None
    if properties.layout != torch.strided:
        problem = f"is in layout {properties.layout}: save tensor.to_dense()"
    elif properties.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        problem = f"is {properties.dtype}, and stores have {known}: convert it, or save its parts"
        problem += " (torch.view_as_real, int_repr)"
    elif axes > MAX_NDIM or (axes == 0 and DTYPES[properties.dtype] == "F4"):
        least = int(axes == 0)
        problem = f"has {axes} axes, and arrays of {properties.dtype} have {least} to {MAX_NDIM}:"
        problem += " reshape it"
    if problem is not None:
        raise ValueError(f"tensor {name!r}: {problem}")


def bounds_of(item: WriteItem) -> Bounds:
    """Return the bounds of a process's shard of a tensor."""
    assert item.tensor_data is not None
    chunk = item.tensor_data.chunk
    return Bounds(tuple(chunk.offsets), tuple(chunk.sizes))


def is_small(item: WriteItem) -> bool:
    """Tell whether the coordinator writes an item's tensor."""
    assert item.tensor_data is not None
    size = item.tensor_data.size.numel()
    return size * item.tensor_data.properties.dtype.itemsize < SMALL_BYTES


def plan_checkpoint(plans: Sequence[SavePlan], chunk_size: int, where: str) -> CheckpointPlan:
    """Plan the arrays of a checkpoint from the plans of all processes, without duplicates.

    `where` is the store, for messages. Raises SafetensorsError for names that safetensors files
    cannot have.
    """
    specs: dict[str, tuple[str, tuple[int, ...]]] = {}
    shards: dict[str, list[Bounds]] = {}
    for item in (item for plan in plans for item in plan.items):
        if item.type is not WriteItemType.BYTE_IO:
            assert item.tensor_data is not None
            name, dtype = item.index.fqn, item.tensor_data.properties.dtype
            specs[name] = header_spec(dtype, tuple(item.tensor_data.size))
            shards.setdefault(name, []).append(bounds_of(item))
    header, paths, arrays = make_header(specs, {}, where), array_paths(specs), {}
    for tensor in header.tensors:
        dtype, shape = array_spec(tensor)
        array = ArrayPlan(
            paths[tensor.name],
            dtype,
            shape,
            (),
            tensor_attributes(tensor, shape),
            offset=header.data_start + tensor.start,
        )
        # The coordinator alone writes small tensors.
        is_small_array = array.nbytes < SMALL_BYTES
        written = [Bounds((0,) * len(shape), shape)] if is_small_array else shards[tensor.name]
        chunks = chunk_grid(shape, array.item_size, written, chunk_size)
        arrays[tensor.name] = replace(array, chunks=chunks)
    return CheckpointPlan(header, arrays)


def base_arrays(plan: CheckpointPlan, base: ModelReader) -> dict[str, RangeReader]:
    """Return the bases of tensors that can be stored as differences, by path of the array."""
    found = {}
    for name, array in plan.arrays.items():
        # As in conversions, scalars and empty tensors are not stored as differences.
        if array.shape and array.nbytes:
            counterpart = base.counterpart(name, array.dtype, array.shape)
            if counterpart is not None:
                found[array.path] = counterpart
    return found


def names_of(planner_data: Any) -> dict[str, tuple[str | int, ...]]:
    """Return the keys that led to each name of a state dict, from the planner's data.

    Raises ValueError if the data are another planner's, or the state dict is too deep.
    """
    if not planner_data:
        return {}
    is_mapping = isinstance(planner_data, Mapping)
    if not is_mapping or not all(isinstance(keys, tuple) for keys in planner_data.values()):
        raise ValueError(
            f"the planner's data are {planner_data!r:.80}, not tuples by name: stores keep those of"
            " torch.distributed.checkpoint.DefaultSavePlanner alone"
        )
    check_names(planner_data)
    return dict(planner_data)
