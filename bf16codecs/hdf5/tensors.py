"""HDF5: this package's filter for h5py, and exact reading and writing of tensors.

Importing this module registers the filter with the libhdf5 that h5py uses. Programs without
Python load the same plugin from `PLUGIN_PATH`: see docs/hdf5_filter.md.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from bf16codecs._buffers import layout_for
from bf16codecs._chunks.grid import chunk_shape
from bf16codecs._chunks.indexing import Axis, Points, Segment, as_index, cut_axis, parse_selection
from bf16codecs._threads import worker_count
from bf16codecs.codecs import FrameCodec
from bf16codecs.hdf5.coders import Memory, ThreadMemory
from bf16codecs.hdf5.dataset import Compression, create_dataset, read_region, write_region
from bf16codecs.hdf5.direct import ChunkedDataset, Stored
from bf16codecs.hdf5.filters import (
    FILTER_ID,
    PLUGIN_PATH,
    Arithmetic,
    FrameFilter,
    Huffman,
    Split,
    Zstd,
    register,
)
from bf16codecs.hdf5.types import array_dtype

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

Result = TypeVar("Result")


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
        # On a full disk that fails too, and the first error is the one that tells.
        with contextlib.suppress(OSError, RuntimeError, KeyError):
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
    padded = ThreadMemory()

    def encode(index: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
        cut = zip(index, target.chunks, strict=True)
        part = array[tuple(slice(i * n, (i + 1) * n) for i, n in cut)]
        if part.shape == target.chunks and part.flags.c_contiguous:
            return index, target.encode(part.reshape(-1).view(np.uint8))
        chunk = padded.memory.get(target.nbytes)
        if part.shape != target.chunks:
            chunk[:] = 0  # HDF5's own padding
        whole = chunk.view(array.dtype).reshape(target.chunks)
        whole[tuple(map(slice, part.shape))] = part
        data = target.encode(chunk)
        # The next chunk of this thread goes to the same memory.
        return index, chunk.copy() if data is chunk else data

    jobs = (partial(encode, index) for index in _grid(array.shape, target.chunks))
    for index, data in _run_ahead(jobs):
        target.put(index, data)


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
    out[...] = whole[tuple(as_index(axis, int(axis[0])) for axis in axes)]


def _read_chunks(source: ChunkedDataset, axes: Sequence[Axis], out: NDArray[Any]) -> bool:
    """Read chunk by chunk; false if there is one that only HDF5 can read."""
    decoded = ThreadMemory()

    def decode(stored: Stored, memory: Memory, segments: tuple[Segment, ...]) -> Memory:
        target = out[tuple(s.place for s in segments)]
        if target.shape == source.chunks and target.flags.c_contiguous:
            source.decode(stored, target.reshape(-1).view(np.uint8))
            return memory
        local = tuple(as_index(s.indices) for s in segments)
        chunk = decoded.memory.get(source.nbytes)
        source.decode_part(stored, local, chunk)
        target[...] = chunk.view(out.dtype).reshape(source.chunks)[local]
        return memory

    free: list[Memory] = []
    cuts = [list(cut_axis(a, n)) for a, n in zip(axes, source.chunks, strict=True)]

    def jobs() -> Iterator[Callable[[], Memory]]:
        for segments in itertools.product(*cuts):
            memory = free.pop() if free else Memory()
            stored = source.fetch(tuple(s.chunk for s in segments), memory)
            if stored is None:
                raise _OnlyHdf5
            yield partial(decode, stored, memory, segments)

    try:
        for memory in _run_ahead(jobs()):
            free.append(memory)
    except _OnlyHdf5:
        return False
    return True


class _OnlyHdf5(Exception):
    """There is a chunk that only HDF5 can read."""


def _run_ahead(jobs: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """Run jobs on threads, and yield their results in order.

    Jobs are made, and results taken, by the calling thread, which alone calls HDF5: it may hold
    HDF5's lock already, so nobody else would get it.
    """
    jobs = iter(jobs)
    first = list(itertools.islice(jobs, 2))
    if len(first) < 2:
        yield from (job() for job in first)
        return
    workers = worker_count()
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for job in itertools.chain(first, jobs):
                pending.append(pool.submit(job))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
