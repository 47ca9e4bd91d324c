"""Adds steps to a run store in a Zarr folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.forks import make_lock
from bf16codecs._base.interrupt import shielded
from bf16codecs._base.messages import named_errors
from bf16codecs._files.sync import sync_files
from bf16codecs.codecs.growing import directory_nbytes
from bf16codecs.errors import BF16CodecsError
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.runs.layout import STEPS_CHUNK
from bf16codecs.store.runs.writer import AnyVersion, Appended, Fill, RunArray, Write, grow, start
from bf16codecs.store.zarr.documents import ZarrDocuments, read_copies
from bf16codecs.store.zarr.folder import RunFolder
from bf16codecs.store.zarr.metadata import COPIES, GROUP_DOCUMENTS, chunk_key
from bf16codecs.store.zarr.undo import BYTES_CODEC, Begun, steps_chunk, undo

__all__ = ["ZarrRunWriter"]


class ZarrRunWriter:
    """Adds a step to a run store in a folder, which is empty for a new one.

    Chunks grow in place, behind what the run's metadata speak of. Once they are flushed, documents
    are replaced, each by a rename, and the root's last: with it, the step is there. What an append
    that was killed has left is undone first.

    If it is `durable`, all is flushed to the disk, in the order that a loss of power asks for.
    Raises BlockingIOError if another process is adding a step.
    """

    concurrency = 1
    is_readable = True

    def __init__(
        self,
        root: Path,
        zarr_format: int,
        durable: bool,
    ) -> None:
        self._root, self._format, self._durable = root, zarr_format, durable
        self._folder = RunFolder(root)
        self._folder.take()
        try:
            self._folder.check()
            undo(self._folder, zarr_format, durable)
            self._documents = ZarrDocuments(zarr_format)
            self._attributes, nodes = read_copies(str(root), self._folder, zarr_format)
            self._before = self._documents.take(nodes)
            self._begun = Begun(self._folder, durable)
        except BaseException:
            self.close()
            raise
        self._key = chunk_key(zarr_format)
        self._lock = make_lock()
        self._new: list[str] = []
        self._has_begun = False
        #: Files with new content, to be flushed.
        self._touched: set[Path] = set()
        #: To be written when all frames are on the disk.
        self._entries: dict[str, Sequence[Write]] = {}

    def create(self, array: RunArray) -> None:
        """Prepare a new array."""
        self._documents.add(array, array.codec)
        self._new.append(array.path)

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
        self._begin()
        key, codec = f"{array.path}/{self._key(index)}", array.codec
        chunk = self._folder.find(key) if slot else None
        if chunk is None:
            with named_errors(str(self._root / key)):
                content, at, size = start(codec, slot, version, fill)
            self._touched.add(self._folder.write(key, content))
            return Appended(len(content), key, at, size)
        with chunk, named_errors(str(self._root / key)):
            directory = chunk.read([(0, directory_nbytes(codec.steps))])[0].tobytes()
            growth = grow(codec, directory, chunk.size, slot, version)
        self._touched.add(self._folder.write_parts(key, growth.frames))
        self._entries[key] = growth.entries
        nbytes = sum(len(write.content) for write in [*growth.frames, *growth.entries])
        last = growth.frames[-1]
        return Appended(nbytes, key, last.at, len(last.content))

    def read(self, appended: Appended) -> Bytes:
        """Read the frame of a version back."""
        frame = self._folder.read_part(appended.chunk, appended.at, appended.size)
        return np.frombuffer(b"" if frame is None else frame, np.uint8)

    def write_bytes(self, array: ArrayPlan, content: bytes) -> int:
        """Write a new array of bytes, of one chunk."""
        self._new.append(array.path)
        self._begin()
        self._documents.add(array, BYTES_CODEC)
        data = BYTES_CODEC.encode(content)
        key = f"{array.path}/{self._key((0,))}"
        self._touched.add(self._folder.write(key, data))
        return len(data)

    def write_steps(self, numbers: Sequence[int]) -> int:
        """Write the array with the numbers of the steps."""
        self._begin()
        self._add_steps(len(numbers))
        key, data = steps_chunk(numbers, self._format)
        self._begun.stage(key, data)
        return len(data)

    def finish(self, info: StoreInfo) -> int:
        """Flush the chunks, and replace the documents."""
        if self._durable:
            # Their names are flushed with those of their arrays' documents, which lie beside them.
            sync_files(self._touched)
        written = [self._folder.write_parts(*each) for each in self._entries.items()]
        if self._durable:
            sync_files(written)
        # Attributes of others stay.
        attributes = {**self._attributes, **info.to_attributes()}
        documents = dict(self._documents.keys(attributes))
        changed = {key: text for key, text in documents.items() if text != self._before.get(key)}
        roots = [key for key in GROUP_DOCUMENTS[self._format] if key in changed]
        for key in changed:
            if key not in roots:
                self._begun.stage(key, changed[key])
        self._begun.replace()
        self._folder.check()
        with shielded():
            for key in roots:
                self._begun.stage(key, changed[key])
            self._begun.replace()
            self._begun.remove()
        self._has_begun = False
        return sum(map(len, changed.values()))

    def remove_last(self, info: StoreInfo, gone: Sequence[str]) -> None:
        """Let the run be without its last step: see `RunWriter`.

        With the root's document, the step is gone; then all else is undone as if it had never been
        part of the run. If that fails, the next append does it.
        """
        assert info.run is not None
        for path in gone:
            self._documents.drop(path)
        for path in info.run.arrays:
            self._documents.extend(path, len(info.run.steps))
        self._add_steps(len(info.run.steps))
        keys = dict(self._documents.keys({**self._attributes, **info.to_attributes()}))
        root = COPIES[self._format]
        self._folder.check()
        self._begun.note(gone)
        self._begun.stage(root, keys[root])
        with shielded():
            self._begun.replace()
            try:
                undo(self._folder, self._format, self._durable)
            except OSError as e:
                text = (
                    f"{e.strerror}; the step is removed, and the next append removes the rest of it"
                )
                raise OSError(e.errno, text, str(self._root)) from e

    def abandon(self) -> None:
        """Undo all that is not part of the run; if that fails, the next append does it."""
        with suppress(OSError, BF16CodecsError), shielded():
            undo(self._folder, self._format, self._durable)

    def close(self) -> None:
        """Free the lock."""
        self._folder.close()

    def _add_steps(self, count: int) -> None:
        array = RunArray(STEP_PATH, "int64", (count,), (STEPS_CHUNK,))
        self._documents.add(array, BYTES_CODEC)

    def _begin(self) -> None:
        """Note which arrays are new, before any part of them is written."""
        with self._lock:
            if self._new or not self._has_begun:
                self._folder.check()
                self._begun.note(self._new)
                self._new.clear()
                self._has_begun = True
