"""Writes each process's part of a checkpoint: chunks, and parts of shared chunks."""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch.distributed.checkpoint import SavePlan, SavePlanner
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex
from bf16codecs._base.threads import run_ahead, worker_count
from bf16codecs._files.sync import sync_files
from bf16codecs.convert.new_store import Target
from bf16codecs.convert.options import Options
from bf16codecs.errors import BaseMismatchError, BF16CodecsError
from bf16codecs.store.kinds import address_scheme, canonical_address
from bf16codecs.store.opening import Opening, open_any
from bf16codecs.store.paths import RESERVED_ROOT
from bf16codecs.store.zarr.writer import ChunkWriter
from bf16codecs.torch.checkpoint.encoding import (
    ChunkEncoder,
    chunks_of,
)
from bf16codecs.torch.checkpoint.planning import Bounds, common, is_small
from bf16codecs.torch.checkpoint.shards import Shard, followers

__all__ = [
    "SCRATCH",
    "ObjectReport",
    "Settings",
    "ShardReport",
    "Task",
    "opened_encoder",
    "write_items",
]

#: Below it are objects, and parts of chunks, until the coordinator has assembled them.
SCRATCH = f"{RESERVED_ROOT}/scratch"
# Objects are written together, up to this size: a process has hundreds, of a few bytes each.
_OBJECTS_BYTES = 1 << 22


@dataclass(frozen=True)
class Settings:
    """Settings of checkpoints, from the arguments of `StoreWriter`."""

    options: Options
    #: Whether a shard's first chunk decides whether level best is used for it.
    is_measured: bool
    #: Whether chunks are stored whole if the base cannot be read.
    is_base_optional: bool

    @property
    def base(self) -> str | None:
        """The path or address of the model that tensors are stored as differences to."""
        base = self.options.base
        return None if base is None else os.fspath(base)

    def with_base(self, base: str | None) -> Settings:
        """Return the same settings with another base."""
        return replace(self, options=replace(self.options, base=base))

    def at(self, target: Target) -> Settings:
        """Return the settings of a checkpoint at a target, which may share its storage options."""
        if isinstance(target, Path):
            return self
        given = self.options.storage_options
        of_base = address_scheme(canonical_address(self.base or ""))
        options = given if of_base == address_scheme(target) else None
        return replace(
            self, options=replace(self.options, storage_options=options, target_options=given)
        )


@dataclass(frozen=True)
class Task:
    """The coordinator's instructions to each process.

    `writer` writes chunks of the checkpoint `target`: on a disk, into `folder`.
    `arrays` are those that the process has shards of. `processes` counts those that share its
    processors.
    """

    target: Target
    folder: Path | None
    arrays: Mapping[str, ArrayPlan]
    writer: ChunkWriter
    settings: Settings
    processes: int = 1


@dataclass(frozen=True)
class ShardReport:
    """A process's report of its shard of a tensor."""

    bounds: Bounds
    #: `COPY` or `ROUNDING`, and the tensor that the shard follows from: then nothing was written.
    follows: tuple[str, str] | None = None
    #: The bytes of the shard, if the tensor is small: then nothing was written.
    content: bytes | None = None
    #: Chunks that other processes also have items of: their indices, and the keys of this part.
    parts: tuple[tuple[ChunkIndex, str], ...] = ()
    #: Whether its chunks were encoded with level best.
    is_best: bool = False


@dataclass(frozen=True)
class ObjectReport:
    """A process's report of an object: its key, and the offset and size of its bytes there."""

    key: str
    offset: int
    size: int


def write_items(plan: SavePlan, planner: SavePlanner, task: Task) -> list[WriteResult]:
    """Write a process's tensors and objects; return the results for the coordinator.

    Raises FileNotFoundError if this process cannot see the coordinator's folder.
    """
    if task.folder is not None and not task.folder.is_dir():
        text = "not seen by this process: all of a job must write to one file system, and its"
        text += " coordinator must be alive"
        raise FileNotFoundError(errno.ENOENT, text, str(task.target))
    objects = [item for item in plan.items if item.type is WriteItemType.BYTE_IO]
    tensors = [item for item in plan.items if item.type is not WriteItemType.BYTE_IO]
    shards = [Shard.of(item, planner) for item in tensors]
    follows = followers(shards, task.arrays)
    return [*_write_objects(objects, planner, task), *_write_shards(shards, follows, task)]


