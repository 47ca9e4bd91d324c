"""Arrays in a store, read in boxes and points, chunk by chunk."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bf16codecs._chunks.blocks import touched_blocks
from bf16codecs._chunks.formats import StoredForm
from bf16codecs._chunks.indexing import Axis, as_index, cut_axis
from bf16codecs._chunks.sources import Blobs, Range
from bf16codecs._loading import run_all
from bf16codecs.errors import CodecError, StoreError

__all__ = ["ArrayReader", "ChunkedArray", "named_errors"]

Job = Callable[[], None]

# Wanted bytes are told in units of this size: finer ones would be more ranges than they save.
_GRAIN = 1 << 16
# Of chunks that are being fetched, as long as that is more than one.
_IN_FLIGHT_BYTES = 1 << 28


class ArrayReader(Protocol):
    """An array in a store; several threads may read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    #: Shape in which it is stored, for those who read it piece by piece.
    chunks: tuple[int, ...]

    def box_jobs(self, axes: Sequence[Axis], out: NDArray[Any]) -> Iterator[Job]:
        """Yield what together reads a box into `out`, in any order and at the same time."""

    def read_points(self, indices: Sequence[NDArray[np.intp]], out: NDArray[Any]) -> None:
        """Read single elements into `out`; all have one dimension."""

    @property
    def concurrency(self) -> int:
        """How many jobs at a time pay off."""


class ChunkedArray:
    """An array whose chunks are found by key and read without another library.

    Parameters
    ----------
    label
        Store and tensor, for messages.
    shape, dtype, chunks
        Of the array; an edge chunk is stored whole.
    form
        How chunks are stored.
    blobs
        Where they are.
    key
        Makes a chunk's key of its indices.
    """

    def __init__(
        self,
        label: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunks: tuple[int, ...],
        form: StoredForm,
        blobs: Blobs,
        key: Callable[[tuple[int, ...]], str],
    ) -> None:
        self.shape, self.dtype, self.chunks = shape, dtype, chunks
        self._label, self._form, self._blobs, self._key = label, form, blobs, key
        self._nbytes = math.prod(chunks) * dtype.itemsize

    @property
    def concurrency(self) -> int:
        """How many jobs at a time pay off."""
        limit = self._blobs.concurrency
        return limit if limit == 1 else max(2, min(limit, _IN_FLIGHT_BYTES // self._nbytes))

    def box_jobs(self, axes: Sequence[Axis], out: NDArray[Any]) -> Iterator[Job]:
        """Yield what together reads a box into `out`."""
        segments = [list(cut_axis(a, n)) for a, n in zip(axes, self.chunks, strict=True)]
        for combination in itertools.product(*segments):
            index = tuple(c for c, _, _ in combination)
            local = [axis for _, axis, _ in combination]
            place: Any = (*(part for _, _, part in combination), ...)  # a view even if of one item
            yield partial(self._read_chunk, index, local, out[place])

    def read_points(self, indices: Sequence[NDArray[np.intp]], out: NDArray[Any]) -> None:
        """Read single elements into `out`."""
        if out.size == 0:
            return
        grid = tuple(-(-s // c) for s, c in zip(self.shape, self.chunks, strict=True))
        where = [i // c for i, c in zip(indices, self.chunks, strict=True)]
        numbers = np.ravel_multi_index(where, grid)
        order = np.argsort(numbers, kind="stable")
        jobs: list[Job] = []
        for group in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            index = tuple(int(w[group[0]]) for w in where)
            local = tuple(i[group] % c for i, c in zip(indices, self.chunks, strict=True))
            jobs.append(partial(self._read_chunk_points, index, local, out, group))
        run_all(jobs, self.concurrency)

    def _read_chunk_points(
        self,
        index: tuple[int, ...],
        points: tuple[NDArray[np.intp], ...],
        out: NDArray[Any],
        where: NDArray[np.intp],
    ) -> None:
        raw = np.empty(self._nbytes, np.uint8)
        self._read_bytes(index, self._spans(points, self.chunks, 0), raw, 0)
        out[where] = raw.view(self.dtype).reshape(self.chunks)[points]

    def _read_chunk(self, index: tuple[int, ...], axes: Sequence[Axis], out: NDArray[Any]) -> None:
        """Read part of a chunk: a box of it."""
        # Axes of one index each are a place in the chunk; the next one is the first that varies.
        base, stride, depth = 0, self._nbytes, 0
        for axis, size in zip(axes, self.chunks, strict=True):
            stride //= size
            if len(axis) > 1:
                break
            base += axis[0] * stride
            depth += 1
        if depth == len(axes):
            self._read_run(index, base, out)
            return
        first, stop = int(axes[depth][0]), int(axes[depth][-1]) + 1
        base += first * stride
        rest = self.chunks[depth + 1 :]
        dense = stop - first == len(axes[depth])
        inner = axes[depth + 1 :]
        if dense and all(len(a) == n for a, n in zip(inner, rest, strict=True)):
            self._read_run(index, base, out)
            return
        shape = (stop - first, *rest)
        local = (as_index(axes[depth], first), *map(as_index, inner))
        # The system provides memory only for the parts that are decoded into.
        raw = np.empty((stop - first) * stride, np.uint8)
        self._read_bytes(index, self._spans(local, shape, base), raw, base)
        out[...] = raw.view(self.dtype).reshape(shape)[local].reshape(out.shape)

    def _read_run(self, index: tuple[int, ...], base: int, out: NDArray[Any]) -> None:
        """Read one run of bytes of a chunk."""
        run = out if out.flags.c_contiguous else np.empty(out.shape, self.dtype)
        raw = run.reshape(-1).view(np.uint8)
        self._read_bytes(index, [(base, base + raw.size)], raw, base)
        if run is not out:
            out[...] = run

    def _spans(self, selection: Any, shape: tuple[int, ...], base: int) -> list[Range]:
        """Return the bytes that a selection of an array of `shape` at `base` needs."""
        size = math.prod(shape) * self.dtype.itemsize
        runs = touched_blocks(selection, shape, self.dtype.itemsize, _GRAIN)
        return [(base + a * _GRAIN, base + min(b * _GRAIN, size)) for a, b in runs]

    def _read_bytes(
        self, index: tuple[int, ...], spans: Sequence[Range], raw: NDArray[np.uint8], base: int
    ) -> None:
        key = self._key(index)
        with named_errors(f"{self._label}, chunk {key}"):
            self._form.read(self._blobs, key, self._nbytes, spans, raw, base)


@contextmanager
def named_errors(what: str, passing: type[Exception] = MemoryError) -> Iterator[None]:
    """Say in one line what could not be read, whatever the error but `passing`."""
    try:
        yield
    except (MemoryError, passing):
        raise
    except Exception as e:
        kind = type(e) if isinstance(e, (CodecError, StoreError)) else OSError
        text = str(e) if isinstance(e, ValueError) else f"{type(e).__name__}: {e}"
        raise kind(f"{what}: {' '.join(text.split())}") from e
