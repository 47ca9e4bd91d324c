"""Adds steps to a run store in an object store.

Objects do not grow: a chunk with one more version replaces it. Readers that know of fewer steps
read the new one as well. With the root's document, the step is there; versions of an append that
did not finish are replaced by the next.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.forks import make_lock
from bf16codecs._base.messages import damaged, named_errors, one_line
from bf16codecs.codecs.growing import directory_nbytes
from bf16codecs.errors import LeftoverWarning, StoreError
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.remote.lease import ROOT, Lease, wait_for_death
from bf16codecs.store.remote.object_folder import ConflictError, Found, ObjectFolder
from bf16codecs.store.runs.layout import STEPS_CHUNK, RunInfo
from bf16codecs.store.runs.writer import (
    AnyVersion,
    Appended,
    Fill,
    RunArray,
    Write,
    grow,
    shrink,
    start,
)
from bf16codecs.store.zarr.documents import ZarrDocuments, parse_copies
from bf16codecs.store.zarr.metadata import chunk_key
from bf16codecs.store.zarr.undo import BYTES_CODEC, steps_chunk

__all__ = ["ObjectRunWriter"]

_FORMAT = 3


class ObjectRunWriter:
    """Adds a step to a run store in an object store, whose root's document was read.

    Documents of arrays are written when they are new. Later, the root alone has the current number
    of steps: each would be a request.

    Raises BlockingIOError if another process is adding a step; StoreError if the store has no
    consolidated metadata.
    """

    # As of `ObjectSink`.
    concurrency = 16
    is_readable = True

    def __init__(self, folder: ObjectFolder, root: Found) -> None:
        self._folder = folder
        document = json.loads(root.data)
        attributes, nodes = parse_copies(folder.where, _FORMAT, document)
        self._documents = ZarrDocuments(_FORMAT)
        self._attributes, self._before = attributes, self._documents.take(nodes)
        self._key = chunk_key(_FORMAT)
        self._lock = make_lock()
        self._new: set[str] = set()
        # What this writes of new arrays; nobody knows of it before the root names them.
        self._made: list[str] = []
        wait_for_death(folder, root)
        self._lease: Lease | None = Lease(folder, root)

    def create(self, array: RunArray) -> None:
        """Prepare a new array."""
        self._documents.add(array, array.codec)
        self._new.add(array.path)

    def extend(self, path: str, steps: int) -> None:
        """Let an array that was there have a number of steps."""
        self._documents.extend(path, steps)

    def append(
        self,
        array: RunArray,
        index: ChunkIndex,
        slot: int,
        version: AnyVersion,
        fill: Fill | None,
    ) -> Appended:
        """Add a version to a chunk: see `RunWriter`."""
        key, codec = f"{array.path}/{self._key(index)}", array.codec
        found = self._folder.read(key, limited=False) if slot and fill is None else None
        where = f"{self._folder.where}/{key}"
        if found is None:
            with named_errors(where):
                content, at, size = start(codec, slot, version, fill)
            self._put_new(key, content)
            return Appended(len(content), key, at, size)
        with named_errors(where):
            directory, end = _without_later(found.data, slot, codec.steps)
            growth = grow(codec, directory, end, slot, version)
        content = _written(found.data[:end], [Write(0, directory), *growth.frames, *growth.entries])
        self._replace(key, content, found)
        last = growth.frames[-1]
        nbytes = sum(len(write.content) for write in [*growth.frames, *growth.entries])
        return Appended(nbytes, key, last.at, len(last.content))

    def _replace(self, key: str, content: bytes, found: Found) -> None:
        """Replace an object that was read."""
        self._check()
        self._folder.replace(key, content, found.version)

    def _put_new(self, key: str, content: bytes) -> None:
        """Write an object that is not part of the run yet; an append that was killed may have."""
        self._check()
        with self._lock:
            self._made.append(key)
        try:
            self._folder.create(key, content)
        except ConflictError:
            found = self._folder.read(key, limited=False)
            if found is None:
                raise
            self._replace(key, content, found)

    def _check(self) -> None:
        assert self._lease is not None
        self._lease.check()

    def read(self, appended: Appended) -> Bytes:
        """Read the frame of a version back."""
        frame = self._folder.read_part(appended.chunk, appended.at, appended.size)
        return np.frombuffer(frame, np.uint8)

    def write_bytes(self, array: ArrayPlan, content: bytes) -> int:
        """Write a new array of bytes, of one chunk."""
        self._documents.add(array, BYTES_CODEC)
        self._new.add(array.path)
        data = BYTES_CODEC.encode(content)
        self._put_new(f"{array.path}/{self._key((0,))}", data)
        return len(data)

    def write_steps(self, numbers: Sequence[int]) -> int:
        """Write the array with the numbers of the steps."""
        self._documents.add(
            RunArray(STEP_PATH, "int64", (len(numbers),), (STEPS_CHUNK,)), BYTES_CODEC
        )
        key, data = steps_chunk(numbers, _FORMAT)
        self._check()
        self._folder.write(key, data)
        return len(data)

    def finish(self, info: StoreInfo) -> int:
        """Write the documents of new arrays and groups, and replace the root's."""
        documents = dict(self._documents.keys({**self._attributes, **info.to_attributes()}))
        root = documents.pop(ROOT)
        new = {key: text for key, text in documents.items() if self._is_new(key)}
        for key, text in new.items():
            self._put_new(key, text)
        assert self._lease is not None
        lease, self._lease = self._lease, None
        self._made.clear()  # from now on, it may be part of the run
        lease.close(root)
        return len(root) + sum(map(len, new.values()))

    def _is_new(self, key: str) -> bool:
        """Return whether a document is that of a new array, or of a group above one."""
        return key not in self._before or key.rpartition("/")[0] in self._new

    def remove_last(self, info: StoreInfo, gone: Sequence[str]) -> None:
        """Let the run be without its last step: see `RunWriter`.

        With the root's document, the step is gone. Then what nothing else needs is removed; the
        versions of other steps' chunks stay until the next append replaces them.
        """
        assert info.run is not None
        assert self._lease is not None
        for path in gone:
            self._documents.drop(path)
        steps = len(info.run.steps)
        for path in info.run.arrays:
            self._documents.extend(path, steps)
        self._documents.add(RunArray(STEP_PATH, "int64", (steps,), (STEPS_CHUNK,)), BYTES_CODEC)
        self._lease.declare(gone)
        self._lease.publish(
            dict(self._documents.keys({**self._attributes, **info.to_attributes()}))[ROOT]
        )
        try:
            self._lease.remove(self._without_step(gone, info.run))
        except (OSError, StoreError) as e:
            warnings.warn(
                f"{self._folder.where}: the step is removed, and objects of it are left, which the"
                f" next append replaces: {one_line(e)}",
                LeftoverWarning,
                stacklevel=3,
            )

    def _without_step(self, gone: Sequence[str], run: RunInfo) -> Iterator[str]:
        """Yield the keys of the arrays that are gone, and those of a group without steps."""
        for path in gone:
            yield from self._folder.listed(path)
        group, slot = divmod(len(run.steps), run.group)
        if slot == 0:
            first = self._key((group,))
            for path in run.arrays:
                for key in self._folder.listed(path):
                    name = key.rpartition("/")[2]
                    if name == first or name.startswith(f"{first}."):
                        yield key

    def abandon(self) -> None:
        """Remove what is new; longer chunks stay, whose last version is no step."""
        made, self._made = self._made, []
        if self._lease is not None and made:
            with suppress(OSError, StoreError):
                self._lease.remove(made)

    def close(self) -> None:
        """Let others append."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()


def _without_later(chunk: bytes, slot: int, room: int) -> tuple[bytes, int]:
    """Return the directory of a chunk without versions from `slot` on, and the end of the last."""
    directory = chunk[: directory_nbytes(room)]
    shrunk = shrink(directory, slot, room)
    if shrunk is None:  # which growing it reports
        return directory, len(chunk)
    at, entries = shrunk.entries
    return directory[:at] + entries, min(len(chunk), shrunk.end)


def _written(chunk: bytes, writes: Iterable[Write]) -> bytes:
    """Return a chunk with parts written over it, and behind it."""
    content = bytearray(chunk)
    for at, part in writes:
        if at > len(content):
            raise StoreError(damaged("a frame would begin behind its chunk"))
        content[at : at + len(part)] = part
    return bytes(content)
