"""Create datasets, and read and write their exact bits through HDF5."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np
from h5py._hl.base import phil
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._base.buffers import row_of
from bf16codecs.codecs import BF16Zstd, FrameCodec
from bf16codecs.hdf5.filters import FrameFilter, Zstd, cd_values, require_zstd
from bf16codecs.hdf5.types import file_type

__all__ = [
    "Compression",
    "Region",
    "create_dataset",
    "read_region",
    "write_region",
]

Compression = FrameFilter | Zstd | FrameCodec | str | None
#: Starts and stops on every axis.
Region = tuple[slice, ...]


def create_dataset(
    group: Any,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None,
    compression: Compression = None,
    is_growing: bool = False,
) -> Any:
    """Create a dataset in an h5py `GroupID` or `FileID`, with missing groups; return a `DatasetID`.

    `chunks` is None for a contiguous dataset, which cannot be compressed. `compression` is a
    filter, or the codec for this package's filter; ``"gzip"``; or None. With `is_growing`, the
    first dimension may grow, and unwritten items are NaN, or 0 for integers. Raises ValueError if a
    codec's steps do not divide the chunks.
    """
    with phil:
        links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        links.set_create_intermediate_group(True)
        links.set_char_encoding(h5py.h5t.CSET_UTF8)
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if is_growing and (dtype.name in _core.DTYPES or dtype.kind == "f"):
            # HDF5 converts it to the dataset's type.
            properties.set_fill_value(np.array(math.nan, "<f4"))
        elif not is_growing:
            # Every byte will be written, so filling would write each twice.
            properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        if chunks is not None:
            properties.set_chunk(chunks)
            _set_filters(properties, compression, dtype.itemsize, chunks)
        largest = (h5py.h5s.UNLIMITED, *shape[1:]) if is_growing else shape
        scalar = h5py.h5s.SCALAR
        space = h5py.h5s.create_simple(shape, largest) if shape else h5py.h5s.create(scalar)
        return h5py.h5d.create(
            group, name.encode(), file_type(dtype), space, dcpl=properties, lcpl=links
        )


def _set_filters(
    properties: Any, compression: Compression, item_size: int, chunks: tuple[int, ...]
) -> None:
    if isinstance(compression, FrameCodec):
        items = math.prod(chunks)
        compression.check_steps(items * item_size)
        row = row_of(chunks, compression.steps) if chunks else 0
        values = cd_values(compression, items * item_size, row)
        # The filter cannot encode Zstandard. With an optional filter, other programs that write to
        # the dataset would silently store raw chunks.
        is_decode_only = isinstance(compression, BF16Zstd)
        flag = h5py.h5z.FLAG_MANDATORY if is_decode_only else h5py.h5z.FLAG_OPTIONAL
        properties.set_filter(FrameFilter.filter_id, flag, values)
    elif isinstance(compression, Zstd):
        require_zstd()
        properties.set_shuffle()
        properties.set_filter(
            compression.filter_id, h5py.h5z.FLAG_OPTIONAL, compression.filter_options
        )
    elif compression == "gzip":
        properties.set_deflate(6)
    elif compression is not None:
        raise TypeError(f"compression is a filter of bf16codecs.hdf5 or None, not {compression!r}")


def read_region(dataset: Any, region: Region, out: NDArray[Any], item_type: Any) -> None:
    """Read a region of a dataset through HDF5, as items of `item_type`, the type of `out`."""
    with phil:
        memory, file = _spaces(dataset, region)
        dataset.read(memory, file, out, mtype=item_type)


def write_region(dataset: Any, region: Region, values: NDArray[Any]) -> None:
    """Write a region of a dataset through HDF5, without conversion."""
    with phil:
        memory, file = _spaces(dataset, region)
        dataset.write(memory, file, values, mtype=dataset.get_type())


def _spaces(dataset: Any, region: Region) -> tuple[Any, Any]:
    if not region:
        return h5py.h5s.ALL, h5py.h5s.ALL
    starts = tuple(s.start for s in region)
    counts = tuple(s.stop - s.start for s in region)
    file = dataset.get_space()
    file.select_hyperslab(starts, counts)
    return h5py.h5s.create_simple(counts), file
