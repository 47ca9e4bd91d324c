"""The keys of the run store that a published run stands for.

docs/published_runs.md, "The run store that it stands for", is the normative description.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.grid import ChunkIndex, chunk_counts
from bf16codecs._arrays.storage import (
    READ_BYTES,
    AtMost,
    InMemory,
    KeyStorage,
    Request,
    StoredChunk,
)
from bf16codecs._base.buffers import Bytes, ThreadBuffer, layout_for
from bf16codecs._base.cached import cached_property
from bf16codecs._base.messages import damaged, named_errors, one_line
from bf16codecs.errors import StoreError
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.plan import header_path
from bf16codecs.store.published.layout import (
    CHANGE,
    LAYOUT,
    WHOLE,
    PublishedInfo,
    PublishedStep,
)
from bf16codecs.store.published.packs import Extent, Packs, PlannedArray
from bf16codecs.store.runs.layout import STEPS_CHUNK
from bf16codecs.store.zarr.metadata import ParsedArray, parse_array, read_json

__all__ = ["PackedStorage", "Plan", "Window", "is_published", "published_info", "refuse_zarr"]

_ROOT = "zarr.json"
_HEADER = header_path(0)
# In the place of a frame that is not looked at, since its version's values are at hand.
_AT_HAND = bytes(1)


def refuse_zarr() -> NoReturn:
    """Raise ValueError: zarr cannot read packs."""
    raise ValueError("a published run: Zarr libraries cannot read its packs")


def is_published(attributes: Mapping[str, Any]) -> bool:
    """Tell whether a root's attributes are those of a published run."""
    content = attributes.get(ATTRIBUTES_KEY)
    return isinstance(content, Mapping) and content.get("layout") == LAYOUT


def published_info(where: str, attributes: Mapping[str, Any]) -> PublishedInfo:
    """Return what the attributes of a published run say; raise StoreError if they are damaged."""
    try:
        return PublishedInfo.from_content(attributes[ATTRIBUTES_KEY])
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        why = e if isinstance(e, KeyError) else one_line(e)
        raise StoreError(f"{where}: {damaged(why, 'damaged store attributes')}") from e


class Window(NamedTuple):
    """The key of a chunk with the steps of a range: the first is at hand, the others are coded.

    `chunk` is the chunk's index without the first axis.
    """

    path: str
    chunk: ChunkIndex
    steps: range


class Plan:
    """The plan of a published run: a run store's root with the first step, and a header."""

    def __init__(self, where: str, content: Mapping[str, Any], group: int) -> None:
        with named_errors(where):
            try:
                self._read(content, group)
            except (KeyError, TypeError, AttributeError, ValueError) as e:
                why = e if isinstance(e, KeyError) else one_line(e)
                raise StoreError(damaged(why, "damaged plan")) from e

    def _read(self, content: Mapping[str, Any], group: int) -> None:
        self._root, header = content["root"], content["header"]
        self.header = header.encode()
        ours = self._root["attributes"][ATTRIBUTES_KEY]
        self._step = ours["steps"][0]
        if ours["run"]["group"] != group:
            raise ValueError("its groups have another length")
        placements = (each for of_tensor in ours["tensors"].values() for each in of_tensor)
        paths = {each["path"] for each in placements if "path" in each}
        documents = self._root["consolidated_metadata"]["metadata"]
        for path in {*paths, STEP_PATH}:
            if not isinstance(documents[path]["shape"], list):
                raise TypeError(f"{path!r:.80} has no shape")
        #: The arrays of tensors by path, sorted.
        self.arrays: dict[str, ParsedArray] = {}
        for path in sorted(paths):
            parsed = parse_array(3, documents[path])
            if parsed is None or parsed.chunks[:1] != (group,):
                raise ValueError(f"{path!r:.80} has no chunks of groups of steps")
            self.arrays[path] = parsed
        self.planned = [PlannedArray(path, _chunks(each)) for path, each in self.arrays.items()]

    def root(self, info: PublishedInfo) -> bytes:
        """Return the document of the root of the run store with all steps of a published run."""
        documents = dict(self._root["consolidated_metadata"]["metadata"])
        for path in (*self.arrays, STEP_PATH):
            shape = [len(info.steps), *documents[path]["shape"][1:]]
            documents[path] = {**documents[path], "shape": shape}
        steps = [
            {
                "step": step.number,
                "files": self._step["files"],
                "parent": index - 1 if info.slot(index) else None,
            }
            for index, step in enumerate(info.steps)
        ]
        ours = self._root["attributes"][ATTRIBUTES_KEY]
        root = {
            **self._root,
            "attributes": {ATTRIBUTES_KEY: {**ours, "layout": LAYOUT, "steps": steps}},
            "consolidated_metadata": {
                **self._root["consolidated_metadata"],
                "metadata": documents,
            },
        }
        return json.dumps(root).encode()


def _chunks(array: ParsedArray) -> int:
    return math.prod(chunk_counts(array.shape[1:], array.chunks[1:]))


