"""Adds steps to a run store in an HDF5 file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py._hl.base import phil

from bf16codecs import _core
from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex, chunk_counts, grid_indices
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.messages import named_errors
from bf16codecs._files.journal import JournaledFile, read_padded, superblock_end
from bf16codecs.codecs.growing import directory_nbytes
from bf16codecs.errors import StoreError
from bf16codecs.hdf5.dataset import create_dataset, write_region
from bf16codecs.store.hdf5.writer import HDF5_FORMAT, hdf5_errors
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.runs.layout import STEPS_CHUNK
from bf16codecs.store.runs.writer import (
    AnyVersion,
    Appended,
    Fill,
    Growth,
    RunArray,
    grow,
    shrink,
    start,
)

__all__ = ["Hdf5RunWriter"]

# Room for a version, to what the one before it took.
_MORE = 1.25
# The expected part of a whole version that a difference takes, when none is known: one step apart,
# BF16 takes an eighth.
_FIRST_GUESS = 8


class Hdf5RunWriter:
    """Adds a step to a run store in an HDF5 file, which is made if it is not there.

    The file changes in one step, and is not copied: see `JournaledFile`. HDF5 has no way to let a
    chunk grow. So chunks get room for expected versions: zeros, which take no space on the disk
    until they are overwritten. A chunk without enough room is written anew.
    """

    concurrency = 1
    is_readable = False

    def __init__(self, path: Path, durable: bool) -> None:
        self._path = path
        if not path.exists():
            # Space that becomes free is not used again: readers may have it open.
            with hdf5_errors(path):
                h5py.File(path, "x", libver=(HDF5_FORMAT, HDF5_FORMAT), fs_strategy="none").close()
        self._journaled = JournaledFile(path, durable, _end_of)
        try:
            with hdf5_errors(path):
                self._file = h5py.File(
                    self._journaled, "r+", libver=(HDF5_FORMAT, HDF5_FORMAT), rdcc_nbytes=0
                )
        except BaseException:
            self._journaled.abandon()
            raise
        self._datasets: dict[str, Any] = {}

    def create(self, array: RunArray) -> None:
        """Prepare a new array."""
        dtype = np.dtype(array.dtype)
        with hdf5_errors(self._path):
            chunks = tuple(max(1, n) for n in array.chunks)
            dataset = create_dataset(
                self._file.id, array.path, dtype, array.shape, chunks, array.codec, is_growing=True
            )
            self._datasets[array.path] = dataset
            attributes = json.dumps(array.attributes[ATTRIBUTES_KEY])
            h5py.Dataset(dataset).attrs[ATTRIBUTES_KEY] = attributes
            h5py.h5ds.attach_scale(dataset, self._steps(), 0)

    def extend(self, path: str, steps: int) -> None:
        """Let an existing array have a number of steps."""
        with hdf5_errors(self._path), phil:
            dataset = self._dataset(path)
            dataset.set_extent((steps, *dataset.shape[1:]))

    def append(
        self,
        array: RunArray,
        index: ChunkIndex,
        slot: int,
        version: AnyVersion,
        fill: Fill | None,
    ) -> Appended:
        """Add a version to a chunk: see `RunWriter`."""
        self._journaled.check()
        dataset = self._dataset(array.path)
        origin = tuple(i * n for i, n in zip(index, array.chunks, strict=True))
        extent = self._find(dataset, origin) if slot else None
        label = f"{self._path}: {array.path}, chunk {index}"
        if extent is None:
            with named_errors(label):
                content, at, size = start(array.codec, slot, version, fill)
            room = self._expected_room(dataset, array, index, len(content))
            self.put(array, index, content + bytes(room))
            return Appended(len(content), (array.path, origin), at, size)
        directory = self._read(extent, 0, directory_nbytes(array.codec.steps))
        with named_errors(label):
            growth = grow(array.codec, directory, extent.size, slot, version)
        last = growth.frames[-1]
        end = last.at + len(last.content)
        nbytes = sum(len(write.content) for write in [*growth.frames, *growth.entries])
        if end <= extent.size:
            self._grow_in_place(extent, growth, len(directory))
        else:
            grown = _grown(self._read(extent, 0, extent.size), growth)
            # Expect versions of the mean size so far: the size of a single one, which may be tiny,
            # predicts little.
            ends = [*_core.GrowingIndex(directory).ends, end]
            guess = (end - ends[0]) // (len(ends) - 1)
            # The old chunk stays in the file, so the new one gets no more spare room than content.
            room = min(len(grown), _room(array.codec.steps - slot - 1, guess, len(grown)))
            self.put(array, index, bytes(grown + bytes(room)))
            nbytes = len(grown)
        return Appended(nbytes, (array.path, origin), last.at, len(last.content))

    def put(self, array: RunArray, index: ChunkIndex, content: bytes) -> None:
        """Write a whole encoded chunk."""
        origin = tuple(i * n for i, n in zip(index, array.chunks, strict=True))
        with hdf5_errors(self._path), phil:
            self._dataset(array.path).write_direct_chunk(origin, content)

    def read(self, appended: Appended) -> Bytes:
        """Read the frame of a version back."""
        path, origin = appended.chunk
        extent = self._find(self._dataset(path), origin)
        content = b"" if extent is None else self._read(extent, appended.at, appended.size)
        return np.frombuffer(content, np.uint8)

    def write_bytes(self, array: ArrayPlan, content: bytes) -> int:
        """Write a new array of bytes, of one chunk."""
        with hdf5_errors(self._path):
            dataset = create_dataset(
                self._file.id, array.path, np.dtype("u1"), array.shape, array.chunks, "gzip"
            )
            write_region(dataset, (slice(0, len(content)),), np.frombuffer(content, np.uint8))
            return int(dataset.get_storage_size())

    def write_steps(self, numbers: Sequence[int]) -> int:
        """Write the array with the numbers of the steps."""
        with hdf5_errors(self._path), phil:
            dataset, last = self._steps(), len(numbers)
            first = min(dataset.shape[0], last - 1)
            dataset.set_extent((last,))
            write_region(dataset, (slice(first, last),), np.asarray(numbers[first:], "<i8"))
            return 8 * (last - first)

    def finish(self, info: StoreInfo) -> int:
        """Write the attributes, and commit all changes of the file."""
        with hdf5_errors(self._path):
            attributes = info.to_attributes()[ATTRIBUTES_KEY]
            self._file.attrs[ATTRIBUTES_KEY] = json.dumps(attributes)
            self._close()
            return self._journaled.commit()

    def remove_last(self, info: StoreInfo, gone: Sequence[str]) -> None:
        """Remove the last step of the run: see `RunWriter`."""
        run = info.run
        assert run is not None
        with hdf5_errors(self._path), phil, self._kept_end():
            for path in gone:
                self._remove(path)
            grown = run.grown()
            for path in run.arrays:
                self._shorten(path, len(run.steps), path in grown)
            self.write_steps(run.numbers)
        self.finish(info)

    def abandon(self) -> None:
        """Leave the file as it was."""
        with suppress(OSError, RuntimeError, ValueError):
            self._close()
        self._journaled.abandon()

    def close(self) -> None:
        """Close files and connections."""
        self.abandon()

    def _close(self) -> None:
        self._datasets.clear()
        self._file.close()

    def _dataset(self, path: str) -> Any:
        with hdf5_errors(self._path), phil:
            if path not in self._datasets:
                self._datasets[path] = h5py.h5d.open(self._file.id, path.encode())
            return self._datasets[path]

    def _steps(self) -> Any:
        """Return the dataset of the steps' numbers, a dimension scale."""
        if STEP_PATH in self._datasets or STEP_PATH in self._file:
            return self._dataset(STEP_PATH)
        dataset = create_dataset(
            self._file.id,
            STEP_PATH,
            np.dtype("<i8"),
            (0,),
            (STEPS_CHUNK,),
            "gzip",
            is_growing=True,
        )
        h5py.h5ds.set_scale(dataset, STEP_PATH.encode())
        self._datasets[STEP_PATH] = dataset
        return dataset

    @contextmanager
    def _kept_end(self) -> Iterator[None]:
        """Keep the space of objects that are removed at the end of the file from being reused.

        This process and other readers read it until all is written. A dataset without a name lies
        behind it; closing removes that.
        """
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        space = h5py.h5s.create_simple((1,))
        last = h5py.h5d.create(self._file.id, None, h5py.h5t.STD_U8LE, space, dcpl=properties)
        yield
        last.close()

    def _remove(self, path: str) -> None:
        """Remove a dataset, and groups that have nothing else."""
        dataset = self._dataset(path)
        if h5py.h5ds.is_attached(dataset, self._steps(), 0):
            h5py.h5ds.detach_scale(dataset, self._steps(), 0)
        del self._datasets[path], self._file[path]
        while (path := path.rpartition("/")[0]) and not len(self._file[path]):
            del self._file[path]

    def _shorten(self, path: str, steps: int, is_grown: bool) -> None:
        """Let an array have fewer steps, and its chunks the versions of these, if it has any.

        libhdf5 would decode a chunk that it cuts, and encode it as another frame. So the chunks of
        the last group are removed whole, and written anew from where they were.
        """
        dataset = self._dataset(path)
        (room, *chunks), shape = dataset.get_create_plist().get_chunk(), dataset.shape[1:]
        slot = steps % room
        found = []
        if slot and is_grown:
            for index in grid_indices(chunk_counts(shape, chunks)):
                inner = (i * n for i, n in zip(index, chunks, strict=True))
                origin = (steps - slot, *inner)
                found.append((origin, self._find(dataset, origin)))
        for length in (steps - slot, steps):
            dataset.set_extent((length, *shape))
        for origin, extent in found:
            if extent is not None:
                dataset.write_direct_chunk(origin, self._shortened(extent, slot, room))
                moved = self._find(dataset, origin)
                if moved is None or moved.offset < self._journaled.before:
                    raise StoreError(
                        f"{self._path}: reuses space that others may be reading: other software has"
                        " written it; no step can be removed from it"
                    )

    def _shortened(self, extent: _Extent, slot: int, room: int) -> bytes:
        """Return a chunk without the versions from `slot` on, with as much room as it had."""
        shrunk = shrink(self._read(extent, 0, directory_nbytes(room)), slot, room)
        if shrunk is None:
            return self._read(extent, 0, extent.size)
        content = bytearray(self._read(extent, 0, shrunk.end))
        at, entries = shrunk.entries
        content[at : at + len(entries)] = entries
        return bytes(content.ljust(extent.size, b"\0"))

    def _find(self, dataset: Any, origin: tuple[int, ...]) -> _Extent | None:
        """Return the extent of a chunk in the file, or None if the chunk is missing."""
        with hdf5_errors(self._path), phil:
            info = dataset.get_chunk_info_by_coord(origin)
        return None if info.byte_offset is None else _Extent(info.byte_offset, info.size)

    def _read(self, extent: _Extent, at: int, size: int) -> bytes:
        self._journaled.check()  # what could not be written would be other data
        with phil:  # HDF5 reads and writes at the same file position
            self._journaled.seek(extent.offset + at)
            return self._journaled.read(min(size, extent.size - at))

    def _grow_in_place(self, extent: _Extent, growth: Growth, directory: int) -> None:
        """Write a version into the room that a chunk has."""
        with phil:
            for write in [*growth.frames, *growth.entries]:
                if write.at >= directory:
                    self._journaled.write_unseen(extent.offset + write.at, write.content)
                else:
                    self._journaled.seek(extent.offset + write.at)
                    self._journaled.write(write.content)

    def _expected_room(self, dataset: Any, array: RunArray, index: ChunkIndex, nbytes: int) -> int:
        """Return the room of a new chunk, guessed from the last version of the last group."""
        count, guess = array.codec.steps - 1, nbytes // _FIRST_GUESS
        if index[0] == 0:
            return _room(count, guess, nbytes)
        origin = tuple(i * n for i, n in zip((index[0] - 1, *index[1:]), array.chunks, strict=True))
        extent = self._find(dataset, origin)
        if extent is not None:
            head = self._read(extent, 0, directory_nbytes(array.codec.steps))
            ends = _core.GrowingIndex(head).ends if _core.is_growing(head) else []
            guess = ends[-1] - ends[-2] if len(ends) > 1 else guess
        return _room(count, guess, nbytes)


def _end_of(file: int) -> int:
    """Return where an HDF5 file ends by its superblock: a killed append may have added to it."""
    size = os.fstat(file).st_size
    end = superblock_end(read_padded(file, 0, 64))
    return size if end is None else min(end, size)


def _room(count: int, frame: int, nbytes: int) -> int:
    """Return the room for a number of versions that are like the last one.

    At most three times the chunk's size: after large differences, small ones may follow, and some
    copies of files include the room.
    """
    return min(int(_MORE * count * frame), 3 * nbytes)


class _Extent(NamedTuple):
    """Where a file has a chunk."""

    offset: int
    size: int


def _grown(before: bytes, growth: Growth) -> bytearray:
    """Return a chunk with its growth applied."""
    content = bytearray(before)
    for write in [*growth.frames, *growth.entries]:
        end = write.at + len(write.content)
        content.extend(bytes(max(0, end - len(content))))
        content[write.at : end] = write.content
    last = growth.frames[-1]
    del content[last.at + len(last.content) :]
    return content
