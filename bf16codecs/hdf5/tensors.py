"""Exact reading and writing of tensors as HDF5 datasets."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.array import ArrayReader
from bf16codecs._arrays.grid import chunk_counts, chunk_shape, grid_indices
from bf16codecs._arrays.indexing import Box, Points, parse_selection
from bf16codecs._base.buffers import ThreadBuffer, as_array, layout_for
from bf16codecs._base.threads import run_ahead, run_all, worker_count
from bf16codecs.codecs import FrameCodec
from bf16codecs.hdf5.dataset import Compression, create_dataset, write_region
from bf16codecs.hdf5.direct import Decoding, DirectWriter, dataset_array
from bf16codecs.hdf5.filters import FrameFilter, Huffman, Zstd
from bf16codecs.hdf5.types import item_type

__all__ = ["read_tensor", "write_tensor"]

_CHUNK_SIZE = 32 << 20


def write_tensor(
    group: h5py.Group,
    name: str,
    array: Any,
    *,
    compression: FrameFilter | Zstd | None = Huffman(),  # noqa: B008  (immutable)
    chunks: Sequence[int] | None = None,
) -> h5py.Dataset:
    """Write an array as a dataset, bit for bit, encoding with all threads.

    ml_dtypes' ``bfloat16``, ``float8_e4m3fn`` and ``float8_e5m2`` become HDF5 floating-point types,
    which other programs read as numbers.

    Parameters
    ----------
    group : h5py.Group
        A group, or the file.
    name : str
        The dataset's path; missing groups are created.
    array : array_like
        Numbers or booleans, or a PyTorch tensor.
    compression : Split, Huffman, Arithmetic, Zstd or None
        The filter. Scalars and empty arrays are not compressed.
    chunks : sequence of int, optional
        Shape of the chunks. By default, whole rows of at most 32 MiB together; for a codec with
        steps, the first axis of a chunk has one index for each step.

    Returns
    -------
    h5py.Dataset

    Raises
    ------
    TypeError
        If the items are neither numbers nor booleans, or some are masked.
    ValueError
        If `chunks` do not fit, a codec's steps do not divide them, or the dataset exists.

    Examples
    --------
    >>> import h5py, ml_dtypes, numpy as np
    >>> from bf16codecs.hdf5 import Arithmetic
    >>> weights = np.full((1000, 64), 0.02, ml_dtypes.bfloat16)
    >>> with h5py.File("weights.h5", "w", driver="core", backing_store=False) as file:
    ...     dataset = write_tensor(file, "weights", weights, compression=Arithmetic())
    ...     bool((read_tensor(dataset, np.s_[10:20]) == weights[10:20]).all())
    True
    """
    if not (compression is None or isinstance(compression, (FrameFilter, FrameCodec, Zstd))):
        raise TypeError(f"compression is a filter of bf16codecs.hdf5 or None, not {compression!r}")
    array = _in_order_of_types(_as_data(array))
    coder: Compression = compression
    if isinstance(compression, FrameFilter):
        coder = compression.codec_for(layout_for(array.dtype))
    elif isinstance(compression, FrameCodec):
        coder = compression.for_dtype(array.dtype)
    steps = coder.steps if isinstance(coder, FrameCodec) else 1
    shape = _chunks_for(array, chunks, steps)
    dataset = create_dataset(group.id, name, array.dtype, array.shape, shape, coder)
    try:
        if shape is not None:
            _write_chunks(dataset, coder, array)
        elif array.size:
            write_region(dataset, (), np.ascontiguousarray(array))
    except BaseException:
        # This fails as well if the disk is full. Raise the first error.
        with contextlib.suppress(OSError, RuntimeError, KeyError):
            del group[name]
        raise
    return h5py.Dataset(dataset)


def _as_data(value: Any) -> NDArray[Any]:
    """Return the value as a NumPy array."""
    if np.ma.is_masked(value):
        raise TypeError(
            "the array has masked items, and HDF5 keeps no mask: write array.filled(...), and the"
            " mask separately"
        )
    try:
        return np.asarray(as_array(value))
    except (RuntimeError, TypeError) as e:  # from PyTorch, for a list of tensors
        if not isinstance(value, (list, tuple)):
            raise
        raise TypeError(
            f"NumPy cannot make an array of this {type(value).__name__} ({e}): join tensors with"
            " torch.stack(...)"
        ) from e


def _in_order_of_types(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in a byte order for which HDF5 types exist."""
    # ml_dtypes' types are stored in little-endian order only. For complex long doubles ("G"), h5py
    # makes the native type whatever the order.
    is_only_native = array.dtype.isbuiltin == 2 or array.dtype.char == "G"
    return array.astype(array.dtype.newbyteorder("=")) if is_only_native else array


