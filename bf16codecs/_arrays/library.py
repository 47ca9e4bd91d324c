"""Arrays that only another library reads: zarr or HDF5."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.array import SLAB_BYTES, Job, Located, Points, UnitArray
from bf16codecs._arrays.grid import ChunkIndex, chunk_counts, chunk_shape, grid_indices
from bf16codecs._arrays.indexing import Axis
from bf16codecs._base.messages import named_errors

__all__ = ["LibraryArray"]


class LibraryArray(UnitArray):
    """An array that only another library reads: coded by others, sharded, not in chunks.

    `read` reads a box, given as for `box_jobs`, into an array of its shape; its errors become
    `error`. A `concurrency` of 0 means that all reads have to happen where jobs are made.
    `read_points` reads single elements, if the library has a better way than boxes around them; it
    returns None if it has none now.
    """

    def __init__(
        self,
        label: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunks: tuple[int, ...] | None,
        read: Callable[[Sequence[Axis], NDArray[Any]], None],
        concurrency: int,
        error: type[Exception],
        read_points: Callable[[Sequence[NDArray[np.intp]]], NDArray[Any] | None] | None = None,
    ) -> None:
        unit = chunk_shape(shape, dtype.itemsize, SLAB_BYTES)
        decoded_nbytes = math.prod(chunks or ()) * dtype.itemsize
        # Larger chunks are read one by one: the library would decode one for each of its slabs, and
        # several at a time.
        self._is_large = decoded_nbytes > SLAB_BYTES
        if chunks is not None and self._is_large:
            unit = chunks
        super().__init__(label, shape, dtype, chunks or unit, unit)
        self.decoded_nbytes = decoded_nbytes
        self._read, self._read_all_points, self._error = read, read_points, error
        self.concurrency = concurrency

    def box_jobs(self, axes: Sequence[Axis], out: NDArray[Any]) -> Iterator[Job]:
        """Yield what together reads a box into `out`: one job, or as many as overlap."""
        if out.size == 0:
            return
        if self._is_large or self._reads_around(axes):
            yield from super().box_jobs(axes, out)
            return
        lengths = out.shape
        if self.concurrency > 1:
            lengths = chunk_shape(out.shape, self.dtype.itemsize, 2 * SLAB_BYTES)
        for index in grid_indices(chunk_counts(out.shape, lengths)):
            parts = [slice(i * n, (i + 1) * n) for i, n in zip(index, lengths, strict=True)]
            piece = [axis[part] for axis, part in zip(axes, parts, strict=True)]
            part: Any = (*parts, ...)
            yield partial(self._read_named, piece, out[part])

    def read_points(self, indices: Sequence[NDArray[np.intp]], out: NDArray[Any]) -> None:
        """Read single elements into `out`; all have one dimension."""
        values = None
        if self._read_all_points is not None and not self._is_large:
            with named_errors(self.label, self._error):
                values = self._read_all_points(indices)
        if values is None:
            super().read_points(indices, out)
        else:
            out[...] = values

    def _reads_around(self, axes: Sequence[Axis]) -> bool:
        """Tell whether the region around a box, which HDF5 reads, is far larger than the box."""
        enclosing = math.prod(int(axis[-1]) - int(axis[0]) + 1 for axis in axes)
        return (
            self.concurrency == 0
            and enclosing * self.dtype.itemsize > SLAB_BYTES
            and enclosing > 2 * math.prod(map(len, axes))
        )

    def _read_named(self, axes: Sequence[Axis], out: NDArray[Any]) -> None:
        with named_errors(self.label, self._error):
            self._read(axes, out)

    def _read_box(
        self, index: ChunkIndex, located: Located | None, axes: Sequence[Axis], out: NDArray[Any]
    ) -> None:
        origins = [i * n for i, n in zip(index, self._unit, strict=True)]
        axes = [_moved(axis, origin) for axis, origin in zip(axes, origins, strict=True)]
        self._read_named(axes, out)

    def _read_points(
        self, index: ChunkIndex, located: Located | None, points: Points
    ) -> NDArray[Any]:
        box = [range(int(p.min()), int(p.max()) + 1) for p in points]
        values = np.empty([len(axis) for axis in box], self.dtype)
        self._read_box(index, located, box, values)
        return values[tuple(p - axis.start for p, axis in zip(points, box, strict=True))]


def _moved(axis: Axis, origin: int) -> Axis:
    if isinstance(axis, range):
        return range(axis.start + origin, axis.stop + origin, axis.step)
    return axis + origin
