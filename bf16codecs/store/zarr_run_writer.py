"""Adds steps to a run store in a Zarr folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from numcodecs import Zstd

from bf16codecs import _core
from bf16codecs._buffers import Bytes
from bf16codecs._chunks.grid import ArrayPlan
from bf16codecs._files import read_at, write_all
from bf16codecs._growing import Version, directory_nbytes
from bf16codecs._lock import lock_folder
from bf16codecs._sync import sync
from bf16codecs._threads import run_all
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.run_writer import Appended, Fill, RunArray, Write, grow, start
from bf16codecs.store.zarr_documents import ZarrDocuments, read_documents
from bf16codecs.store.zarr_metadata import chunk_key
from bf16codecs.store.zarr_sinks import FolderSink

__all__ = ["ZarrRunWriter"]

_CONCURRENT = 16
# Behind a key: what will replace it. No key of Zarr's ends so.
_UNFINISHED = ".unfinished"
# Of the numbers of the steps: one chunk for all runs but the longest.
_STEPS_CHUNK = 1 << 16
_BYTES_CODEC = Zstd(level=3, checksum=True)


class ZarrRunWriter:
    """Adds a step to a run store in a folder.

    Chunks grow in place, behind what the run's metadata speak of. Once they are flushed, documents
    are replaced, each by a rename, and the root's last: with it, the step is there.

    Parameters
    ----------
    root
        The store; an empty folder for a new one.
    zarr_format
        2 or 3.
    durable
        Flush all to the disk, in the order that a loss of power asks for.

    Raises
    ------
    BlockingIOError
        If another process is adding a step.
    """

    def __init__(
        self,
        root: Path,
        zarr_format: int,
        durable: bool,
    ) -> None:
        self._root, self._durable = root, durable
        self._folder_lock = lock_folder(root)
        self._key, self._sink = chunk_key(zarr_format), FolderSink(root)
        self._documents = ZarrDocuments(zarr_format)
        self._before = self._documents.take(read_documents(root, zarr_format))
        self._lock = threading.Lock()
        #: Sizes that files had before, None of those that are new.
        self._touched: dict[str, int | None] = {}
        #: To be written when all frames are on the disk.
        self._entries: dict[str, list[Write]] = {}

    def create(self, array: RunArray) -> None:
        """Prepare a new array."""
        self._documents.add(array, array.codec)

    def extend(self, path: str, steps: int) -> None:
        """Let an array that was there have a number of steps."""
        self._documents.extend(path, steps)

    def append(
        self, array: RunArray, index: tuple[int, ...], slot: int, version: Version, fill: Fill
    ) -> Appended:
        """Add a version to a chunk: see `RunWriter`."""
        key, codec = f"{array.path}/{self._key(index)}", array.codec
        directory = self._read(key, 0, directory_nbytes(codec.steps)) if slot else None
        if directory is None:
            content = start(codec, slot, version, fill)
            self._put(key, content)
            ends = _core.GrowingIndex(content).ends
            begin = ends[-2] if slot else directory_nbytes(codec.steps)
            return Appended(len(content), key, begin, ends[-1] - begin)
        growth = grow(codec, directory, slot, version)
        self._touch(key, os.stat(self._root / key).st_size)
        _write_parts(self._root / key, growth.frames)
        with self._lock:
            self._entries.setdefault(key, []).extend(growth.entries)
        nbytes = sum(len(write.content) for write in [*growth.frames, *growth.entries])
        last = growth.frames[-1]
        return Appended(nbytes, key, last.at, len(last.content))

    def read(self, appended: Appended) -> Bytes:
        """Read the frame of a version back."""
        frame = self._read(appended.chunk, appended.at, appended.size)
        return np.frombuffer(b"" if frame is None else frame, np.uint8)

    def write_bytes(self, array: ArrayPlan, content: bytes) -> int:
        """Write an array of bytes, of one chunk."""
        self._documents.add(array, _BYTES_CODEC)
        data = _BYTES_CODEC.encode(content)
        self._put(f"{array.path}/{self._key((0,))}", data)
        return len(data)

    def write_steps(self, numbers: Sequence[int]) -> int:
        """Write the array with the numbers of the steps."""
        array = RunArray(STEP_PATH, "int64", (len(numbers),), (_STEPS_CHUNK,))
        self._documents.add(array, _BYTES_CODEC)
        group = (len(numbers) - 1) // _STEPS_CHUNK
        chunk = np.zeros(array.chunks, "<i8")
        last = numbers[group * _STEPS_CHUNK :]
        chunk[: len(last)] = last
        data = _BYTES_CODEC.encode(chunk)
        self._put(f"{array.path}/{self._key((group,))}", data)
        return len(data)

    def finish(self, info: StoreInfo) -> int:
        """Flush the chunks, and replace the documents."""
        self._flush(self._touched)
        for key, entries in self._entries.items():
            _write_parts(self._root / key, entries)
        self._flush(self._entries)
        size = 0
        for key, document in self._documents.keys(info.to_attributes()):
            if document != self._before.get(key):
                self._replace(key, document)
                size += len(document)
        self._touched.clear()
        self._entries.clear()
        return size

    def abandon(self) -> None:
        """Take back what was written."""
        for key, entries in self._entries.items():
            with suppress(OSError):
                nothing = [Write(entry.at, bytes(len(entry.content))) for entry in entries]
                _write_parts(self._root / key, reversed(nothing))
        for key, size in self._touched.items():
            path = self._root / key
            with suppress(OSError):
                if size is None:
                    path.unlink()
                else:
                    os.truncate(path, size)
        self._touched.clear()

    def close(self) -> None:
        """Free the lock."""
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None

    def _touch(self, key: str, size: int | None) -> None:
        with self._lock:
            self._touched.setdefault(key, size)

    def _put(self, key: str, content: bytes) -> None:
        """Write a file of which the run's metadata do not speak, or of more than they do."""
        is_new = not (self._root / key).exists()
        if is_new:
            self._touch(key, None)
            self._sink.put(key, content)
        else:
            self._replace(key, content)

    def _read(self, key: str, at: int, size: int) -> bytes | None:
        """Read a part of a file, None if there is none."""
        try:
            descriptor = os.open(self._root / key, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            return None
        try:
            part = np.empty(size, np.uint8)
            return part[: read_at(descriptor, at, part)].tobytes()
        finally:
            os.close(descriptor)

    def _replace(self, key: str, content: bytes) -> None:
        """Give a key another content, in one step."""
        unfinished = f"{key}{_UNFINISHED}"
        self._touch(unfinished, None)
        self._sink.put(unfinished, content)
        if self._durable:
            sync(self._root / unfinished)
        os.replace(self._root / unfinished, self._root / key)
        if self._durable:
            sync((self._root / key).parent)

    def _flush(self, keys: Iterable[str]) -> None:
        """Wait until files, and their names, are on the disk."""
        if not self._durable:
            return
        paths = [self._root / key for key in keys]
        run_all((partial(sync, path) for path in paths if path.exists()), _CONCURRENT)
        folders = {parent for path in paths for parent in self._folders(path)}
        run_all((partial(sync, folder) for folder in sorted(folders, reverse=True)), _CONCURRENT)

    def _folders(self, path: Path) -> Iterator[Path]:
        while path != self._root:
            path = path.parent
            yield path


def _write_parts(path: Path, parts: Iterable[Write]) -> None:
    with open(path, "r+b", buffering=0) as file:
        for part in parts:
            file.seek(part.at)
            write_all(file, part.content)