def _write_objects(
    items: Sequence[WriteItem], planner: SavePlanner, task: Task
) -> Iterator[WriteResult]:
    together: list[tuple[WriteItem, int]] = []
    content = bytearray()
    for item in items:
        found = planner.resolve_data(item)
        assert isinstance(found, io.BytesIO)
        together.append((item, len(content)))
        content += found.getbuffer()
        if len(content) < _OBJECTS_BYTES and item is not items[-1]:
            continue
        key, end = task.writer.put(SCRATCH, content), len(content)
        for each, offset in reversed(together):
            yield WriteResult(each.index, end - offset, ObjectReport(key, offset, end - offset))
            end = offset
        together, content = [], bytearray()


def _write_shards(
    shards: Sequence[Shard], follows: Mapping[int, tuple[str, str]], task: Task
) -> list[WriteResult]:
    with opened_encoder(task) as encoder:
        works = [
            _ShardWork(shard, task, encoder, follows.get(index))
            for index, shard in enumerate(shards)
        ]
        jobs = (job for work in works for job in work.jobs())
        with closing(run_ahead(jobs, max(worker_count(), task.writer.concurrency))) as done:
            for _ in done:
                pass
    if task.folder is not None and task.settings.options.sync:
        # Many files at a time, at the end: after each chunk, encoding would wait for the disk.
        sync_files(task.folder / key for work in works for key in work.keys)
    return [work.result() for work in works]


class _ShardWork:
    """The work on a shard, and its result; without jobs if it `follows` from another tensor."""

    def __init__(
        self,
        shard: Shard,
        task: Task,
        encoder: ChunkEncoder,
        follows: tuple[str, str] | None,
    ) -> None:
        self._shard, self._task, self._encoder, self._follows = shard, task, encoder, follows
        self._array = task.arrays[shard.name]
        self._is_small = is_small(shard.item)
        self._parts: list[tuple[ChunkIndex, str]] = []
        self._sizes: list[int] = []
        # Whether level best pays; the first chunk decides, and then sets the event.
        self._is_best = False
        self._is_known = threading.Event()
        #: Keys of the chunks that were written.
        self.keys: list[str] = []

    def jobs(self) -> Iterator[Callable[[], None]]:
        """Yield the jobs that write the shard; the first one has to begin first."""
        if self._follows is not None or self._is_small:
            return
        box = self._shard.bounds.axes
        for index in chunks_of(self._array, box):
            axes = self._array.region(index)
            covered = tuple(map(common, axes, box))
            if covered == axes:
                is_first = not self.keys
                self.keys.append(self._task.writer.key(self._array, index))
                yield partial(self._put, index, axes, is_first)
            else:
                yield partial(self._put_part, index, covered)

    def _put(self, index: ChunkIndex, axes: Sequence[range], is_first: bool) -> None:
        try:
            values = self._shard.values(self._array, axes)
            if is_first and self._task.settings.is_measured:
                self._is_best = self._encoder.best_pays(self._array, index, values)
        finally:
            if is_first:  # even after an error: the other jobs wait
                self._is_known.set()
        self._is_known.wait()
        array = replace(self._array, level="best") if self._is_best else self._array
        self._sizes.append(self._encoder.put(array, index, values))

    def _put_part(self, index: ChunkIndex, axes: Sequence[range]) -> None:
        values = np.ascontiguousarray(self._shard.values(self._array, axes))
        content = values.reshape(-1).view(np.uint8)
        self._parts.append((index, self._task.writer.put(SCRATCH, content)))
        self._sizes.append(content.size)

    def result(self) -> WriteResult:
        """Return the result for the coordinator."""
        shard = self._shard
        content = shard.content() if self._is_small else None
        report = ShardReport(
            shard.bounds, self._follows, content, tuple(self._parts), self._is_best
        )
        return WriteResult(shard.item.index, sum(self._sizes), report)


@contextmanager
def opened_encoder(task: Task) -> Iterator[ChunkEncoder]:
    """Yield an encoder of chunks of the task's arrays, with their base open."""
    differences = {name: array for name, array in task.arrays.items() if array.has_base}
    settings = task.settings
    if settings.base is None or not differences:
        yield ChunkEncoder(task.writer, {})
        return
    try:
        opened = open_any(settings.base, Opening(settings.options.storage_options, chain=("",)))
    except (BF16CodecsError, OSError) as e:
        if not settings.is_base_optional:
            raise
        encoder = ChunkEncoder(task.writer, {}, is_base_optional=True)
        encoder.warn_of_base(e)
        yield encoder
        return
    with closing(opened) as base:
        bases = {}
        for name, array in differences.items():
            counterpart = base.counterpart(name, array.dtype, array.shape)
            if counterpart is None:
                raise BaseMismatchError(f"{base.where}: changed while it was read as a base")
            bases[array.path] = counterpart
        yield ChunkEncoder(task.writer, bases, settings.is_base_optional)