class PackedStorage(KeyStorage):
    """Storage of the run store that a published run stands for.

    `packs` are those of the run, if they were opened before.
    """

    def __init__(
        self,
        where: str,
        storage: KeyStorage,
        info: PublishedInfo,
        plan: Plan | None = None,
        packs: Packs | None = None,
    ) -> None:
        self._is_shared = packs is not None
        self.where, self.info, self._storage = where, info, storage
        self.concurrency = storage.concurrency
        self.plan = plan or _read_plan(where, storage, info)
        self.packs = packs or Packs(where, storage, self.plan.planned)
        self._memory = ThreadBuffer()
        #: The index of the last step that is read.
        self.last = len(info.steps) - 1

    @classmethod
    def of_root(
        cls, where: str, storage: KeyStorage, attributes: Mapping[str, Any]
    ) -> PackedStorage:
        """Return the storage of a published run by its root's attributes."""
        return cls(where, storage, published_info(where, attributes))

    def with_info(self, info: PublishedInfo) -> PackedStorage:
        """Return the storage with other steps of the same run."""
        return PackedStorage(self.where, self._storage, info, self.plan, self.packs)

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
            return len(self.plan.header) if path == _HEADER else 8 * len(steps)
        number = self._number(path)
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
        if path == _HEADER:
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

    def has_window(self, steps: range) -> bool:
        """Tell whether all steps of a range but the first have differences to the one before."""
        return all(CHANGE in self.info.steps[index].packs for index in steps[1:])

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {path: number for number, path in enumerate(self.plan.arrays)}

    def _number(self, path: str) -> int:
        return self._numbers[path]

    def _group(self, key: str, path: str, index: ChunkIndex) -> StoredChunk:
        group = self.info.group
        steps = self.info.steps[: self.last + 1][index[0] * group : (index[0] + 1) * group]
        extents = [
            self._extent(path, index[1:], step, CHANGE if slot else WHOLE)
            for slot, step in enumerate(steps)
        ]
        return self._scattered(key, path, group, extents)

    def _window(self, key: Window) -> StoredChunk:
        steps = [self.info.steps[index] for index in key.steps[1:]]
        extents = [self._extent(key.path, key.chunk, step, CHANGE) for step in steps]
        return self._scattered(key, key.path, len(key.steps), [None, *extents])

    def _scattered(
        self, key: Any, path: str, room: int, extents: Sequence[Extent | None]
    ) -> StoredChunk:
        array = self.plan.arrays[path]
        return _ScatteredChunk(self.packs, self._memory, key, array, room, extents)

    def _extent(self, path: str, index: ChunkIndex, step: PublishedStep, kind: str) -> Extent:
        array = self.plan.arrays[path]
        counts = chunk_counts(array.shape[1:], array.chunks[1:])
        chunk = 0
        for at, count in zip(index, counts, strict=True):
            chunk = chunk * count + at
        extent = self.packs.extents(step, kind).get((self._number(path), chunk))
        if extent is None:
            raise StoreError(damaged(f"no pack of step {step.number} has a frame of it"))
        return extent


def _read_plan(where: str, storage: KeyStorage, info: PublishedInfo) -> Plan:
    content = read_json(where, storage, info.plan)
    if content is None:
        raise StoreError(f"{where}: {damaged(f'{info.plan} is missing')}")
    return Plan(f"{where}: {info.plan}", content, info.group)


class _ScatteredChunk(StoredChunk):
    """A growing frame whose frames lie in packs; one that is None is not there, and not needed.

    Each version is coded against the one before.
    """

    is_scattered = True

    def __init__(
        self,
        packs: Packs,
        memory: ThreadBuffer,
        key: Any,
        array: ParsedArray,
        room: int,
        extents: Sequence[Extent | None],
    ) -> None:
        self._packs, self._memory, self._extents = packs, memory, extents
        self.key = key
        layout = layout_for(array.dtype)
        nbytes = math.prod(array.chunks[1:]) * array.dtype.itemsize
        block = _core.DEFAULT_BLOCK_BYTES // np.dtype(layout).itemsize
        directory = bytearray(_core.growing_directory(_core.DTYPES[layout], block, nbytes, room))
        sizes = [len(_AT_HAND) if extent is None else extent.size for extent in extents]
        self._bounds = list(accumulate(sizes, initial=len(directory)))
        at = len(directory)
        entries = [
            _core.growing_entry(end, version - 1 if version else None)
            for version, end in enumerate(self._bounds[1:])
        ]
        at -= room * len(entries[0])
        directory[at : at + len(entries) * len(entries[0])] = b"".join(entries)
        self._directory = np.frombuffer(directory, np.uint8)
        self.size = self._bounds[-1]

    @property
    def read_nbytes(self) -> int | None:
        """How much to read at a time."""
        return READ_BYTES if self._packs.is_near else None

    def read(self, request: Request) -> Sequence[Bytes]:
        """Read ranges of it, or all of it; a thread's next read may overwrite the result."""
        end = self._bounds[-1]
        given = [(0, end)] if isinstance(request, AtMost) else request
        ranges = [(min(start, end), min(stop, end)) for start, stop in given]
        memory = self._memory.get(sum(stop - start for start, stop in ranges))
        parts: defaultdict[str, list[tuple[int, Bytes]]] = defaultdict(list)
        found = []
        for start, stop in ranges:
            out, memory = memory[: stop - start], memory[stop - start :]
            for key, at, part in self._parts(start, out):
                parts[key].append((at, part))
            found.append(out)
        for key, of_pack in parts.items():
            self._packs.read_into(key, of_pack)
        return found

    def _parts(self, start: int, out: Bytes) -> Iterator[tuple[str, int, Bytes]]:
        """Fill a buffer from the directory, and yield what packs have to fill, and from where."""
        head = self._directory[start : start + out.size]
        out[: head.size] = head
        at, out = start + head.size, out[head.size :]
        version = bisect_right(self._bounds, at) - 1
        while out.size:
            size = min(out.size, self._bounds[version + 1] - at)
            extent = self._extents[version]
            if extent is None:
                out[:size] = 0
            else:
                yield extent.key, extent.offset + at - self._bounds[version], out[:size]
            at, out, version = at + size, out[size:], version + 1
