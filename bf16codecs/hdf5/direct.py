"""Chunks of an HDF5 dataset, coded here and moved by HDF5 as they are (direct chunk I/O).

libhdf5 works under one lock, its filters included. So only finding and moving chunks is left to
it, and the coding is done outside, by as many threads as there are. From a file that nobody
writes, chunks are read without it, block by block.
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
from bf16codecs._arrays.array import ChunkedArray, Index, Located, RangeReader, UnitArray
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
from bf16codecs._arrays.grid import chunk_counts
from bf16codecs._arrays.indexing import Axis, as_index
from bf16codecs._arrays.library import LibraryArray
from bf16codecs._arrays.sources import FilePart, FileSource, InMemory
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
# What HDF5's shuffle may be before.
_COMPRESSORS = {h5py.h5z.FILTER_DEFLATE: DeflateFormat, ZSTD_FILTER_ID: ZstdFormat}


class Decoding:
    """Decoders of chunks and their memory, shared by all datasets of a file.

    Parameters
    ----------
    keep_heads
        Remember where the blocks of stored chunks are: not while somebody may write them.
    given
        The file, if HDF5 reads it through Python.
    trusts_hdf5
        Leave to HDF5 what is not decoded here. Its filters trust the size of a chunk: of one that
        is too short they read what lies behind it in memory, or crash.
    """

    def __init__(
        self, keep_heads: bool, trusts_hdf5: bool = True, given: BufferedReader | None = None
    ) -> None:
        self.source = FileSource()
        self._given = given
        self._trusts_hdf5 = trusts_hdf5
        self._frames = FrameFormat(keep_heads)
        self._scratch = ThreadBuffer()
        self._file: SharedFile | None = None

    def file_of(self, dataset: Any) -> SharedFile | None:
        """Return the dataset's file, if its chunks can be read without HDF5.

        That is one on disk that nobody writes: HDF5 keeps no chunk back from it. Behind a user
        block, offsets count from its end in some versions of libhdf5. It is opened again: HDF5's
        own descriptor may be another file's once HDF5 has closed it, and a copy keeps its lock.
        """
        with phil:
            file = h5py.h5i.get_file_id(dataset)
            access = file.get_access_plist()
            is_own = access.get_driver() == h5py.h5fd.fileobj_driver and self._given is not None
            if access.get_driver() != h5py.h5fd.SEC2 and not is_own:
                return None
            if file.get_create_plist().get_userblock() or not HAS_PREADV:
                return None
            if file.get_intent() != h5py.h5f.ACC_RDONLY:
                return None
            given = self._given if is_own else None
            theirs = os.fstat(file.get_vfd_handle() if given is None else given.fileno())
            name = os.fsdecode(file.name) if given is None else given.name
            if self._file is None:
                with contextlib.suppress(OSError):
                    self._file = SharedFile(name)
        if self._file is not None and os.path.samestat(theirs, os.fstat(self._file.descriptor)):
            return self._file
        return None  # the file's name is another one's by now

    def format_of(self, filters: list[int], item_size: int) -> Format | None:
        """Return how filtered chunks are stored, or None if only HDF5 can decode them.

        Raises
        ------
        StoreError
            If only HDF5 can, and is not trusted.
        """
        form = self._known_format(filters, item_size)
        if form is None and not self._trusts_hdf5:
            names = ", ".join(map(filter_name, filters))
            raise LimitError(
                f"its filters ({names:.200}) are decoded by libhdf5 alone, which does not check the"
                f" size of chunks; if you trust the store, allow it with {argument('max_bytes')}"
            )
        return form

    def _known_format(self, filters: list[int], item_size: int) -> Format | None:
        # Closed under leaving filters out, which HDF5 may do for any chunk.
        if not filters:
            return RAW
        if len(filters) == 1 and filters[0] in FILTER_IDS:
            return self._frames
        if filters == [_SHUFFLE]:
            return ShuffledFormat(item_size, self._scratch)
        *before, last = filters
        if last == _FLETCHER32:
            form = self._known_format(before, item_size)
            return None if form is None else Fletcher32Format(form)
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
    """Return what reads a dataset.

    Parameters
    ----------
    dataset : h5py.h5d.DatasetID
        Of any program. What is not in chunks is left to HDF5, and so is what has other filters
        than those that are known here, if `decoding` trusts HDF5.
    items : ItemType
        How its items are read. The array has the data type `items.copied`.
    label : str
        What it is, for messages.
    decoding : Decoding
        What decodes its chunks.
    is_complete : bool
        Whether every chunk must have been written, and will be read: then they are found at once,
        and nobody waits for HDF5's lock later. Otherwise, missing ones are fill values.

    find_base : callable, optional
        Returns the base, if chunks are differences: see `ChunkedArray`.

    Raises
    ------
    StoreError
        If it has other filters, and HDF5 is not trusted, or there is a base; or, with
        `is_complete`, if something that is left to HDF5 was never written.
    """
    with phil:
        shape = tuple(dataset.shape)
        properties = dataset.get_create_plist()
        is_chunked = properties.get_layout() == h5py.h5d.CHUNKED
        chunks = tuple(properties.get_chunk()) if is_chunked else None
        pipeline = filters_of(properties)
        has_filtered_edges = chunks is None or filters_edges(properties)
        # A file may count the same chunk twice in place of one that is missing.
        is_allocated = is_complete and not is_chunked
        # Of structs that it converts, HDF5 writes the members alone.
        is_overwritten = (items.dtype.names is None or items.has_own_bytes) and (
            is_allocated or _overwrites_memory(properties)
        )
    filters = [number for number, _ in pipeline]
    dtype = items.copied
    # Only where jobs are made: that thread may hold HDF5's lock already.
    read = partial(_read, dataset, items, is_overwritten)
    form = decoding.format_of(filters, dtype.itemsize)
    if chunks is None or form is None or not items.has_own_bytes:
        if find_base is not None:
            raise StoreError("it was stored anew by other software, which has no base for it")
        if is_complete:
            _refuse_unwritten(dataset, math.prod(shape) * dtype.itemsize, chunks)
        return LibraryArray(label, shape, dtype, chunks, read, 0, StoreError)
    source, file = decoding.source, decoding.file_of(dataset)
    formats = partial(_left_format, decoding, filters, dtype.itemsize)
    stored = _StoredChunks(
        dataset, dtype, chunks, read, formats, source, file, is_complete, has_filtered_edges
    )
    return ChunkedArray(
        label,
        shape,
        dtype,
        chunks,
        stored.locate,
        form.in_blocks,
        find_base=find_base,
        versions=filter_steps(pipeline),
    )


def _left_format(
    decoding: Decoding, filters: list[int], item_size: int, filter_mask: int
) -> Format:
    """Return how a chunk is stored for which the filters of a mask were left out."""
    used = [number for i, number in enumerate(filters) if not filter_mask >> i & 1]
    form = decoding.format_of(used, item_size)
    if form is None:
        raise StoreError("filters were left out, and the others are not known")
    return form


def _refuse_unwritten(dataset: Any, nbytes: int, chunks: Index | None) -> None:
    """Raise where HDF5 would read fill values, since nothing was ever written."""
    with phil:
        if chunks is None:
            found, expected = dataset.get_storage_size(), nbytes
        else:
            found = dataset.get_num_chunks()
            expected = math.prod(chunk_counts(dataset.shape, chunks))
    if found < expected:
        raise StoreError(advised("a part of it is missing"))


def _overwrites_memory(properties: Any) -> bool:
    """Tell whether HDF5 writes all memory that it is given, where it converts no structs.

    What a dataset without fill values never got, it leaves as the memory was. A virtual one may
    take it from others, which are not asked here.
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
    """Let HDF5 read, and decode, what encloses a box; what it leaves of the memory is zeros."""
    region = tuple(slice(int(axis[0]), int(axis[-1]) + 1) for axis in axes)
    shape = tuple(s.stop - s.start for s in region)
    is_direct = shape == out.shape and out.flags.c_contiguous
    whole = out if is_direct else np.empty(shape, out.dtype)
    if not is_overwritten:
        whole.reshape(-1).view(np.uint8)[:] = 0
    read_region(dataset, region, whole, items.memory)
    if not is_direct:
        out[...] = whole[tuple(as_index(axis, int(axis[0])) for axis in axes)]


