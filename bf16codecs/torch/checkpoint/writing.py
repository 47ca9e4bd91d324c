"""What each process of a job writes of a checkpoint: chunks, and parts of those that it shares."""

from __future__ import annotations

import errno
import io
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.checkpoint import SavePlan, SavePlanner
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from bf16codecs._chunks.grid import ArrayPlan
from bf16codecs._sync import sync_files
from bf16codecs._threads import run_ahead, worker_count
from bf16codecs.convert.repeated import find_repeated
from bf16codecs.errors import BaseMismatchError
from bf16codecs.store.opening import Opening, open_any
from bf16codecs.store.zarr_writer import ChunkWriter
from bf16codecs.torch.checkpoint.encoding import (
    ChunkEncoder,
    Index,
    chunk_axes,
    chunk_file,
    chunks_of,
)
from bf16codecs.torch.checkpoint.grids import Box, common
from bf16codecs.torch.checkpoint.planning import box_of, is_small
from bf16codecs.torch.memory import source_of

__all__ = [
    "COPY",
    "ROUNDING",
    "ObjectReport",
    "ShardReport",
    "Task",
    "opened_encoder",
    "write_items",
]

#: How a tensor follows from another one.
COPY, ROUNDING = "copy", "rounding"


@dataclass(frozen=True)
class Task:
    """What the coordinator tells each process.

    Attributes
    ----------
    target, folder, scratch : Path
        The checkpoint; the folder that will be it; and one for what it is made of.
    arrays : mapping
        By tensor, of those that the process has a part of.
    writer : ChunkWriter
        Writes chunks into `folder`.
    best : ChunkWriter or None
        Writes those for which level best pays, if this is to be found out for each tensor.
    base : str or None
        The model that there are differences to, its path or address.
    storage_options : mapping or None
        Of the file system of that address.
    sync : bool
        Whether what is written has to be on the disk.
    """

    target: Path
    folder: Path
    scratch: Path
    arrays: Mapping[str, ArrayPlan]
    writer: ChunkWriter
    best: ChunkWriter | None
    base: str | None
    storage_options: Mapping[str, Any] | None
    sync: bool


@dataclass(frozen=True)
class ShardReport:
    """What a process wrote of a tensor.

    Attributes
    ----------
    box : Box
        What it has.
    follows : tuple of str, or None
        `COPY` or `ROUNDING`, and the tensor that all of it follows from: then nothing was written.
    content : bytes or None
        Of a small tensor, the bytes of the box: then nothing was written.
    parts : tuple
        Chunks that other processes have items of: their indices, and the files with this one's.
    is_best : bool
        Whether level best paid.
    """

    box: Box
    follows: tuple[str, str] | None = None
    content: bytes | None = None
    parts: tuple[tuple[Index, str], ...] = ()
    is_best: bool = False


@dataclass(frozen=True)
class ObjectReport:
    """Where a process put the bytes of what is no tensor: a file, the offset in it, the size."""

    file: str
    offset: int
    size: int


@dataclass(frozen=True)
class _Shard:
    """A part of a tensor that this process has."""

    item: WriteItem
    box: Box
    tensor: torch.Tensor

    @property
    def name(self) -> str:
        return self.item.index.fqn

    def values(self, array: ArrayPlan, axes: Sequence[range]) -> NDArray[Any]:
        """Return a box of it as unsigned integers, without a copy where it is in order."""
        tensor = self.tensor
        if len(array.shape) != tensor.ndim:  # of too many dimensions: it is stored as its bytes
            tensor = tensor.contiguous().reshape(-1).view(torch.uint8)
        own = self.box.offsets if len(axes) == len(self.box.offsets) else (0,) * len(axes)
        place = tuple(slice(a.start - o, a.stop - o) for a, o in zip(axes, own, strict=True))
        part = tensor[place].resolve_conj().resolve_neg().contiguous().cpu()
        raw = part.reshape(-1).view(torch.uint8).numpy()
        return raw.view(f"u{array.item_size}").reshape([len(axis) for axis in axes])


def write_items(plan: SavePlan, planner: SavePlanner, task: Task) -> list[WriteResult]:
    """Write what a process has; return what to tell the coordinator.

    Raises
    ------
    FileNotFoundError
        If this process does not see the folder that the coordinator has made.
    OSError
        If something cannot be written.
    """
    if not task.folder.is_dir():
        text = "not seen by this process: all of a job must write to one file system, and its"
        text += " coordinator must be alive"
        raise FileNotFoundError(errno.ENOENT, text, str(task.target))
    objects = [item for item in plan.items if item.type is WriteItemType.BYTE_IO]
    shards = [
        _Shard(item, box_of(item), _data(planner, item))
        for item in plan.items
        if item.type is not WriteItemType.BYTE_IO
    ]
    return [*_write_objects(objects, planner, task), *_write_shards(shards, task)]


def _data(planner: SavePlanner, item: WriteItem) -> torch.Tensor:
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, torch.Tensor)
    assert item.tensor_data is not None
    if tensor.shape != item.tensor_data.chunk.sizes:
        shapes = tuple(tensor.shape), tuple(item.tensor_data.chunk.sizes)
        raise ValueError(f"tensor {item.index.fqn!r}: is {shapes[0]}, planned as {shapes[1]}")
    return tensor.detach()


def _write_objects(
    items: Sequence[WriteItem], planner: SavePlanner, task: Task
) -> Iterator[WriteResult]:
    if not items:
        return
    path, offset = task.scratch / f"{secrets.token_hex(8)}.objects", 0
    with open(path, "xb") as file:
        for item in items:
            content = planner.resolve_data(item)
            assert isinstance(content, io.BytesIO)
            size = file.write(content.getbuffer())
            yield WriteResult(item.index, size, ObjectReport(path.name, offset, size))
            offset += size


