"""Arrays whose stored chunks are in memory and record each read.

Tests of arrays of chunks import private names from here alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from bf16codecs._arrays import heads
from bf16codecs._arrays.array import ArrayReader, ChunkedArray, Located
from bf16codecs._arrays.bases import KeptPiece, PiecewiseArray
from bf16codecs._arrays.blocks import block_ranges
from bf16codecs._arrays.formats import (
    RAW,
    Fletcher32Format,
    Format,
    ZstdFormat,
    encode_zstd,
    read,
)
from bf16codecs._arrays.frames import FrameFormat
from bf16codecs._arrays.grid import ArrayPlan, ChunkIndex, Piece
from bf16codecs._arrays.indexing import as_index, cut_range
from bf16codecs._arrays.library import LibraryArray
from bf16codecs._arrays.parts import ChunkPart, touched_ranges
from bf16codecs._arrays.storage import AtMost, InMemory, Range, Request, Storage, StoredChunk
from bf16codecs._arrays.views import StepsArray, StepView, rounded_array, step_nbytes
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.threads import run_all
from native_core import core

__all__ = [
    "RAW",
    "ArrayReader",
    "ChunkPart",
    "Fletcher32Format",
    "FrameFormat",
    "InMemory",
    "KeptPiece",
    "LibraryArray",
    "NotedChunk",
    "NotedStorage",
    "Piece",
    "PiecewiseArray",
    "StepView",
    "StepsArray",
    "ZstdFormat",
    "allow_few_ancestors",
    "block_ranges",
    "chunked_array",
    "cut_range",
    "encode_zstd",
    "in_library",
    "let_heads_be_small",
    "little_endian",
    "note_decoded",
    "padded_chunks",
    "read",
    "read_at_once_up_to",
    "read_axes",
    "read_range",
    "read_selection",
    "rounded_array",
    "step_nbytes",
    "touched_ranges",
]

Key = tuple[str, ChunkIndex]


def read_at_once_up_to(patch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Set the size above which chunks are read in parts."""
    patch.setattr(core, "DEFAULT_BLOCK_BYTES", nbytes)


def let_heads_be_small(patch: pytest.MonkeyPatch) -> None:
    """Let chunks of a few kB be read as those of many blocks are."""
    patch.setattr(heads, "_PREFIX_BYTES", 48)
    patch.setattr(heads, "_PREFIX_SHIFT", 40)
    read_at_once_up_to(patch, 1024)


def allow_few_ancestors(patch: pytest.MonkeyPatch) -> None:
    """Lower the limit on a version's ancestors."""
    patch.setattr("bf16codecs._base.limits._SMALL", 1 << 16)