class _Place(NamedTuple):
    """Where a stored chunk lies in its file, and which filters were left out for it."""

    offset: int
    size: int
    filter_mask: int


class _Lent(InMemory):
    """A stored chunk in memory that the next one may have: fresh pages would cost as much again."""

    def __init__(self, data: Any, memory: Bytes, free: list[Bytes]) -> None:
        super().__init__(data)
        self._memory, self._free = memory, free

    def close(self) -> None:
        """Give the memory back."""
        self._data = self._data[:0]
        self._free.append(self._memory)


class _StoredChunks:
    """Finds the stored chunks of a dataset."""

    def __init__(
        self,
        dataset: Any,
        dtype: np.dtype[Any],
        chunks: tuple[int, ...],
        read: Callable[[Sequence[Axis], NDArray[Any]], None],
        formats: Callable[[int], Format],
        source: FileSource,
        file: SharedFile | None,
        is_complete: bool,
        has_filtered_edges: bool,
    ) -> None:
        self._id, self._dtype, self._chunks = dataset, dtype, chunks
        self._read = read
        #: By filter masks.
        self._form = lru_cache(maxsize=8)(formats)
        self._source, self._is_complete = source, is_complete
        self._has_filtered_edges = has_filtered_edges
        self._free: list[Bytes] = []
        # No codec's frames are larger than those of items of eight bytes that do not shrink.
        nbytes = math.prod(chunks) * dtype.itemsize
        self._bound = _core.bound(nbytes, _core.CODECS["split"], _core.DTYPES["float64"])
        self._file = file
        #: All that there are, once they have been looked for.
        self._places: dict[Index, _Place] | None = None
        # h5py has no such call where it was built with an HDF5 before 1.12.3.
        if is_complete and self._file is not None and hasattr(dataset, "chunk_iter"):
            self._places = self._find_all()

    def _find_all(self) -> dict[Index, _Place]:
        places = {}

        def visit(info: Any) -> None:
            index = tuple(o // n for o, n in zip(info.chunk_offset, self._chunks, strict=True))
            places[index] = _Place(info.byte_offset, info.size, info.filter_mask)

        with phil:
            self._id.chunk_iter(visit)
        return places

    def locate(self, index: Index) -> Located:
        """Find a chunk; one that cannot be read without HDF5 is read at once."""
        if self._file is None:
            return self._read_directly(index)
        place = self._find(index) if self._places is None else self._places.get(index)
        if place is None:
            return self._missing(index)
        form = self._form_of(index, place.filter_mask)
        return Located(form, self._source, FilePart(self._file, place.offset, place.size))

    def _form_of(self, index: Index, filter_mask: int) -> Format:
        if not self._has_filtered_edges:
            sizes = zip(index, self._chunks, self._id.shape, strict=True)
            if any((i + 1) * n > size for i, n, size in sizes):
                return RAW
        return self._form(filter_mask)

    def _find(self, index: Index) -> _Place | None:
        with phil:
            info = self._id.get_chunk_info_by_coord(self._origin(index))
        if info.byte_offset is None:
            return None
        return _Place(info.byte_offset, info.size, info.filter_mask)

    def _missing(self, index: Index) -> Located:
        if self._is_complete:
            raise StoreError(advised("it is missing"))
        return self._fill_values(index)

    def _read_directly(self, index: Index) -> Located:
        # Of a chunk that was never written, HDF5 does not say so to who reads it, but any size.
        if self._find(index) is None:
            return self._missing(index)
        try:
            memory = self._free.pop()
        except IndexError:  # not asked before: other threads take some, too
            memory = np.empty(self._bound, np.uint8)
        origin = self._origin(index)
        with phil:
            try:
                mask, data = self._id.read_direct_chunk(origin, out=memory)
            except ValueError:  # larger than any codec here makes it
                mask, data = self._id.read_direct_chunk(origin)
        return Located(self._form_of(index, mask), _Lent(data, memory, self._free), None)

    def _fill_values(self, index: Index) -> Located:
        origins = self._origin(index)
        sizes = zip(origins, self._chunks, self._id.shape, strict=True)
        axes = [range(o, min(o + n, size)) for o, n, size in sizes]
        whole = np.zeros(self._chunks, self._dtype)
        self._read(axes, whole[tuple(slice(len(axis)) for axis in axes)])
        return Located(RAW, InMemory(whole.reshape(-1).view(np.uint8)), None)

    def _origin(self, index: Index) -> tuple[int, ...]:
        return tuple(i * n for i, n in zip(index, self._chunks, strict=True))


class DirectWriter:
    """Writes the chunks of a new dataset; several threads may encode.

    `put` takes HDF5's lock: never wait, with that lock held, for a thread that calls it. h5py holds
    it in a loop over a group's values.

    Parameters
    ----------
    dataset : h5py.h5d.DatasetID
        A dataset in chunks.
    compression
        What it was made with: a codec, `Zstd` or None.
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
        """Encode a whole chunk, padding included; frames into the memory, if it is given."""
        if isinstance(self._compression, FrameCodec):
            # As an array, since some codecs look at its rows; of any numbers, since the filter has
            # warned of those that the codec is not for.
            rows = chunk.view(f"V{self._dtype.itemsize}").reshape(self.chunks)
            if memory is not None:
                return self._compression.encode_to(memory.get, rows)
            return self._compression.encode(rows)
        if isinstance(self._compression, Zstd):
            return encode_zstd(chunk, self._compression.level, self._dtype.itemsize)
        return chunk

    def put(self, index: Index, data: Any) -> None:
        """Write an encoded chunk."""
        # A frame even where it does not shrink the chunk: HDF5 2.0 forgets the filter mask of the
        # last chunk written, and a frame is larger by at most a few bytes in a thousand.
        origin = tuple(i * n for i, n in zip(index, self.chunks, strict=True))
        with phil:
            self._id.write_direct_chunk(origin, data)
