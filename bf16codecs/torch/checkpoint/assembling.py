"""Assembles a checkpoint from reports: tensors that share an array, and chunks that are left."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.grid import ArrayPlan, chunk_counts, grid_indices
from bf16codecs._base.messages import counted
from bf16codecs._base.threads import run_all
from bf16codecs.convert.plan import Repeated
from bf16codecs.errors import StoreError
from bf16codecs.store.attributes import ROUNDED
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.reader import ModelReader
from bf16codecs.torch.checkpoint.encoding import (
    ChunkEncoder,
    Index,
    chunk_file,
    chunks_of,
)
from bf16codecs.torch.checkpoint.planning import Box, common
from bf16codecs.torch.checkpoint.shards import COPY, ROUNDING
from bf16codecs.torch.checkpoint.writing import ShardReport

__all__ = [
    "Left",
    "Shared",
    "check_complete",
    "had_as_a_whole",
    "joined",
    "put_left",
    "put_parts",
    "put_small",
    "shared",
]

Reports = Mapping[str, Sequence[ShardReport]]


class Left(NamedTuple):
    """A part that no process wrote, as it follows from another tensor, while the whole does not."""

    name: str
    box: Box
    kind: str
    owner: str


class Shared(NamedTuple):
    """Tensors without an array of their own, each with its owner, by the way they follow."""

    copies: dict[str, str]
    roundings: dict[str, str]
    left: list[Left]


def shared(reports: Reports, arrays: Mapping[str, ArrayPlan]) -> Shared:
    """Find which tensors follow from others as a whole, and what is left of those that do not."""
    found = Shared({}, {}, [])
    told = {(name, r.box): r.follows for name, own in reports.items() for r in own if r.follows}
    alike: dict[frozenset[Any], list[str]] = defaultdict(list)
    for name, own in reports.items():
        # A process that has nothing of it tells nothing.
        boxes = [report.box for report in own if all(report.box.sizes)]
        if boxes:
            alike[frozenset((box, *_origin(told, name, box)) for box in boxes)].append(name)
    owners = {
        origins: min(names, key=lambda name: sum((name, box) in told for box, *_ in origins))
        for origins, names in alike.items()
    }
    for origins, names in alike.items():
        is_rounded = all(kind == ROUNDING for _, kind, _ in origins)
        master = owners.get(frozenset((box, COPY, name) for box, _, name in origins))
        if is_rounded and master is not None:
            found.roundings.update(dict.fromkeys(names, master))
            continue
        owner = owners[origins]
        found.copies.update({name: owner for name in names if name != owner})
        left = (box for box, *_ in origins if (owner, box) in told)
        found.left.extend(Left(owner, box, *_origin(told, owner, box)) for box in left)
    first: dict[tuple[Any, ...], str] = {}
    for name, content in small_contents(reports, arrays).items():
        dtype = arrays[name].attributes[ATTRIBUTES_KEY]["dtype"]
        owner = first.setdefault((dtype, content.shape, content.tobytes()), name)
        if owner != name:
            found.copies[name] = owner
    return found


def joined(found: Shared, more: Repeated) -> Shared:
    """Join what was found while tensors were written with what was found of their arrays."""
    copies, roundings = (
        {name: more.copies.get(owner, owner) for name, owner in kind.items()}
        for kind in (found.copies, found.roundings)
    )
    copies |= more.copies
    roundings |= more.roundings
    for name in [name for name, owner in copies.items() if owner in roundings]:
        roundings[name] = roundings[copies.pop(name)]
    return Shared(copies, roundings, [])


def had_as_a_whole(reports: Reports) -> set[str]:
    """Return the tensors, but for small ones, that one process has written alone.

    If several processes have a tensor, torch lets any of them write it, and copies may differ.
    """
    return {
        name
        for name, own in reports.items()
        if len(own) == 1 and own[0].content is None and not any(own[0].box.offsets)
    }


def _origin(
    told: Mapping[tuple[str, Box], tuple[str, str]], name: str, box: Box
) -> tuple[str, str]:
    """Return the origin of a part of a tensor: itself, or the one that its process reported.

    Another process may report that this one follows from yet another, or is a rounding.
    """
    kind = COPY
    while (follows := told.get((name, box))) is not None:
        kind, name = (ROUNDING if ROUNDING in (kind, follows[0]) else COPY), follows[1]
    return kind, name


def small_contents(reports: Reports, arrays: Mapping[str, ArrayPlan]) -> dict[str, NDArray[Any]]:
    """Return the items of small tensors, of which the reports have all bytes."""
    found = {}
    for name, own in reports.items():
        array = arrays.get(name)
        if array is None or not array.nbytes or own[0].content is None:
            continue
        values = np.empty(array.shape, f"u{array.item_size}")
        missing = values.size
        for report in own:
            part = np.frombuffer(report.content or b"", values.dtype)
            missing -= part.size
            place = tuple(slice(axis.start, axis.stop) for axis in report.box.axes)
            values[place] = part.reshape(report.box.sizes)
        if missing:
            raise StoreError(f"tensor {name!r}: {missing} items are of no process")
        found[name] = values
    return found


def put_small(encoder: ChunkEncoder, reports: Reports, arrays: Mapping[str, ArrayPlan]) -> None:
    """Write the small tensors."""
    for name, values in small_contents(reports, arrays).items():
        array = arrays[name]
        for index in grid_indices(chunk_counts(array.shape, array.chunks)):
            place = tuple(slice(a.start, a.stop) for a in array.region(index))
            encoder.put(array, index, values[place])


def put_parts(
    encoder: ChunkEncoder, reports: Reports, arrays: Mapping[str, ArrayPlan], scratch: Path
) -> None:
    """Write the chunks that several processes have items of."""
    parts: dict[tuple[str, Index], list[tuple[Box, str]]] = defaultdict(list)
    for name, own in reports.items():
        for report in own:
            for index, file in report.parts:
                parts[name, index].append((report.box, file))

    def put(name: str, index: Index, own: Sequence[tuple[Box, str]]) -> None:
        array = arrays[name]
        axes = array.region(index)
        values = np.empty([len(axis) for axis in axes], f"u{array.item_size}")
        missing = values.size
        for box, file in own:
            shared_axes = [common(a, b) for a, b in zip(axes, box.axes, strict=True)]
            part = np.fromfile(scratch / file, values.dtype)
            place = tuple(
                slice(s.start - a.start, s.stop - a.start)
                for s, a in zip(shared_axes, axes, strict=True)
            )
            values[place] = part.reshape([len(axis) for axis in shared_axes])
            missing -= part.size
        if missing:
            raise StoreError(f"tensor {name!r}: {missing} items of chunk {index} are of no process")
        encoder.put(array, index, values)

    run_all((partial(put, *key, own) for key, own in parts.items()), 1)


def put_left(
    reader: ModelReader,
    encoder: ChunkEncoder,
    left: Sequence[Left],
    arrays: Mapping[str, ArrayPlan],
    paths: Mapping[str, str],
) -> None:
    """Write the parts that no process wrote, from the tensors that they follow from.

    The reader's store lacks only these. `arrays` and `paths` are those of the store, by tensor.
    """

    def jobs() -> Iterator[Callable[[], None]]:
        for name, box, kind, owner in left:
            path = paths[owner] + (ROUNDED if kind == ROUNDING else "")
            for index in chunks_of(arrays[name], box.axes):
                yield partial(put, arrays[name], index, path)

    def put(array: ArrayPlan, index: Index, path: str) -> None:
        axes, source = array.region(index), reader.array(path)
        values = np.empty([len(axis) for axis in axes], source.dtype)
        source.read_box(axes, values)
        encoder.put(array, index, values.view(f"u{array.item_size}"))

    run_all(jobs(), 1)


def check_complete(folder: Path, arrays: Sequence[ArrayPlan], paths: Mapping[str, str]) -> None:
    """Refuse a store that lacks chunks of `arrays`, as if a process wrote to its own disk."""
    there = {array.path for array in arrays}
    for name, path in paths.items():
        if path.removesuffix(ROUNDED) not in there:
            raise StoreError(f"{folder}: tensor {name!r}: no process has written it")
    for array in arrays:
        whole = [
            chunk_file(folder, array, i)
            for i in grid_indices(chunk_counts(array.shape, array.chunks))
        ]
        names = set(os.listdir(folder / array.path)) if (folder / array.path).is_dir() else set()
        missing = [path for path in whole if os.path.basename(path) not in names]
        if missing:
            raise StoreError(
                f"{folder}: {counted(len(missing), 'chunk')} of {array.path} are not there, such as"
                f" {os.path.basename(missing[0])}: all processes must write to one file system"
            )