def _write_shards(shards: Sequence[_Shard], task: Task) -> list[WriteResult]:
    sizes: dict[int, int] = defaultdict(int)
    parts: dict[int, list[tuple[Index, str]]] = defaultdict(list)
    follows = _followers(shards, task.arrays)
    written: list[str] = []
    pays: dict[int, _Pays] = {}

    def jobs(encoder: ChunkEncoder) -> Iterator[Callable[[], tuple[int, int]]]:
        for number, shard in enumerate(shards):
            if number in follows or is_small(shard.item):
                continue
            array = task.arrays[shard.name]
            box = shard.box.axes if len(array.shape) == shard.tensor.ndim else _whole(array)
            pays[number] = _Pays(encoder, array)
            for index in chunks_of(array, box):
                axes = chunk_axes(array, index)
                own = tuple(map(common, axes, box))
                if own == axes:
                    written.append(chunk_file(task.folder, array, index))
                    yield partial(_put, encoder, shard, number, array, index, axes, pays[number])
                else:
                    name = f"{secrets.token_hex(8)}.part"
                    parts[number].append((index, name))
                    yield partial(_put_part, task.scratch / name, shard, number, array, own)

    with opened_encoder(task) as encoder, closing(run_ahead(jobs(encoder), worker_count())) as done:
        for number, size in done:
            sizes[number] += size
    if task.sync:
        # At the end, and many at a time: after each chunk, encoding would wait for the disk.
        sync_files(written)
    return [
        WriteResult(
            shard.item.index,
            sizes[number],
            ShardReport(
                shard.box,
                follows.get(number),
                _small(shard),
                tuple(parts[number]),
                bool(pays.get(number)),
            ),
        )
        for number, shard in enumerate(shards)
    ]


def _followers(
    shards: Sequence[_Shard], arrays: Mapping[str, ArrayPlan]
) -> dict[int, tuple[str, str]]:
    """Find what follows from other tensors, as far as this process sees: by number of the shard."""
    # Of the same place in tensors of the same shape.
    alike: dict[Any, dict[str, int]] = defaultdict(dict)
    for number, shard in enumerate(shards):
        if not is_small(shard.item):
            assert shard.item.tensor_data is not None
            alike[shard.item.tensor_data.size, shard.box][shard.name] = number
    found: dict[int, tuple[str, str]] = {}
    for numbers in alike.values():
        if len(numbers) > 1:
            tensors = {name: shards[number].tensor for name, number in numbers.items()}
            repeated = find_repeated(source_of(tensors, {}, Path("memory")))
            for kind, pairs in ((COPY, repeated.copies), (ROUNDING, repeated.roundings)):
                for name, owner in pairs.items():
                    # Of a chunk that it shares, others would miss its part.
                    if _has_chunks(shards[numbers[name]], arrays[name]):
                        found[numbers[name]] = kind, owner
    return found


def _has_chunks(shard: _Shard, array: ArrayPlan) -> bool:
    """Tell whether a process has all items of all chunks of which it has some."""
    box = shard.box.axes
    if len(box) != len(array.shape):
        return False
    chunks = (chunk_axes(array, index) for index in chunks_of(array, box))
    return all(tuple(map(common, axes, box)) == axes for axes in chunks)


def _whole(array: ArrayPlan) -> tuple[range, ...]:
    return tuple(map(range, array.shape))


def _small(shard: _Shard) -> bytes | None:
    if not is_small(shard.item):
        return None
    part = shard.tensor.resolve_conj().resolve_neg().contiguous().cpu()
    return part.reshape(-1).view(torch.uint8).numpy().tobytes()


class _Pays:
    """Whether level best pays for a shard, by the chunk that is encoded first."""

    def __init__(self, encoder: ChunkEncoder, array: ArrayPlan) -> None:
        self._encoder, self._array = encoder, array
        self._lock = threading.Lock()
        self._found: bool | None = None

    def found(self, index: Index, values: NDArray[Any]) -> bool:
        """Find it out, if nobody has."""
        with self._lock:
            if self._found is None:
                self._found = self._encoder.pays(self._array, index, values)
            return self._found

    def __bool__(self) -> bool:
        return bool(self._found)


def _put(
    encoder: ChunkEncoder,
    shard: _Shard,
    number: int,
    array: ArrayPlan,
    index: Index,
    axes: Sequence[range],
    pays: _Pays,
) -> tuple[int, int]:
    values = shard.values(array, axes)
    return number, encoder.put(array, index, values, pays.found(index, values))


def _put_part(
    path: Path, shard: _Shard, number: int, array: ArrayPlan, axes: Sequence[range]
) -> tuple[int, int]:
    with open(path, "xb") as file:
        return number, file.write(np.ascontiguousarray(shard.values(array, axes)).data)


@contextmanager
def opened_encoder(task: Task) -> Iterator[ChunkEncoder]:
    """Yield what encodes chunks of the task's arrays, with their base open."""
    based = {name: array for name, array in task.arrays.items() if array.has_base}
    if task.base is None or not based:
        yield ChunkEncoder.of(task.writer, task.best, {})
        return
    with closing(open_any(task.base, Opening(task.storage_options, chain=("",)))) as base:
        found = {}
        for name, array in based.items():
            counterpart = base.counterpart(name, array.dtype, array.shape)
            if counterpart is None:
                raise BaseMismatchError(f"{base.where}: changed while it was read as a base")
            found[array.path] = counterpart
        yield ChunkEncoder.of(task.writer, task.best, found)
