"""Encodes a process's shards of a step, and writes them in packs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex
from bf16codecs._base.threads import run_ahead, worker_count
from bf16codecs.codecs.frames import encode_version
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.opening import Opening, open_any
from bf16codecs.store.published.layout import CHANGE, WHOLE
from bf16codecs.store.published.packs import Frame, PlannedArray, pack_of
from bf16codecs.store.published.places import opened_sink
from bf16codecs.store.published.roots import Sink, Where
from bf16codecs.torch.checkpoint.encoding import chunks_of
from bf16codecs.torch.checkpoint.shards import Shard
from bf16codecs.torch.publishing.copies import Copies, Previous

__all__ = ["Report", "Task", "write_packs"]

# A pack has no more than this, or one frame: it is made in memory, and a follower reads all of it.
_PACK_BYTES = 1 << 26


@dataclass(frozen=True)
class Task:
    """The coordinator's instructions to a process.

    `key` is the folder of the step's packs, and `process` the process's number. `arrays` are by
    tensor, with their numbers. `before` has the number and the key of the step before, if there is
    one; `is_whole` asks for all of this step as well.
    """

    where: Where
    key: str
    process: int
    processes: int
    arrays: Mapping[str, tuple[int, ArrayPlan]]
    choice: CodecChoice
    before: tuple[int, str] | None
    is_whole: bool


@dataclass
class Report:
    """A process's report: the sizes of its packs by kind and name, and its chunks by array."""

    packs: dict[str, dict[str, int]] = field(default_factory=dict)
    chunks: Counter[int] = field(default_factory=Counter)


class _Encoded(NamedTuple):
    """A chunk as frames, by kind, and its numbers."""

    array: int
    chunk: int
    frames: Mapping[str, bytes]


def write_packs(task: Task, shards: Sequence[Shard], copies: Copies | None) -> Report:
    """Encode shards, and write packs with them; report these."""
    report = Report()
    with ExitStack() as stack:
        previous = stack.enter_context(_previous(task, shards, copies))
        sink = stack.enter_context(closing(opened_sink(task.where)))
        packers = {kind: _Packer(sink, task, kind, report) for kind in _kinds(task)}
        jobs = (job for shard in shards for job in _jobs(shard, task, previous))
        for encoded in stack.enter_context(closing(run_ahead(jobs, worker_count()))):
            report.chunks[encoded.array] += 1
            for kind, content in encoded.frames.items():
                packers[kind].add(Frame(encoded.array, encoded.chunk, content))
        for packer in packers.values():
            packer.finish()
    return report


def _kinds(task: Task) -> Iterator[str]:
    if task.before is not None:
        yield CHANGE
    if task.is_whole:
        yield WHOLE


@contextmanager
def _previous(task: Task, shards: Sequence[Shard], copies: Copies | None) -> Iterator[Previous]:
    """Yield the values of the step before: copies, and what is read where there are none."""
    if task.before is None:
        yield Previous(None, {})
        return
    number, key = task.before
    known = copies if copies is not None and copies.step == key else None
    lacking = {shard.name for shard in shards if not _has_copy(known, shard)}
    if not lacking:
        yield Previous(known, {})
        return
    with closing(open_any(f"{task.where}@{number}", Opening(task.where.options))) as reader:
        yield Previous(known, {name: reader.tensor(name).array for name in lacking})


def _has_copy(copies: Copies | None, shard: Shard) -> bool:
    return copies is not None and copies.get((shard.name, shard.bounds)) is not None


def _jobs(shard: Shard, task: Task, previous: Previous) -> Iterator[Callable[[], _Encoded]]:
    """Yield jobs that encode the chunks of a shard."""
    _, array = task.arrays[shard.name]
    for index in chunks_of(array, shard.bounds.axes):
        yield partial(_encode, shard, index, task, previous)


def _encode(shard: Shard, index: ChunkIndex, task: Task, previous: Previous) -> _Encoded:
    number, array = task.arrays[shard.name]
    codec, axes = task.choice.for_difference(array.dtype), array.region(index)
    values = _padded(array, shard.values(array, axes))
    frames = {}
    if task.before is not None:
        base = _padded(array, previous.box((shard.name, shard.bounds), axes))
        frames[CHANGE] = encode_version(codec, values, base)
    if task.is_whole:
        frames[WHOLE] = encode_version(codec, values)
    chunk = PlannedArray(array.path, array.shape, array.chunks).number(index)
    return _Encoded(number, chunk, frames)


def _padded(array: ArrayPlan, values: NDArray[Any]) -> NDArray[Any]:
    """Return a whole chunk, with fill values where it reaches beyond the tensor."""
    if values.shape == array.chunks:
        return np.ascontiguousarray(values)
    fill = np.array(array.fill_value, array.dtype).view(values.dtype)
    padded = np.full(array.chunks, fill, values.dtype)
    padded[tuple(map(slice, values.shape))] = values
    return padded


class _Packer:
    """Writes frames of one kind in packs."""

    def __init__(self, sink: Sink, task: Task, kind: str, report: Report) -> None:
        self._sink, self._task, self._kind = sink, task, kind
        self._sizes = report.packs.setdefault(kind, {})
        self._frames: list[Frame] = []
        self._nbytes = 0

    def add(self, frame: Frame) -> None:
        """Add a frame."""
        if self._nbytes and self._nbytes + len(frame.content) > _PACK_BYTES:
            self._flush()
        self._frames.append(frame)
        self._nbytes += len(frame.content)

    def finish(self) -> None:
        """Write what is left; at least one pack, even if all tensors are empty."""
        if self._frames or not self._sizes:
            self._flush()

    def _flush(self) -> None:
        """Write a pack of the frames that were added."""
        name = f"{self._kind}.{self._task.process}.{len(self._sizes)}"
        content = pack_of(self._frames)
        self._sink.put(f"{self._task.key}/{name}", content)
        self._sizes[name] = len(content)
        self._frames, self._nbytes = [], 0