def _chunks_for(
    array: NDArray[Any], chunks: Sequence[int] | None, steps: int
) -> tuple[int, ...] | None:
    """Return the chunk shape, or None for an array that HDF5 cannot chunk."""
    if array.size == 0 or array.ndim == 0:
        return None
    if chunks is None and steps > 1:
        if array.ndim == 1:
            raise ValueError(
                f"an array of shape {array.shape} has only the axis of its steps: give chunks"
            )
        if array.shape[0] < steps:
            raise ValueError(
                f"an array of shape {array.shape} has fewer than {steps} steps along its first"
                " axis: give fewer steps"
            )
        return (steps, *chunk_shape(array.shape[1:], array.itemsize, _CHUNK_SIZE // steps))
    if chunks is None:
        return chunk_shape(array.shape, array.itemsize, _CHUNK_SIZE)
    shape = tuple(map(operator.index, chunks))
    if len(shape) != array.ndim or not all(map(operator.le, shape, array.shape)) or min(shape) < 1:
        raise ValueError(f"chunks {shape} do not fit into an array of shape {array.shape}")
    if array.ndim > 1 and shape[0] % steps != 0:
        raise ValueError(
            f"chunks {shape} have {shape[0]} steps along the first axis, which is not a multiple of"
            f" the codec's {steps}: give chunks of {steps} along it"
        )
    return shape


def _write_chunks(dataset: Any, compression: Compression, array: NDArray[Any]) -> None:
    target = DirectWriter(dataset, compression)
    padded = ThreadBuffer()

    def encode(index: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
        cut = zip(index, target.chunks, strict=True)
        part = array[tuple(slice(i * n, (i + 1) * n) for i, n in cut)]
        if part.shape == target.chunks and part.flags.c_contiguous:
            return index, target.encode(part.reshape(-1).view(np.uint8))
        chunk = padded.get(target.nbytes)
        if part.shape != target.chunks:
            chunk[:] = 0  # HDF5 pads with zeros
        whole = chunk.view(array.dtype).reshape(target.chunks)
        whole[tuple(map(slice, part.shape))] = part
        data = target.encode(chunk)
        # This thread reuses the memory for its next chunk.
        return index, chunk.copy() if data is chunk else data

    indices = grid_indices(chunk_counts(array.shape, target.chunks))
    jobs = (partial(encode, index) for index in indices)
    with contextlib.closing(run_ahead(jobs, worker_count())) as encoded:
        for index, data in encoded:
            target.put(index, data)


def read_tensor(
    dataset: h5py.Dataset, selection: Any = ..., out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Read a dataset, or a selection of it, bit for bit, decoding with all threads.

    Only the chunks that the selection touches are read, and only their touched blocks are decoded.

    Parameters
    ----------
    dataset : h5py.Dataset
        Numbers or booleans, written by any program. HDF5 decodes filters that this package does not
        support.
    selection
        As in ``array[selection]``: integers, slices of any step, ``...``, and arrays of integers or
        booleans.
    out : numpy.ndarray, optional
        Array for the result, of its shape and data type.

    Returns
    -------
    numpy.ndarray
        `out` if given. ml_dtypes provides the data types that NumPy lacks.

    Raises
    ------
    bf16codecs.errors.CodecError
        If a chunk is damaged.
    OSError
        If HDF5 cannot read the dataset.
    TypeError
        If the items are neither numbers nor booleans.
    ValueError
        If `out` does not fit.
    IndexError
        If the selection does not fit the shape, as in NumPy.
    """
    if not isinstance(dataset, h5py.Dataset):
        raise TypeError(f"a dataset is needed, such as file['weight'], not {dataset!r:.80}")
    if dataset.shape is None:
        raise TypeError(f"{dataset.name} has no data")
    label = dataset.name or "dataset"
    try:
        items = item_type(dataset.id.get_type())
        array = dataset_array(dataset.id, items, label, Decoding(keep_heads=False))
    except TypeError as e:
        raise TypeError(f"{label}: {e}") from e
    box = parse_selection(selection, array.shape)
    if out is not None and out.dtype != items.dtype:
        raise ValueError(f"out has dtype {out.dtype}, {dataset.name} has {items.dtype}")
    if array.dtype == items.dtype:
        return _read(array, box, out)
    if out is None:
        return _read(array, box, None).view(items.dtype)
    _read(array, box, np.asarray(out).view(array.dtype))
    return out


def _read(array: ArrayReader, box: Box | Points, out: NDArray[Any] | None) -> NDArray[Any]:
    """Read a selection, into `out` if given."""
    if isinstance(box, Points):
        found = np.empty(box.indices[0].size, array.dtype)
        array.read_points([indices.reshape(-1) for indices in box.indices], found)
        return _put(found.reshape(box.indices[0].shape), out)
    shape = tuple(len(axis) for axis in box.axes)
    in_place = out is not None and out.shape == shape and _selects_all(box.then)
    whole = out if out is not None and in_place else np.empty(shape, array.dtype)
    jobs = array.box_jobs(box.axes, whole)
    run_all(jobs, array.concurrency, array.box_work(box.axes).each)
    selected = whole[box.then]
    return selected if in_place else _put(selected, out)


def _put(selected: NDArray[Any], out: NDArray[Any] | None) -> NDArray[Any]:
    """Copy the selected items to `out`, if given."""
    if out is None:
        return selected
    if out.shape != selected.shape:
        raise ValueError(f"out has shape {out.shape}, the selection {selected.shape}")
    out[...] = selected
    return out


def _selects_all(then: tuple[Any, ...]) -> bool:
    return all(i is Ellipsis or (isinstance(i, slice) and i == slice(None)) for i in then)
