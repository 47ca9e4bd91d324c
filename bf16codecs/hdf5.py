"""HDF5: this package's filter for h5py, and exact reading and writing of tensors.

Importing this module registers the filter with the libhdf5 that h5py uses. Programs without
Python load the same plugin from `PLUGIN_PATH`: see docs/hdf5_filter.md.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from bf16codecs._buffers import layout_for
from bf16codecs._chunks import chunk_shape
from bf16codecs._h5chunks import ChunkedDataset
from bf16codecs._h5dataset import Compression, create_dataset, read_region, write_region
from bf16codecs._h5filters import (
    FILTER_ID,
    PLUGIN_PATH,
    Arithmetic,
    FrameFilter,
    Huffman,
    Split,
    Zstd,
    register,
)
from bf16codecs._h5types import array_dtype
from bf16codecs._indexing import Axis, Points, parse_selection
from bf16codecs._loading import run_all
from bf16codecs._pipeline import worker_count
from bf16codecs.codecs import FrameCodec

__all__ = [
    "FILTER_ID",
    "PLUGIN_PATH",
    "Arithmetic",
    "Huffman",
    "Split",
    "Zstd",
    "read_tensor",
    "register",
    "write_tensor",
]

_CHUNK_SIZE = 32 << 20


def write_tensor(
    group: h5py.Group,
    name: str,
    array: Any,
    *,
    compression: FrameFilter | Zstd | None = Huffman(),  # noqa: B008  (immutable)
    chunks: Sequence[int] | None = None,
) -> h5py.Dataset:
    """Write an array as a dataset: every bit as it is, coded by all threads.

    ml_dtypes' ``bfloat16``, ``float8_e4m3fn`` and ``float8_e5m2`` become floating-point types of
    HDF5, which other programs read as numbers.

    Parameters
    ----------
    group : h5py.Group
        A group, or the file.
    name : str
        The dataset's path; groups on the way are made.
    array : array_like
        Numbers or booleans.
    compression : Split, Huffman, Arithmetic, Zstd or None
        The filter. Arrays without dimensions, or without items, are not compressed.
    chunks : sequence of int, optional
        Shape of the chunks; by default of whole rows and at most 32 MiB.

    Returns
    -------
    h5py.Dataset

    Examples
    --------
    >>> import h5py, ml_dtypes, numpy as np
    >>> weights = np.full((1000, 64), 0.02, ml_dtypes.bfloat16)
    >>> with h5py.File("weights.h5", "w", driver="core", backing_store=False) as file:
    ...     dataset = write_tensor(file, "weights", weights, compression=Arithmetic())
    ...     bool((read_tensor(dataset, np.s_[10:20]) == weights[10:20]).all())
    True
    """
    array = np.asarray(array)
    shape = _chunks_for(array, chunks)
    coder: Compression = compression
    if isinstance(compression, FrameFilter):
        coder = compression.codec_for(layout_for(array.dtype))
    dataset = create_dataset(group.id, name, array.dtype, array.shape, shape, coder)
    try:
        if shape is not None:
            _write_chunks(dataset, coder, array)
        elif array.size:
            write_region(dataset, (), np.ascontiguousarray(array))
    except BaseException:
        del group[name]
        raise
    return h5py.Dataset(dataset)


def _chunks_for(array: NDArray[Any], chunks: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the shape of chunks, or None for an array that HDF5 cannot cut."""
    if array.size == 0 or array.ndim == 0:
        return None
    if chunks is None:
        return chunk_shape(array.shape, array.itemsize, _CHUNK_SIZE)
    shape = tuple(map(operator.index, chunks))
    if len(shape) != array.ndim or not all(map(operator.le, shape, array.shape)) or min(shape) < 1:
        raise ValueError(f"chunks {shape} do not fit into an array of shape {array.shape}")
    return shape


def _write_chunks(dataset: Any, coder: Compression, array: NDArray[Any]) -> None:
    target = ChunkedDataset(dataset, coder if isinstance(coder, FrameCodec) else None)

    def write(index: tuple[int, ...]) -> None:
        cut = zip(index, target.chunks, strict=True)
        part = array[tuple(slice(i * n, (i + 1) * n) for i, n in cut)]
        if part.shape != target.chunks or not part.flags.c_contiguous:
            memory = target.workspace.chunk(target.nbytes)
            if part.shape != target.chunks:
                memory[:] = 0  # HDF5's own padding
            chunk = memory.view(array.dtype).reshape(target.chunks)
            chunk[tuple(map(slice, part.shape))] = part
            part = chunk
        target.write(index, part.reshape(-1).view(np.uint8))

    jobs = (partial(write, index) for index in _grid(array.shape, target.chunks))
    run_all(jobs, worker_count())


