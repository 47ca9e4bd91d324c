"""Assembles a checkpoint from reports: tensors that share an array, and chunks not yet written."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex, chunk_counts, grid_indices
from bf16codecs._base.messages import counted
from bf16codecs._base.threads import run_all
from bf16codecs.convert.plan import Repeated
from bf16codecs.errors import StoreError
from bf16codecs.store.attributes import ROUNDED
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.zarr.writer import ChunkWriter
from bf16codecs.torch.checkpoint.drafts import Draft
from bf16codecs.torch.checkpoint.encoding import (
    ChunkEncoder,
    chunks_of,
)
from bf16codecs.torch.checkpoint.planning import Bounds, common
from bf16codecs.torch.checkpoint.shards import COPY, ROUNDING
from bf16codecs.torch.checkpoint.writing import ShardReport

__all__ = [
    "Repeats",
    "UnwrittenShard",
    "check_complete",
    "find_repeats",
    "joined",
    "of_one_process",
    "put_parts",
    "put_small",
    "put_unwritten",
]

#: By the names of tensors.
Reports = Mapping[str, Sequence[ShardReport]]


class UnwrittenShard(NamedTuple):
    """A shard that no process wrote, since it follows from the same shard of another tensor.

    The whole tensor does not follow from one, and has an array of its own.
    """

    name: str
    bounds: Bounds
    kind: str
    owner: str


class Repeats(NamedTuple):
    """Tensors that share the array of another one, their owner, and shards that remain to write."""

    copies: dict[str, str]
    roundings: dict[str, str]
    unwritten: list[UnwrittenShard]


def find_repeats(reports: Reports, arrays: Mapping[str, ArrayPlan]) -> Repeats:
    """Find the tensors that follow from others as a whole, and the shards of others that do."""
    found = Repeats({}, {}, [])
    follows = {
        (name, report.bounds): report.follows
        for name, tensor_reports in reports.items()
        for report in tensor_reports
        if report.follows
    }
    # Tensors with the same origins are equal.
    equal: dict[frozenset[Any], list[str]] = defaultdict(list)
    for name, tensor_reports in reports.items():
        # Empty shards are not compared.
        shards = [report.bounds for report in tensor_reports if all(report.bounds.sizes)]
        if shards:
            equal[frozenset((bounds, *_origin(follows, name, bounds)) for bounds in shards)].append(
                name
            )
    owners = {
        origins: min(
            names, key=lambda name: sum((name, bounds) in follows for bounds, *_ in origins)
        )
        for origins, names in equal.items()
    }
    for origins, names in equal.items():
        is_rounded = all(kind == ROUNDING for _, kind, _ in origins)
        master = owners.get(frozenset((shard, COPY, name) for shard, _, name in origins))
        if is_rounded and master is not None:
            found.roundings.update(dict.fromkeys(names, master))
            continue
        owner = owners[origins]
        found.copies.update({name: owner for name in names if name != owner})
        remaining = [shard for shard, *_ in origins if (owner, shard) in follows]
        found.unwritten.extend(
            UnwrittenShard(owner, shard, *_origin(follows, owner, shard)) for shard in remaining
        )
    first: dict[tuple[Any, ...], str] = {}
    for name, content in small_contents(reports, arrays).items():
        dtype = arrays[name].attributes[ATTRIBUTES_KEY]["dtype"]
        owner = first.setdefault((dtype, content.shape, content.tobytes()), name)
        if owner != name:
            found.copies[name] = owner
    return found


def joined(found: Repeats, more: Repeated) -> Repeats:
    """Join repeats of reports with those found later, by comparing arrays."""
    copies, roundings = (
        {name: more.copies.get(owner, owner) for name, owner in kind.items()}
        for kind in (found.copies, found.roundings)
    )
    copies |= more.copies
    roundings |= more.roundings
    for name in [name for name, owner in copies.items() if owner in roundings]:
        roundings[name] = roundings[copies.pop(name)]
    return Repeats(copies, roundings, [])


def of_one_process(reports: Reports) -> set[str]:
    """Return the tensors, small ones excluded, that one process has written alone.

    If several processes have a tensor, torch lets any of them write it, and copies may differ.
    """
    single = {name: found[0] for name, found in reports.items() if len(found) == 1}
    return {
        name
        for name, report in single.items()
        if report.content is None and not any(report.bounds.offsets)
    }


def _origin(
    follows: Mapping[tuple[str, Bounds], tuple[str, str]], name: str, bounds: Bounds
) -> tuple[str, str]:
    """Return how a tensor's shard follows from its origin, which may be itself, and the origin.

    The tensor that it follows from may itself follow from another one, in another process's report.
    """
    kind = COPY
    while (parent := follows.get((name, bounds))) is not None:
        kind, name = (ROUNDING if ROUNDING in (kind, parent[0]) else COPY), parent[1]
    return kind, name


def small_contents(reports: Reports, arrays: Mapping[str, ArrayPlan]) -> dict[str, NDArray[Any]]:
    """Return the items of small tensors, whose bytes are in the reports."""
    found = {}
    for name, tensor_reports in reports.items():
        array = arrays.get(name)
        if array is None or not array.nbytes or tensor_reports[0].content is None:
            continue
        values = np.empty(array.shape, f"u{array.item_size}")
        missing = values.size
        for report in tensor_reports:
            part = np.frombuffer(report.content or b"", values.dtype)
            missing -= part.size
            values[_slices(report.bounds.axes)] = part.reshape(report.bounds.sizes)
        if missing:
            raise StoreError(f"tensor {name!r}: no process sent {missing} of its items")
        found[name] = values
    return found


def put_small(encoder: ChunkEncoder, reports: Reports, arrays: Mapping[str, ArrayPlan]) -> None:
    """Write the chunks of small tensors."""
    for name, values in small_contents(reports, arrays).items():
        array = arrays[name]
        for index in grid_indices(chunk_counts(array.shape, array.chunks)):
            encoder.put(array, index, values[_slices(array.region(index))])


def _slices(axes: Sequence[range]) -> tuple[slice, ...]:
    return tuple(slice(axis.start, axis.stop) for axis in axes)


def put_parts(
    encoder: ChunkEncoder, reports: Reports, arrays: Mapping[str, ArrayPlan], draft: Draft
) -> None:
    """Write the chunks that several processes have items of."""
    parts: dict[tuple[str, ChunkIndex], list[tuple[Bounds, str]]] = defaultdict(list)
    for name, tensor_reports in reports.items():
        for report in tensor_reports:
            for index, key in report.parts:
                parts[name, index].append((report.bounds, key))

    def put(name: str, index: ChunkIndex, chunk_parts: Sequence[tuple[Bounds, str]]) -> None:
        array = arrays[name]
        axes = array.region(index)
        values = np.empty([len(axis) for axis in axes], f"u{array.item_size}")
        missing = values.size
        for bounds, key in chunk_parts:
            part_axes = [common(a, b) for a, b in zip(axes, bounds.axes, strict=True)]
            size = math.prod(map(len, part_axes)) * array.item_size
            part = np.frombuffer(draft.read(key, 0, size), values.dtype)
            selection = tuple(
                slice(p.start - a.start, p.stop - a.start)
                for p, a in zip(part_axes, axes, strict=True)
            )
            values[selection] = part.reshape([len(axis) for axis in part_axes])
            missing -= part.size
        if missing:
            raise StoreError(
                f"tensor {name!r}: no process wrote {missing} of the items of chunk {index}"
            )
        encoder.put(array, index, values)

    run_all(
        (partial(put, *key, chunk_parts) for key, chunk_parts in parts.items()),
        encoder.concurrency,
    )


def put_unwritten(
    reader: ModelReader,
    encoder: ChunkEncoder,
    shards: Sequence[UnwrittenShard],
    arrays: Mapping[str, ArrayPlan],
    paths: Mapping[str, str],
) -> None:
    """Write the shards that no process wrote, from the tensors that they follow from.

    The reader's store is complete except for these. `arrays` and `paths` are by tensor.
    """

    def jobs() -> Iterator[Callable[[], None]]:
        for name, bounds, kind, owner in shards:
            path = paths[owner] + (ROUNDED if kind == ROUNDING else "")
            for index in chunks_of(arrays[name], bounds.axes):
                yield partial(put, arrays[name], index, path)

    def put(array: ArrayPlan, index: ChunkIndex, path: str) -> None:
        axes, source = array.region(index), reader.array(path)
        values = np.empty([len(axis) for axis in axes], source.dtype)
        source.read_box(axes, values)
        encoder.put(array, index, values.view(f"u{array.item_size}"))

    run_all(jobs(), encoder.concurrency)


def check_complete(
    where: str,
    draft: Draft,
    writer: ChunkWriter,
    arrays: Sequence[ArrayPlan],
    paths: Mapping[str, str],
) -> None:
    """Refuse a store that lacks chunks of `arrays`, as after a process wrote to another disk."""
    array_paths = {array.path for array in arrays}
    for name, path in paths.items():
        if path.removesuffix(ROUNDED) not in array_paths:
            raise StoreError(f"{where}: tensor {name!r}: no process has written it")
    present = set(draft.keys())
    for array in arrays:
        indices = grid_indices(chunk_counts(array.shape, array.chunks))
        missing = [key for key in (writer.key(array, i) for i in indices) if key not in present]
        if missing:
            raise StoreError(
                f"{where}: {array.path} lacks {counted(len(missing), 'chunk')}, such as"
                f" {missing[0]}: all processes must write to one place"
            )
