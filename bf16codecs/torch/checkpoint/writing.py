"""Writes each process's part of a checkpoint: chunks, and parts of shared chunks."""

from __future__ import annotations

import errno
import io
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.distributed.checkpoint import SavePlan, SavePlanner
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex
from bf16codecs._base.threads import run_ahead, worker_count
from bf16codecs._files.sync import sync_files
from bf16codecs.errors import BaseMismatchError, BF16CodecsError
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.opening import Opening, open_any
from bf16codecs.store.zarr.writer import ChunkWriter
from bf16codecs.torch.checkpoint.encoding import (
    ChunkEncoder,
    chunk_file,
    chunks_of,
)
from bf16codecs.torch.checkpoint.planning import Bounds, common, is_small
from bf16codecs.torch.checkpoint.shards import Shard, followers

__all__ = [
    "ObjectReport",
    "Settings",
    "ShardReport",
    "Task",
    "opened_encoder",
    "write_items",
]

# The folder of temporary files, beside the new checkpoint in the working folder.
_SCRATCH = "scratch"


@dataclass(frozen=True)
class Settings:
    """Settings of checkpoints, from the arguments of `StoreWriter`."""

    choice: CodecChoice
    #: Whether a shard's first chunk decides whether level best is used for it.
    is_measured: bool
    chunk_size: int
    #: The path or address of the model that tensors are stored as differences to.
    base: str | None
    #: Whether chunks are stored whole if the base cannot be read.
    is_base_optional: bool
    #: Options of the file system of a base at an address.
    storage_options: Mapping[str, Any] | None
    overwrite: bool
    sync: bool


@dataclass(frozen=True)
class Task:
    """The coordinator's instructions to each process.

    `folder` becomes the checkpoint `target`; `writer` writes chunks into it. `arrays` are those
    that the process has shards of. `processes` counts those that share its processors.
    """

    target: Path
    folder: Path
    arrays: Mapping[str, ArrayPlan]
    writer: ChunkWriter
    settings: Settings
    processes: int = 1

    @property
    def scratch(self) -> Path:
        """The folder of objects, and of parts of chunks, which the coordinator assembles."""
        return self.folder.with_name(_SCRATCH)


@dataclass(frozen=True)
class ShardReport:
    """A process's report of its shard of a tensor."""

    bounds: Bounds
    #: `COPY` or `ROUNDING`, and the tensor that the shard follows from: then nothing was written.
    follows: tuple[str, str] | None = None
    #: The bytes of the shard, if the tensor is small: then nothing was written.
    content: bytes | None = None
    #: Chunks that other processes also have items of: their indices, and the files of this part.
    parts: tuple[tuple[ChunkIndex, str], ...] = ()
    #: Whether its chunks were encoded with level best.
    is_best: bool = False


@dataclass(frozen=True)
class ObjectReport:
    """A process's report of an object: its file, and the offset and size of its bytes there."""

    file: str
    offset: int
    size: int


def write_items(plan: SavePlan, planner: SavePlanner, task: Task) -> list[WriteResult]:
    """Write a process's tensors and objects; return the results for the coordinator.

    Raises FileNotFoundError if this process cannot see the coordinator's folder.
    """
    if not task.folder.is_dir():
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


def _write_shards(
    shards: Sequence[Shard], follows: Mapping[int, tuple[str, str]], task: Task
) -> list[WriteResult]:
    with opened_encoder(task) as encoder:
        works = [
            _ShardWork(shard, task, encoder, follows.get(index))
            for index, shard in enumerate(shards)
        ]
        jobs = (job for work in works for job in work.jobs())
        with closing(run_ahead(jobs, worker_count())) as done:
            for _ in done:
                pass
    if task.settings.sync:
        # Many files at a time, at the end: after each chunk, encoding would wait for the disk.
        sync_files(path for work in works for path in work.files)
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
        #: Files of the chunks that were written.
        self.files: list[str] = []

    def jobs(self) -> Iterator[Callable[[], None]]:
        """Yield the jobs that write the shard; the first one has to begin first."""
        if self._follows is not None or self._is_small:
            return
        box = self._shard.bounds.axes
        for index in chunks_of(self._array, box):
            axes = self._array.region(index)
            covered = tuple(map(common, axes, box))
            if covered == axes:
                is_first = not self.files
                self.files.append(chunk_file(self._task.folder, self._array, index))
                yield partial(self._put, index, axes, is_first)
            else:
                name = f"{secrets.token_hex(8)}.part"
                self._parts.append((index, name))
                yield partial(self._put_part, self._task.scratch / name, covered)

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

    def _put_part(self, path: Path, axes: Sequence[range]) -> None:
        with open(path, "xb") as file:
            values = np.ascontiguousarray(self._shard.values(self._array, axes))
            self._sizes.append(file.write(values.data))

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
        opened = open_any(settings.base, Opening(settings.storage_options, chain=("",)))
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