def _grid(shape: Sequence[int], chunks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(-(-s // c)) for s, c in zip(shape, chunks, strict=True)))


def read_tensor(
    dataset: h5py.Dataset, selection: Any = ..., out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Read a dataset, or a part of it: every bit as it is, decoded by all threads.

    Only the chunks that the selection touches are read, and of a chunk only the blocks that it
    touches are decoded.

    Parameters
    ----------
    dataset : h5py.Dataset
        Of numbers or booleans, whoever wrote it. Filters that this package does not know are left
        to HDF5.
    selection
        As in ``array[selection]``: integers, slices of any step, ``...``, and one array of integers
        or booleans.
    out : numpy.ndarray, optional
        Where to put the result: of its shape and data type.

    Returns
    -------
    numpy.ndarray
        `out` if it was given. With ml_dtypes' data types for the floats that NumPy does not have.

    Raises
    ------
    bf16codecs.errors.CodecError
        If a chunk is damaged.
    """
    identifier = dataset.id
    dtype = array_dtype(identifier.get_type())
    if dtype.kind == "O":
        raise TypeError(f"{dataset.name} has no numbers but {dtype}")
    box = parse_selection(selection, dataset.shape)
    if isinstance(box, Points):
        raise IndexError("a selection has one array of integers or booleans at most")
    if out is not None and out.dtype != dtype:
        raise ValueError(f"out is of {out.dtype}, {dataset.name} of {dtype}")
    shape = tuple(len(axis) for axis in box.axes)
    in_place = out is not None and out.shape == shape and _selects_all(box.then)
    whole = out if out is not None and in_place else np.empty(shape, dtype)
    if whole.size and not (
        ChunkedDataset.supports(identifier)
        and _read_chunks(ChunkedDataset(identifier), box.axes, whole)
    ):
        _read_by_hdf5(identifier, box.axes, whole)
    selected = whole[box.then]
    if out is None or in_place:
        return selected
    if out.shape != selected.shape:
        raise ValueError(f"out has shape {out.shape}, the selection {selected.shape}")
    out[...] = selected
    return out


def _selects_all(then: tuple[Any, ...]) -> bool:
    return all(i is Ellipsis or (isinstance(i, slice) and i == slice(None)) for i in then)


def _read_by_hdf5(dataset: Any, axes: Sequence[Axis], out: NDArray[Any]) -> None:
    """Let HDF5 read, and decode, what encloses the selection."""
    region = tuple(slice(int(axis[0]), int(axis[-1]) + 1) for axis in axes)
    whole = np.empty([s.stop - s.start for s in region], out.dtype)
    read_region(dataset, region, whole)
    out[...] = whole[tuple(_shifted(axis, int(axis[0])) for axis in axes)]


def _read_chunks(source: ChunkedDataset, axes: Sequence[Axis], out: NDArray[Any]) -> bool:
    """Read chunk by chunk; false if there is one that only HDF5 can read."""
    found = []

    def read(segments: tuple[_Segment, ...]) -> None:
        index = tuple(s.chunk for s in segments)
        target = out[tuple(s.place for s in segments)]
        if target.shape == source.chunks and target.flags.c_contiguous:
            found.append(source.read(index, target.reshape(-1).view(np.uint8)))
            return
        local = tuple(s.items for s in segments)
        chunk = source.workspace.chunk(source.nbytes)
        found.append(source.read_part(index, local, chunk))
        target[...] = chunk.view(out.dtype).reshape(source.chunks)[local]

    cuts = [list(_segments(a, n)) for a, n in zip(axes, source.chunks, strict=True)]
    run_all((partial(read, segments) for segments in itertools.product(*cuts)), worker_count())
    return all(found)


class _Segment(NamedTuple):
    """What lies in one chunk of the indices along an axis."""

    chunk: int
    #: In the chunk, and in what is read.
    items: slice | NDArray[np.intp]
    place: slice


def _segments(axis: Axis, length: int) -> Iterator[_Segment]:
    done = 0
    while done < len(axis):
        chunk = int(axis[done]) // length
        end = (chunk + 1) * length
        if isinstance(axis, range):
            stop = min(len(axis), -(-(end - axis.start) // axis.step))
        else:
            stop = int(np.searchsorted(axis, end))
        yield _Segment(chunk, _shifted(axis[done:stop], chunk * length), slice(done, stop))
        done = stop


def _shifted(axis: Axis, offset: int) -> slice | NDArray[np.intp]:
    if isinstance(axis, range):
        return slice(axis[0] - offset, axis[-1] + 1 - offset, axis.step)
    return axis - offset
