"""Updates arrays from one model to another, whose differences are decoded against them.

Each array has the old or the new values, whatever fails. Where differences are decoded in place,
a log has what they have changed until a tensor is right; other tensors are decoded beside their
arrays.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._arrays.array import Job
from bf16codecs._arrays.memory import MemoryArray
from bf16codecs._base.arguments import as_integer
from bf16codecs._base.buffers import Bytes, ThreadBuffer, aligned
from bf16codecs._base.messages import few, one_line
from bf16codecs._base.threads import run_all
from bf16codecs.errors import BaseMismatchError, UpdateError
from bf16codecs.model.tensor import LazyTensor, check_together
from bf16codecs.store.bases import chain_of, check_base, identity
from bf16codecs.store.opening import Opening, open_any, split_step
from bf16codecs.store.reader import Against, ModelReader
from bf16codecs.store.runs.reader import StepReader

__all__ = ["Part", "Update", "grouped", "have_of", "update"]

# Tensors are decoded together up to this size; a larger one takes memory of its size.
_TOGETHER_BYTES = 1 << 26
_ALIGNMENT = 64
# How many names a message lists.
_SHOWN = 3


class Update:
    """The tensors of a model to update, each with the array of its values.

    Arrays have the tensor's shape and dtype, and are contiguous in C order. They have the values of
    `have`, unless that is None.
    """

    def __init__(
        self, pairs: Sequence[tuple[LazyTensor, NDArray[Any]]], have: ModelReader | None
    ) -> None:
        check_together([tensor for tensor, _ in pairs])
        self._items: list[_Item] = []
        for tensor, values in pairs:
            found = Against(tensor._array)
            if have is not None:
                stored = MemoryArray(values.view(found.array.dtype))
                found = tensor._handle.opened.against(tensor.name, have, stored)
            self._items.append(_Item(tensor, found, values))
        concurrency = (item.found.array.concurrency for item in self._items)
        self._concurrency = max(1, min(concurrency, default=1))

    def check_bases(self) -> None:
        """Raise BaseMismatchError unless all arrays have the values that differences are to."""
        jobs = (job for item in self._items for job in item.base_jobs())
        try:
            run_all(jobs, self._concurrency)
        except BaseMismatchError as e:
            raise BaseMismatchError(
                f"the tensors do not have the values of `have`: update without it, which loads all"
                f" of the model: {e}"
            ) from e

    def run(self) -> Iterator[str]:
        """Update the arrays, and yield the names of tensors that are new."""
        for items in grouped(self._items, _TOGETHER_BYTES):
            yield from self._run_group(items)

    def _run_group(self, items: Sequence[_Item]) -> Iterator[str]:
        works, log = _works_on(items), _thread.log
        jobs = (job for work in works for job in work.jobs(log))
        try:
            log.clear()
            run_all(jobs, self._concurrency, max(item.scratch_nbytes for item in items))
        except BaseException:
            _undo(log)
            raise
        finally:
            log.clear()
        for work in works:
            work.finish()
            yield work.item.tensor.name


def _undo(log: _core.UndoLog) -> None:
    """Let all values be what they were, whatever signals arrive."""
    interrupted: BaseException | None = None
    while True:
        try:
            log.undo()
            break
        except BaseException as e:
            interrupted = e
    if interrupted is not None:
        raise interrupted


class _Sized(Protocol):
    @property
    def room(self) -> int:
        """How much memory it takes."""


T = TypeVar("T", bound=_Sized)


def grouped(items: Iterable[T], most_nbytes: int) -> Iterator[list[T]]:
    """Yield groups of items that take at most so much memory together, or are alone."""
    group: list[T] = []
    nbytes = 0
    for item in items:
        room = item.room
        if group and nbytes + room > most_nbytes:
            yield group
            group, nbytes = [], 0
        group.append(item)
        nbytes += room
    if group:
        yield group


class _Item(NamedTuple):
    """A tensor to update."""

    tensor: LazyTensor
    found: Against
    values: NDArray[Any]

    @property
    def room(self) -> int:
        """How much memory it takes to decode it."""
        return aligned(self.tensor.nbytes, _ALIGNMENT)

    @property
    def is_in_place(self) -> bool:
        """Whether its values are decoded where they are."""
        return self.found.logging is not None

    @property
    def scratch_nbytes(self) -> int:
        """How much memory reading a chunk takes beside that."""
        return self.found.array.scratch_nbytes if self.tensor.size else 0

    def base_jobs(self) -> Iterator[Job]:
        """Yield jobs that compare its values with those that the model needs."""
        return iter(()) if self.found.base_jobs is None else self.found.base_jobs()


class _Work:
    """The decoding of a tensor, in place, or to memory of its size."""

    def __init__(self, item: _Item, memory: Bytes) -> None:
        self.item, self._memory = item, memory

    def jobs(self, log: _core.UndoLog) -> Iterator[Job]:
        """Yield jobs that decode it; the log has what they change in place."""
        array, out = self.item.found.array, self._memory
        if self.item.found.logging is not None:
            array, out = self.item.found.logging(log), self._values
        stored = out.view(array.dtype).reshape(array.shape)
        return array.box_jobs([range(size) for size in array.shape], stored)

    @property
    def _values(self) -> Bytes:
        return self.item.values.reshape(-1).view(np.uint8)

    def finish(self) -> None:
        """Let the values be the new ones."""
        if not self.item.is_in_place:
            self._values[:] = self._memory


class _Thread(threading.local):
    """An undo log of each thread."""

    def __init__(self) -> None:
        self.log = _core.UndoLog()


# Of this thread: memory that the allocator gives back and forth would be new pages every time.
_memory, _thread = ThreadBuffer(), _Thread()


def _works_on(items: Sequence[_Item]) -> list[_Work]:
    """Return works on tensors; their memory is this thread's until its next call."""
    nbytes = sum(item.room for item in items if not item.is_in_place)
    rest: Bytes = _memory.get(nbytes) if nbytes <= _TOGETHER_BYTES else np.empty(nbytes, np.uint8)
    works = []
    for item in items:
        works.append(_Work(item, rest[: item.tensor.nbytes]))
        rest = rest if item.is_in_place else rest[item.room :]
    return works