def note_decoded(patch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of blocks that are decoded from now on."""
    found: list[int] = []
    original = core.Index

    class Index:
        def __init__(self, prefix: Any) -> None:
            self._index = original(prefix)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._index, name)

        def decode_block_range(self, payload: Any, first: int, last: int, *rest: Any) -> None:
            found.extend(range(first, last))
            self._index.decode_block_range(payload, first, last, *rest)

    patch.setattr(heads._core, "Index", Index)
    return found


class NotedStorage(Storage):
    """Chunks by label and index, read as local files are: into memory that the next read takes.

    With `read_nbytes`, reads have that size; without, each chunk is read in few requests.
    """

    def __init__(self, read_nbytes: int | None = None) -> None:
        self.chunks: dict[Key, bytes] = {}
        self.ranges: list[tuple[Key, int, int]] = []
        self.read_nbytes, self.buffer = read_nbytes, ThreadBuffer()

    def open(self, key: Key) -> StoredChunk:
        return _NotedChunk(self, key)

    def fetched(self, label: str) -> int:
        """Return how many bytes were read of an array's chunks."""
        return sum(stop - start for key, start, stop in self.ranges if key[0] == label)


class _NotedChunk(StoredChunk):
    def __init__(self, storage: NotedStorage, key: Key) -> None:
        self._storage, self.key = storage, key
        self._data = np.frombuffer(storage.chunks[key], np.uint8)
        self.size = self._data.size if storage.read_nbytes else None

    @property
    def read_nbytes(self) -> int | None:
        return self._storage.read_nbytes

    def read(self, request: Request) -> Sequence[Bytes]:
        ranges = [(0, self._data.size)] if isinstance(request, AtMost) else request
        ranges = [(start, min(stop, self._data.size)) for start, stop in ranges]
        self._storage.ranges += [(self.key, *r) for r in ranges]
        rest = self._storage.buffer.get(sum(stop - start for start, stop in ranges))
        parts = []
        for start, stop in ranges:
            part, rest = rest[: stop - start], rest[stop - start :]
            part[:] = self._data[start:stop]
            parts.append(part)
        return parts


class NotedChunk(InMemory):
    """One chunk, which records requests; with a `read_nbytes`, it is read like a local file's."""

    key = "chunk"

    def __init__(self, content: bytes, read_nbytes: int | None = None) -> None:
        super().__init__(content)
        self.requests: list[list[Range]] = []
        self._piece = read_nbytes
        self.size = len(content) if read_nbytes else None

    @property
    def read_nbytes(self) -> int | None:
        return self._piece

    def read(self, request: Request) -> Sequence[Bytes]:
        is_whole = isinstance(request, AtMost)
        self.requests.append([(0, self._data.size)] if is_whole else list(request))
        return super().read(request)

    def fetched(self) -> list[Range]:
        return [r for request in self.requests for r in request]


def read_selection(
    stored: StoredChunk, shape: tuple[int, ...], selection: Any, form: Format | None = None
) -> Any:
    """Read a selection of a chunk of float32 numbers."""
    raw = np.full(4 * math.prod(shape), 0xAA, np.uint8)
    touched = partial(touched_ranges, selection, shape, 4)
    read(form or FrameFormat(keep_heads=False), stored, ChunkPart(raw.size, touched, raw))
    return raw.view("f4").reshape(shape)[selection]


def padded_chunks(array: Any, chunks: tuple[int, ...]) -> dict[ChunkIndex, np.ndarray]:
    """Cut an array into chunks, the last of which are padded with its fill value."""
    plan = ArrayPlan("", array.dtype.name, array.shape, chunks)
    found = {}
    for index in np.ndindex(*(-(-n // c) for n, c in zip(array.shape, chunks, strict=True))):
        part = array[tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks, strict=True))]
        chunk = np.full(chunks, plan.fill_value, array.dtype)
        chunk[tuple(map(slice, part.shape))] = part
        found[index] = chunk
    return found


def chunked_array(
    label: str,
    array: Any,
    chunks: tuple[int, ...],
    storage: NotedStorage,
    form: Format,
    encode: Callable[[ChunkIndex, Any], bytes],
    **options: Any,
) -> ChunkedArray:
    """Store an array's chunks, and return a reader of them."""
    for index, chunk in padded_chunks(array, chunks).items():
        storage.chunks[label, index] = encode(index, chunk)

    def locate(index: ChunkIndex) -> Located:
        return Located(form, storage, (label, index))

    if "base" in options:
        base = options.pop("base")
        options["find_base"] = lambda: base
    return ChunkedArray(label, array.shape, array.dtype, chunks, locate, form.in_blocks, **options)


def in_library(array: Any, chunks: tuple[int, ...] | None = None) -> LibraryArray:
    """Return an array as one that a library reads."""

    def read(axes: Any, out: Any) -> None:
        out[...] = array[tuple(map(as_index, axes))]

    return LibraryArray("x", array.shape, array.dtype, chunks, read, 1, OSError)


def little_endian(array: Any) -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def read_range(reader: Any, start: int, stop: int) -> bytes:
    """Read a range into the middle of an array, and check that the rest stays untouched."""
    memory = np.full(stop - start + 64, 0x55, np.uint8)
    reader.read_range(start, stop, memory[32 : memory.size - 32])
    assert (memory[:32] == 0x55).all()
    assert (memory[memory.size - 32 :] == 0x55).all()
    return memory[32 : memory.size - 32].tobytes()


def read_axes(reader: Any, axes: Sequence[Any], threads: int | None = None) -> np.ndarray:
    """Read a box, given by its indices along each axis, in a job for each part of it."""
    out = np.full([len(axis) for axis in axes], 99, reader.dtype)
    jobs, work = reader.box_jobs(axes, out), reader.box_work(axes)
    run_all(jobs, threads or reader.concurrency, work.each)
    return out
