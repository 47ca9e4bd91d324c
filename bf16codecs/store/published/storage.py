"""The keys of the run store that a published run stands for.

docs/published_runs.md, "The run store that it stands for", is the normative description.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bf16codecs._arrays.grid import ChunkIndex
from bf16codecs._arrays.storage import InMemory, KeyStorage, StoredChunk
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.cached import cached_property
from bf16codecs._base.messages import damaged
from bf16codecs.errors import ServerError, StoreError
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.published.layout import CHANGE, WHOLE, PublishedInfo, PublishedStep
from bf16codecs.store.published.packs import Extent, Packs
from bf16codecs.store.published.plan import HEADER_PATH, Plan, read_plan
from bf16codecs.store.published.scattered import ScatteredChunk
from bf16codecs.store.runs.layout import STEPS_CHUNK

__all__ = ["MOST_CHANGES", "PackedStorage", "Window", "refuse_zarr"]

#: Each step takes a pass over all blocks, and a block has at most so many ancestors. Reading the
#: whole step takes as many passes as there are steps from one that is whole, 31 by default.
MOST_CHANGES = 63
_ROOT = "zarr.json"


def refuse_zarr() -> NoReturn:
    """Raise ValueError: zarr cannot read packs."""
    raise ValueError("a published run: Zarr libraries cannot read its packs")


class Window(NamedTuple):
    """The key of a chunk with the steps of a range: the first is at hand, the others are coded.

    `chunk` is the chunk's index without the first axis.
    """

    path: str
    chunk: ChunkIndex
    steps: range


class PackedStorage(KeyStorage):
    """Storage of the run store that a published run stands for.

    `first` is the storage of the same run with other steps, if it was opened before: then plan and
    packs are shared, and closing this one leaves them open.
    """

    def __init__(
        self,
        where: str,
        storage: KeyStorage,
        info: PublishedInfo,
        first: PackedStorage | None = None,
    ) -> None:
        self._is_shared = first is not None
        self._where, self.info, self._storage = where, info, storage
        self.concurrency = storage.concurrency
        self.plan: Plan = read_plan(where, storage, info) if first is None else first.plan
        planned = self.plan.planned
        self.packs: Packs = Packs(where, storage, planned) if first is None else first.packs
        self._memory = ThreadBuffer()
        self._end = len(info.steps)

    def with_info(self, info: PublishedInfo) -> PackedStorage:
        """Return the storage with other steps of the same run."""
        return PackedStorage(self._where, self._storage, info, self)

    def read_up_to(self, index: int) -> None:
        """Read no step after one."""
        self._end = index + 1

    def read(self, key: str) -> Bytes | None:
        """Read the root's document; all others are in it."""
        if key != _ROOT:
            return None
        return np.frombuffer(self.plan.root(self.info), np.uint8)

    def size(self, key: str) -> int:
        """Return the size of a key, 0 if it does not exist."""
        try:
            with self.open(key) as stored:
                return stored.size or 0
        except StoreError:
            return 0

    def folder_size(self, path: str) -> int:
        """Return the size of all packs, or of the frames of an array in them."""
        steps = self.info.steps
        if not path:
            return sum(step.nbytes(kind) for step in steps for kind in (CHANGE, WHOLE))
        if path not in self.plan.arrays:
            return len(self.plan.header) if path == HEADER_PATH else 8 * len(steps)
        number = self._numbers[path]
        kinds = [(step, kind) for step in steps for kind in step.packs]
        found = (self.packs.extents(step, kind) for step, kind in kinds)
        return sum(
            extent.size
            for extents in found
            for (array, _), extent in extents.items()
            if array == number
        )

    def open(self, key: str | Window) -> StoredChunk:
        """Open a chunk; raise StoreError if it does not exist."""
        if isinstance(key, Window):
            return self._window(key)
        path, _, name = key.rpartition("/")
        index = tuple(map(int, name.split(".")[1:]))
        if path == HEADER_PATH:
            return InMemory(self.plan.header)
        if path == STEP_PATH:
            first = index[0] * STEPS_CHUNK
            numbers = np.zeros(STEPS_CHUNK, "<i8")
            found = self.info.numbers[first : first + STEPS_CHUNK]
            numbers[: len(found)] = found
            return InMemory(numbers.tobytes())
        return self._group(key, path, index)

    def close(self) -> None:
        """Close files and connections, unless this shares them with another one."""
        if not self._is_shared:
            self._storage.close()

    def prepare(self, known: int | None, wanted: int, least: int) -> int:
        """Get what the reader of a step needs, who may have the values of a known earlier one.

        All are indices of steps. Returns that of the step; where files of it are not there yet,
        that of the last one before of which all are. Raises StoreError if that would be one before
        the least; ServerError if the server cannot give parts of files.
        """
        changed = None if known is None else self._changed(known, wanted)
        whole = wanted - self.info.slot(wanted)
        first = whole if changed is None else wanted + 1 - len(changed)
        for index in range(first, wanted + 1):
            kind = WHOLE if changed is None and index == first else CHANGE
            try:
                if changed is not None:
                    self.packs.fetch(changed[: index + 1 - first])
                self.packs.extents(self.info.steps[index], kind)
            except ServerError:
                raise
            except StoreError:
                if changed is not None and whole >= index:
                    with suppress(StoreError):  # which is the same one, as a rule
                        return self.prepare(None, wanted, max(least, index))
                if index <= least:
                    raise
                return index - 1 if kind == CHANGE else self.prepare(known, index - 1, least)
        return wanted

    def window(self, known: int, wanted: int) -> range | None:
        """Return the steps from one that is at hand to a later one, and get what has changed.

        The result is None if decoding the later one whole is better, or the only way.
        """
        changed = self._changed(known, wanted)
        if changed is None:
            return None
        self.packs.again(lambda: self.packs.fetch(changed))
        return range(known, wanted + 1)

    def _changed(self, known: int, wanted: int) -> Sequence[PublishedStep] | None:
        """Return the steps whose differences lead from one to a later one, if that is better."""
        if not 0 < wanted - known <= MOST_CHANGES:
            return None
        changed = self.info.steps[known + 1 : wanted + 1]
        return changed if all(CHANGE in step.packs for step in changed) else None

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {path: number for number, path in enumerate(self.plan.arrays)}

    def _group(self, key: str, path: str, index: ChunkIndex) -> StoredChunk:
        group = self.info.group
        steps = self.info.steps[index[0] * group : min((index[0] + 1) * group, self._end)]
        extents: list[Extent | StoreError] = []
        for slot, step in enumerate(steps):
            try:
                extents.append(self._extent(path, index[1:], step, CHANGE if slot else WHOLE))
            except StoreError as e:  # earlier steps can be read all the same
                extents.append(e)
        return self._scattered(key, path, group, extents)

    def _window(self, key: Window) -> StoredChunk:
        steps = [self.info.steps[index] for index in key.steps[1:]]
        extents = [self._extent(key.path, key.chunk, step, CHANGE) for step in steps]
        return self._scattered(key, key.path, len(key.steps), [None, *extents])

    def _scattered(
        self, key: Any, path: str, room: int, extents: Sequence[Extent | StoreError | None]
    ) -> StoredChunk:
        array = self.plan.arrays[path]
        return ScatteredChunk(self.packs, self._memory, key, array, room, extents)

    def _extent(self, path: str, index: ChunkIndex, step: PublishedStep, kind: str) -> Extent:
        number = self._numbers[path]
        chunk = self.plan.planned[number].number(index)
        extents = self.packs.again(lambda: self.packs.extents(step, kind))
        extent = extents.get((number, chunk))
        if extent is None:
            raise StoreError(damaged(f"no pack of step {step.number} has a frame of it"))
        return extent