class Part(Protocol):
    """Tensors to update that are in one kind of memory."""

    def check_bases(self) -> None:
        """Raise BaseMismatchError unless all have the values that differences are to."""

    def run(self) -> Iterator[str]:
        """Update the tensors, and yield the names of those that are new."""


def update(parts: Sequence[Part], trust_base: bool) -> None:
    """Update tensors to those of a model: see `Model.update`."""
    updated: list[str] = []
    for part in parts if not trust_base else ():
        part.check_bases()
    try:
        for name in chain.from_iterable(part.run() for part in parts):
            updated.append(name)
    except Exception as e:
        if not updated:
            raise
        raise UpdateError(
            f"{one_line(e)}; new by now: {few(updated, _SHOWN)}; all other tensors are as before",
            updated,
        ) from e


def have_of(
    reader: ModelReader, have: Any, options: Mapping[str, Any] | None
) -> ModelReader | None:
    """Return the model among those that a model comes from that has the values at hand.

    `have` is the number of a step, or what `open_model` opens, with `options`. It is None where the
    model does not come from it, or the run no longer has the step. Raises ValueError if it is a
    number, and the model is not a step of a run.
    """
    if have is None:
        return None
    if isinstance(have, ModelReader):
        where, step = have.location
        if step is None or not isinstance(reader, StepReader) or not _is_same(reader, where):
            return _in_chain(reader, have)
        if isinstance(have, StepReader) and not _has_step(reader, have):
            return None
        have = step
    if isinstance(have, (str, os.PathLike)):
        path, step = split_step(have)
        if step is None or not isinstance(reader, StepReader) or not _is_same(reader, path):
            with closing(open_any(have, Opening(options))) as opened:
                return _in_chain(reader, opened)
        have = step
    number = as_integer("have", have)
    if not isinstance(reader, StepReader):
        raise ValueError(
            f"have={number}: the number of a step, but {reader.where} is no step of a run: give the"
            " path of the model whose values are at hand"
        )
    run = reader.run
    if number not in run.numbers:
        return None
    return StepReader(reader.store, run.numbers.index(number), closes_store=False)


def _has_step(reader: StepReader, other: StepReader) -> bool:
    """Tell whether a run has a step; it may have begun anew, and have another of this number."""
    numbers, (_, number) = reader.run.numbers, other.location
    return number in numbers and reader.stored.step_key(numbers.index(number)) == other.key


def _in_chain(reader: ModelReader, have: ModelReader) -> ModelReader | None:
    """Return the base of a model, or the base of that, and so on, that is another model."""
    for model, base in pairwise(chain_of(reader)):
        assert model.info.base is not None
        with suppress(BaseMismatchError):
            check_base(model.info.base, have, reader.where)
            return base
    return None


def _is_same(reader: ModelReader, path: str) -> bool:
    """Tell whether a path is that of a reader's store."""
    where, _ = reader.location
    return bool(where) and identity(where) == identity(path)
