"""Arrays that only zarr reads: rechunked, sharded or recompressed by another program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.grid import chunk_counts, chunk_shape, grid_indices
from bf16codecs._arrays.indexing import Axis, count_chunks
from bf16codecs._arrays.library import LibraryArray
from bf16codecs._base.buffers import as_array
from bf16codecs._base.messages import one_line
from bf16codecs.errors import BF16CodecsError, StoreError

if TYPE_CHECKING:
    import zarr

__all__ = ["library_array"]

# Reads of arrays that zarr decodes: it uses more threads beside these.
_ZARR_CONCURRENCY = 4
# Chunks of one call of zarr's, which lists all before it reads the first: 30 MB. Where shards have
# more, each call reads their index.
_MOST_CHUNKS = 1 << 13


@contextmanager
def _decoding_errors(is_local: bool) -> Iterator[None]:
    """Make a `StoreError` of errors in zarr's codecs.

    Not where a server may have failed: errors of aiohttp and botocore are no OSErrors.
    """
    try:
        yield
    except (OSError, MemoryError, BF16CodecsError):
        raise
    except Exception as e:
        if not is_local:
            raise
        raise StoreError(one_line(e)) from e


def library_array(label: str, array: zarr.Array, is_local: bool) -> LibraryArray:
    """Return an array that zarr reads; `is_local` if no server can fail."""

    def read(axes: Sequence[Axis], out: NDArray[Any]) -> None:
        for region in _parts(axes, array.chunks):
            parts = [axis[part] for axis, part in zip(axes, region, strict=True)]
            selection = tuple(
                slice(a.start, a.stop, a.step) if isinstance(a, range) else a for a in parts
            )
            with _decoding_errors(is_local):
                out[region] = as_array(array.oindex[selection] if selection else array[()])

    def read_points(points: Sequence[NDArray[np.intp]]) -> NDArray[Any] | None:
        from zarr.core.buffer import NDBuffer, cpu, default_buffer_prototype

        buffers: type[NDBuffer] = default_buffer_prototype().nd_buffer
        if not issubclass(buffers, cpu.NDBuffer):  # where `vindex` fails
            return None
        with _decoding_errors(is_local):
            return np.asarray(array.vindex[tuple(points)])

    dtype = array.dtype.newbyteorder("=")
    if dtype.kind in "biufc":
        dtype = np.dtype(dtype.name)  # the same dtype, but NumPy's: PyTorch takes no others
    return LibraryArray(
        label, array.shape, dtype, array.chunks, read, _ZARR_CONCURRENCY, OSError, read_points
    )


def _parts(axes: Sequence[Axis], chunks: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Cut a box into parts that are in few chunks each."""
    shape = [len(axis) for axis in axes]
    counts = map(count_chunks, axes, chunks)
    # How many indices along each axis are in one chunk.
    each = [max(1, n // max(1, count)) for n, count in zip(shape, counts, strict=True)]
    most = chunk_shape(chunk_counts(shape, each), 1, _MOST_CHUNKS)
    lengths = [m * n for m, n in zip(most, each, strict=True)]
    for index in grid_indices(chunk_counts(shape, lengths)):
        yield tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, lengths, strict=True))
