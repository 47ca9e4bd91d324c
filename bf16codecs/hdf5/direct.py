"""Direct chunk I/O: HDF5 finds and moves the chunks of a dataset, and this module codes them.

libhdf5 works under one lock, its filters included. Coding outside of it uses all threads. Chunks of
a file that is open for reading only are read without libhdf5, block by block.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from io import BufferedReader
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py._hl.base import phil
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._arrays.array import ChunkedArray, Located, RangeReader, UnitArray
from bf16codecs._arrays.formats import (
    RAW,
    DeflateFormat,
    Fletcher32Format,
    Format,
    ShuffledFormat,
    ZstdFormat,
    encode_zstd,
)
from bf16codecs._arrays.frames import FrameFormat
from bf16codecs._arrays.grid import ChunkIndex, chunk_counts
from bf16codecs._arrays.indexing import Axis, as_index
from bf16codecs._arrays.library import LibraryArray
from bf16codecs._arrays.storage import FileRange, FileStorage, InMemory
from bf16codecs._base.arguments import argument
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.messages import advised
from bf16codecs._files.reading import HAS_PREADV, SharedFile
from bf16codecs.codecs import FrameCodec
from bf16codecs.errors import LimitError, StoreError
from bf16codecs.hdf5.dataset import Compression, read_region
from bf16codecs.hdf5.filters import (
    FILTER_IDS,
    ZSTD_FILTER_ID,
    Zstd,
    filter_name,
    filter_steps,
    filters_edges,
    filters_of,
)
from bf16codecs.hdf5.types import ItemType, item_type

__all__ = ["Decoding", "DirectWriter", "dataset_array"]

_SHUFFLE, _FLETCHER32 = h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
# Filters that may follow HDF5's shuffle.
_COMPRESSORS = {h5py.h5z.FILTER_DEFLATE: DeflateFormat, ZSTD_FILTER_ID: ZstdFormat}


class Decoding:
    """Decoders of chunks and their memory, shared by all datasets of a file.

    `keep_heads` remembers where the blocks of stored chunks are: not for files that may be written
    meanwhile. `trusts_hdf5` lets HDF5 decode chunks with unsupported filters; these do not check
    the size of a chunk, and read beyond one that is too short, or crash. `given` is the file, if
    HDF5 reads it through Python.
    """

    def __init__(
        self, keep_heads: bool, trusts_hdf5: bool = True, given: BufferedReader | None = None
    ) -> None:
        self.storage = FileStorage()
        self._given = given
        self._trusts_hdf5 = trusts_hdf5
        self._frames = FrameFormat(keep_heads)
        self._scratch = ThreadBuffer()
        self._file: SharedFile | None = None

    def file_of(self, dataset: Any) -> SharedFile | None:
        """Return the dataset's file, opened again, if its chunks can be read without HDF5.

        It must be on disk, open for reading only, so that HDF5 caches no unwritten chunk, and have
        no user block, which some versions of libhdf5 leave out of offsets. HDF5 may close its own
        descriptor, and a duplicate would keep HDF5's lock.
        """
        with phil:
            file = h5py.h5i.get_file_id(dataset)
            access = file.get_access_plist()
            is_given = access.get_driver() == h5py.h5fd.fileobj_driver and self._given is not None
            if access.get_driver() != h5py.h5fd.SEC2 and not is_given:
                return None
            if file.get_create_plist().get_userblock() or not HAS_PREADV:
                return None
            if file.get_intent() != h5py.h5f.ACC_RDONLY:
                return None
            given = self._given if is_given else None
            opened = os.fstat(file.get_vfd_handle() if given is None else given.fileno())
            name = os.fsdecode(file.name) if given is None else given.name
            if self._file is None:
                with contextlib.suppress(OSError):
                    self._file = SharedFile(name)
        if self._file is not None and os.path.samestat(opened, os.fstat(self._file.descriptor)):
            return self._file
        return None  # another file has the name by now

    def format_of(self, filters: list[int], item_size: int) -> Format | None:
        """Return the format of filtered chunks, or None if only HDF5 can decode them.

        Raises LimitError instead of None if HDF5 is not trusted.
        """
        chunk_format = self._known_format(filters, item_size)
        if chunk_format is None and not self._trusts_hdf5:
            names = ", ".join(map(filter_name, filters))
            raise LimitError(
                f"its filters ({names:.200}) are decoded by libhdf5 alone, which does not check the"
                f" size of chunks; if you trust the store, allow it with {argument('max_bytes')}"
            )
        return chunk_format

    def _known_format(self, filters: list[int], item_size: int) -> Format | None:
        # Every subset of a known pipeline is known, since HDF5 may skip filters of any chunk.
        if not filters:
            return RAW
        if len(filters) == 1 and filters[0] in FILTER_IDS:
            return self._frames
        if filters == [_SHUFFLE]:
            return ShuffledFormat(item_size, self._scratch)
        *before, last = filters
        if last == _FLETCHER32:
            inner = self._known_format(before, item_size)
            return None if inner is None else Fletcher32Format(inner)
        if last in _COMPRESSORS and before in ([], [_SHUFFLE]):
            return _COMPRESSORS[last](item_size if before else 1, self._scratch)
        return None


def dataset_array(
    dataset: Any,
    items: ItemType,
    label: str,
    decoding: Decoding,
    *,
    is_complete: bool = False,
    find_base: Callable[[], RangeReader] | None = None,
) -> UnitArray:
    """Return a reader of an `h5py.h5d.DatasetID`, which any program may have written.

    HDF5 reads it if it has no chunks, or unsupported filters and `decoding` trusts HDF5. The array
    has the data type `items.copied`; messages name it `label`. With `is_complete`, every chunk must
    have been written, and will be read: all are located at once, so that no thread waits for HDF5's
    lock later. Otherwise, missing chunks are fill values. `find_base` returns the base, if chunks
    are differences: see `ChunkedArray`.

    Raises LimitError for unsupported filters if HDF5 is not trusted; StoreError for unsupported
    filters and a base, or, with `is_complete`, if HDF5 has to read it and a part was never written.
    """
    with phil:
        shape = tuple(dataset.shape)
        properties = dataset.get_create_plist()
        is_chunked = properties.get_layout() == h5py.h5d.CHUNKED
        chunks = tuple(properties.get_chunk()) if is_chunked else None
        pipeline = filters_of(properties)
        has_filtered_edges = chunks is None or filters_edges(properties)
        # Not for chunks: a damaged file may count one chunk twice and lack another.
        is_allocated = is_complete and not is_chunked
        # When HDF5 converts structs, it writes their members but not the padding between.
        is_overwritten = (items.dtype.names is None or items.has_same_bytes) and (
            is_allocated or _overwrites_memory(properties)
        )
    filters = [number for number, _ in pipeline]
    dtype = items.copied
    # Called only by the thread that makes the jobs: it may hold HDF5's lock already.
    read = partial(_read, dataset, items, is_overwritten)
    chunk_format = decoding.format_of(filters, dtype.itemsize)
    if chunks is None or chunk_format is None or not items.has_same_bytes:
        if find_base is not None:
            raise StoreError("other software stored it anew, without the base of its differences")
        if is_complete:
            _refuse_unwritten(dataset, math.prod(shape) * dtype.itemsize, chunks)
        return LibraryArray(label, shape, dtype, chunks, read, 0, StoreError)
    storage, file = decoding.storage, decoding.file_of(dataset)
    formats = partial(_masked_format, decoding, filters, dtype.itemsize)
    stored = _StoredChunks(
        dataset, dtype, chunks, read, formats, storage, file, is_complete, has_filtered_edges
    )
    array = ChunkedArray(
        label,
        shape,
        dtype,
        chunks,
        stored.locate,
        chunk_format.in_blocks,
        find_base=find_base,
        versions=filter_steps(pipeline),
    )
    array.reads_heads &= file is not None  # HDF5 reads whole chunks
    return array


def _masked_format(
    decoding: Decoding, filters: list[int], item_size: int, filter_mask: int
) -> Format:
    """Return the format of a chunk that skipped the filters of a mask."""
    applied = [number for i, number in enumerate(filters) if not filter_mask >> i & 1]
    chunk_format = decoding.format_of(applied, item_size)
    if chunk_format is None:
        names = ", ".join(map(filter_name, applied))
        raise StoreError(f"unsupported filter combination ({names:.200})")
    return chunk_format


def _refuse_unwritten(dataset: Any, nbytes: int, chunks: tuple[int, ...] | None) -> None:
    """Raise if a part was never written, for which HDF5 would read fill values."""
    with phil:
        if chunks is None:
            found, expected = dataset.get_storage_size(), nbytes
        else:
            found = dataset.get_num_chunks()
            expected = math.prod(chunk_counts(dataset.shape, chunks))
    if found < expected:
        raise StoreError(advised("a part of it is missing"))


def _overwrites_memory(properties: Any) -> bool:
    """Return whether HDF5 overwrites all of the memory it reads to, unless it converts structs.

    Without a fill value, unwritten items stay unchanged. Virtual datasets' sources do not count.
    """
    return bool(
        properties.get_layout() != h5py.h5d.VIRTUAL
        and properties.get_fill_time() != h5py.h5d.FILL_TIME_NEVER
        and properties.fill_value_defined() != h5py.h5d.FILL_VALUE_UNDEFINED
    )


def _read(
    dataset: Any,
    items: ItemType,
    is_overwritten: bool,
    axes: Sequence[Axis],
    out: NDArray[Any],
) -> None:
    """Read the bounding region of a box through HDF5; items that HDF5 does not write are zeros."""
    region = tuple(slice(int(axis[0]), int(axis[-1]) + 1) for axis in axes)
    shape = tuple(s.stop - s.start for s in region)
    is_direct = shape == out.shape and out.flags.c_contiguous
    whole = out if is_direct else np.empty(shape, out.dtype)
    if not is_overwritten:
        whole.reshape(-1).view(np.uint8)[:] = 0
    read_region(dataset, region, whole, items.memory)
    if not is_direct:
        out[...] = whole[tuple(as_index(axis, int(axis[0])) for axis in axes)]


class _ChunkExtent(NamedTuple):
    """Offset and size of a stored chunk in its file, and the mask of filters that it skipped."""

    offset: int
    size: int
    filter_mask: int


class _PooledChunk(InMemory):
    """A stored chunk in reused memory: fresh pages would double the cost of reading it."""

    def __init__(self, data: Any, memory: Bytes, free: list[Bytes]) -> None:
        super().__init__(data)
        self._memory, self._free = memory, free

    def close(self) -> None:
        """Return the memory to the pool."""
        self._data = self._data[:0]
        self._free.append(self._memory)


class _StoredChunks:
    """Finder of a dataset's stored chunks."""

    def __init__(
        self,
        dataset: Any,
        dtype: np.dtype[Any],
        chunks: tuple[int, ...],
        read: Callable[[Sequence[Axis], NDArray[Any]], None],
        formats: Callable[[int], Format],
        storage: FileStorage,
        file: SharedFile | None,
        is_complete: bool,
        has_filtered_edges: bool,
    ) -> None:
        self._id, self._dtype, self._chunks = dataset, dtype, chunks
        self._read = read
        #: Formats by filter mask.
        self._masked_format = lru_cache(maxsize=8)(formats)
        self._storage, self._is_complete = storage, is_complete
        self._has_filtered_edges = has_filtered_edges
        self._free: list[Bytes] = []
        # The largest frame of any codec: eight-byte items, all planes stored.
        nbytes = math.prod(chunks) * dtype.itemsize
        self._bound = _core.bound(nbytes, _core.CODECS["split"], _core.DTYPES["float64"])
        self._file = file
        #: All stored chunks; None if each is looked up when it is needed.
        self._extents: dict[ChunkIndex, _ChunkExtent] | None = None
        # h5py lacks `chunk_iter` if it was built with an HDF5 before 1.12.3.
        if is_complete and self._file is not None and hasattr(dataset, "chunk_iter"):
            self._extents = self._find_all()

    def _find_all(self) -> dict[ChunkIndex, _ChunkExtent]:
        extents: dict[ChunkIndex, _ChunkExtent] = {}

        def visit(info: Any) -> None:
            index = tuple(o // n for o, n in zip(info.chunk_offset, self._chunks, strict=True))
            extents[index] = _ChunkExtent(info.byte_offset, info.size, info.filter_mask)

        with phil:
            self._id.chunk_iter(visit)
        return extents

    def locate(self, index: ChunkIndex) -> Located:
        """Find a chunk; one that only HDF5 can read is read at once."""
        if self._file is None:
            return self._read_directly(index)
        extent = self._find(index) if self._extents is None else self._extents.get(index)
        if extent is None:
            return self._missing(index)
        chunk_format = self._format_of(index, extent.filter_mask)
        return Located(
            chunk_format, self._storage, FileRange(self._file, extent.offset, extent.size)
        )

    def _format_of(self, index: ChunkIndex, filter_mask: int) -> Format:
        if not self._has_filtered_edges:
            sizes = zip(index, self._chunks, self._id.shape, strict=True)
            if any((i + 1) * n > size for i, n, size in sizes):
                return RAW
        return self._masked_format(filter_mask)

    def _find(self, index: ChunkIndex) -> _ChunkExtent | None:
        with phil:
            info = self._id.get_chunk_info_by_coord(self._origin(index))
        if info.byte_offset is None:
            return None
        return _ChunkExtent(info.byte_offset, info.size, info.filter_mask)

    def _missing(self, index: ChunkIndex) -> Located:
        if self._is_complete:
            raise StoreError(advised("it is missing"))
        return self._fill_values(index)

    def _read_directly(self, index: ChunkIndex) -> Located:
        # `read_direct_chunk` does not report a chunk that was never written: it returns any size.
        if self._find(index) is None:
            return self._missing(index)
        try:
            memory = self._free.pop()
        except IndexError:  # not checked first: other threads take memory meanwhile
            memory = np.empty(self._bound, np.uint8)
        origin = self._origin(index)
        with phil:
            try:
                mask, data = self._id.read_direct_chunk(origin, out=memory)
            except ValueError:  # larger than any codec of this package writes
                mask, data = self._id.read_direct_chunk(origin)
        chunk = _PooledChunk(data, memory, self._free)
        return Located(self._format_of(index, mask), chunk, None)

    def _fill_values(self, index: ChunkIndex) -> Located:
        origins = self._origin(index)
        sizes = zip(origins, self._chunks, self._id.shape, strict=True)
        axes = [range(o, min(o + n, size)) for o, n, size in sizes]
        whole = np.zeros(self._chunks, self._dtype)
        self._read(axes, whole[tuple(slice(len(axis)) for axis in axes)])
        return Located(RAW, InMemory(whole.reshape(-1).view(np.uint8)), None)

    def _origin(self, index: ChunkIndex) -> tuple[int, ...]:
        return tuple(i * n for i, n in zip(index, self._chunks, strict=True))


class DirectWriter:
    """Writer of a new dataset's chunks; several threads may encode.

    `compression` is a codec, `Zstd` or None. `put` takes HDF5's lock: a thread that holds the lock
    must never wait for one that calls `put`. h5py holds it in a loop over a group's values.
    """

    def __init__(self, dataset: Any, compression: Compression) -> None:
        if not (compression is None or isinstance(compression, (FrameCodec, Zstd))):
            raise TypeError(f"chunks cannot be encoded here with {compression!r}")
        self._id, self._compression = dataset, compression
        with phil:
            self._dtype = item_type(dataset.get_type()).dtype
            self.chunks: tuple[int, ...] = tuple(dataset.get_create_plist().get_chunk())
        self.nbytes = math.prod(self.chunks) * self._dtype.itemsize

    def encode(self, chunk: Bytes, memory: ThreadBuffer | None = None) -> Any:
        """Encode a whole chunk, padding included. Frames go to `memory`, if given."""
        if isinstance(self._compression, FrameCodec):
            # As an array, since some codecs use its rows. As void items, since the filter has
            # already warned if the codec is for another data type.
            rows = chunk.view(f"V{self._dtype.itemsize}").reshape(self.chunks)
            if memory is not None:
                return self._compression.encode_to(memory.get, rows)
            return self._compression.encode(rows)
        if isinstance(self._compression, Zstd):
            return encode_zstd(chunk, self._compression.level, self._dtype.itemsize)
        return chunk

    def put(self, index: ChunkIndex, data: Any) -> None:
        """Write an encoded chunk."""
        # A frame even if it does not shrink the chunk: HDF5 2.0 loses the filter mask of the last
        # chunk written, and a frame is larger by a few bytes in a thousand at most.
        origin = tuple(i * n for i, n in zip(index, self.chunks, strict=True))
        with phil:
            self._id.write_direct_chunk(origin, data)
