"""Chunks of an HDF5 dataset, coded here and moved by HDF5 as they are (direct chunk I/O).

libhdf5 works under one lock, its filters included. So only the moving is left to it, and the
coding is done outside, by as many threads as there are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py._hl.base import phil
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._buffers import DTYPES
from bf16codecs.codecs import BF16Split, FrameCodec
from bf16codecs.errors import CodecError, CorruptDataError
from bf16codecs.hdf5.coders import (
    Coder,
    Frames,
    InFile,
    InMemory,
    Memory,
    Plain,
    ShuffledZstd,
    StoredBytes,
)
from bf16codecs.hdf5.filters import FILTER_ID, ZSTD_FILTER_ID
from bf16codecs.hdf5.types import array_dtype

__all__ = ["ChunkedDataset", "Place", "Stored", "codec_name"]

_SHUFFLE = h5py.h5z.FILTER_SHUFFLE
# Any frame decodes any frame: which codec wrote it does not matter.
_ANY_FRAME = BF16Split()

#: Number and parameters.
_Filter = tuple[int, tuple[int, ...]]


class Place(NamedTuple):
    """Where a stored chunk lies in its file, and whether it is stored as it is."""

    offset: int
    size: int
    is_plain: bool


@dataclass(frozen=True)
class Stored:
    """A chunk as it is stored, and what decodes it."""

    index: tuple[int, ...]
    data: StoredBytes
    coder: Coder


class ChunkedDataset:
    """A chunked dataset whose filters are known here.

    `fetch` and `put` take HDF5's lock. Let only threads call them that nobody waits for who may
    hold it: h5py does in a loop over a group's values.

    Parameters
    ----------
    dataset : h5py.h5d.DatasetID
        The dataset; `supports` has to be true of it.
    codec : FrameCodec, optional
        What encodes new chunks, where the dataset has this package's filter.
    """

    def __init__(self, dataset: Any, codec: FrameCodec | None = None) -> None:
        self._id = dataset
        with phil:
            properties = dataset.get_create_plist()
            filters = _filters(properties)
            self.dtype = array_dtype(dataset.get_type())
            self.shape: tuple[int, ...] = tuple(dataset.shape)
            self.chunks: tuple[int, ...] = tuple(properties.get_chunk())
            self._file = _readable_file(dataset)
            # Not asked for later, by threads that must not wait for HDF5's lock.
            self._name = (h5py.h5i.get_name(dataset) or b"dataset").decode(errors="replace")
        self.nbytes = math.prod(self.chunks) * self.dtype.itemsize
        self._all_filters = (1 << len(filters)) - 1
        self._coder = self._make_coder(filters, codec or _ANY_FRAME)

    def _make_coder(self, filters: list[_Filter], codec: FrameCodec) -> Coder:
        if not filters:
            return Plain()
        if filters[-1][0] == FILTER_ID:
            return Frames(codec, self.dtype, self.chunks)
        level = (*filters[-1][1], 3)[0]
        return ShuffledZstd(level, self.dtype.itemsize if len(filters) > 1 else 1)

    @staticmethod
    def supports(dataset: Any) -> bool:
        """Tell whether a dataset is chunked, and filtered by what is known here or by nothing."""
        with phil:
            properties = dataset.get_create_plist()
            if properties.get_layout() != h5py.h5d.CHUNKED:
                return False
            numbers = [number for number, _ in _filters(properties)]
        known: tuple[list[int], ...] = [], [FILTER_ID], [ZSTD_FILTER_ID], [_SHUFFLE, ZSTD_FILTER_ID]
        return numbers in known

    def encode(self, chunk: NDArray[np.uint8]) -> Any:
        """Encode a whole chunk, padding included."""
        return self._coder.encode(chunk)

    def put(self, index: tuple[int, ...], data: Any) -> None:
        """Write an encoded chunk."""
        # Not left as it is where it does not shrink: HDF5 2.0 forgets the filter mask of the chunk
        # that was written last, and a frame is larger by some bytes in a thousand at most.
        with phil:
            self._id.write_direct_chunk(self._origin(index), data)

    def fetch(self, index: tuple[int, ...], memory: Memory) -> Stored | None:
        """Find or read a chunk as it is stored; None if it is missing, or only HDF5 can decode it.

        `memory` is where it is read to, now or when it is decoded.
        """
        with phil:
            mask, data = self._locate(index, memory) if self._file else self._read(index, memory)
        if data is None or mask not in (0, self._all_filters):
            return None
        return Stored(index, data, Plain() if mask else self._coder)

    def _locate(self, index: tuple[int, ...], memory: Memory) -> tuple[int, StoredBytes | None]:
        info = self._id.get_chunk_info_by_coord(self._origin(index))
        if info.byte_offset is None:
            return 0, None
        assert self._file is not None
        return info.filter_mask, InFile(self._file, info.byte_offset, info.size, memory)

    def _read(self, index: tuple[int, ...], memory: Memory) -> tuple[int, StoredBytes | None]:
        # Eight-byte items have the largest bound: the plugin wrote nothing that is larger.
        bound = _core.bound(self.nbytes, BF16Split._native_codec, DTYPES["float64"])
        origin = self._origin(index)
        try:
            mask, data = self._id.read_direct_chunk(origin, out=memory.get(bound))
        except ValueError:  # larger, so somebody else wrote it
            mask, data = self._id.read_direct_chunk(origin)
        except RuntimeError:  # not there
            return 0, None
        return mask, InMemory(np.frombuffer(data, np.uint8))

    def decode(self, stored: Stored, out: NDArray[np.uint8]) -> None:
        """Decode a whole chunk."""
        with self._located(stored.index):
            stored.coder.decode(stored.data, out)

    def decode_part(
        self,
        stored: Stored,
        selection: tuple[slice | NDArray[np.intp], ...],
        out: NDArray[np.uint8],
    ) -> None:
        """Decode at least the selected items of a chunk to their places in `out`."""
        with self._located(stored.index):
            stored.coder.decode_part(stored.data, selection, out)

    @contextmanager
    def _located(self, index: tuple[int, ...]) -> Iterator[None]:
        """Say in errors of decoding which chunk they are about."""
        try:
            yield
        except (ValueError, RuntimeError) as e:
            # numcodecs' Zstd raises either.
            kind = type(e) if isinstance(e, CodecError) else CorruptDataError
            raise kind(f"{self._name}, chunk {index}: {e}") from e

    def places(self) -> dict[tuple[int, ...], Place] | None:
        """Tell where the chunks lie in the file, if they are frames or as they are."""
        if isinstance(self._coder, ShuffledZstd):
            return None
        found = {}

        def visit(info: Any) -> None:
            index = tuple(o // n for o, n in zip(info.chunk_offset, self.chunks, strict=True))
            is_plain = isinstance(self._coder, Plain) or info.filter_mask != 0
            found[index] = Place(info.byte_offset, info.size, is_plain)

        with phil:
            self._id.chunk_iter(visit)
        return found

    def _origin(self, index: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i * n for i, n in zip(index, self.chunks, strict=True))


def _readable_file(dataset: Any) -> int | None:
    """Return the descriptor of a file whose chunks can be read without HDF5.

    That is one on disk that nobody writes: HDF5 keeps no chunk back from it.
    """
    file = h5py.h5i.get_file_id(dataset)
    access = file.get_access_plist()
    plain = access.get_driver() == h5py.h5fd.SEC2 and file.get_create_plist().get_userblock() == 0
    if not plain or file.get_intent() != h5py.h5f.ACC_RDONLY or not hasattr(os, "preadv"):
        return None
    descriptor: int = file.get_vfd_handle()
    return descriptor


def _filters(properties: Any) -> list[_Filter]:
    """Return the filters of a dataset and their parameters."""
    filters = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    return [(number, tuple(values)) for number, _, values, _ in filters]


def codec_name(dataset: Any) -> str:
    """Name what a dataset is coded with, for people."""
    with phil:
        filters = _filters(dataset.get_create_plist())
    names = {
        _SHUFFLE: "shuffle",
        ZSTD_FILTER_ID: "zstd",
        h5py.h5z.FILTER_DEFLATE: "gzip",
        h5py.h5z.FILTER_LZF: "lzf",
        h5py.h5z.FILTER_SZIP: "szip",
    }
    ours = ("huffman", "split", "huffman", "arithmetic")
    found = []
    for number, values in filters:
        if number == FILTER_ID:
            found.append(ours[(*values, 0)[0]] if (*values, 0)[0] < len(ours) else "bf16codecs")
        else:
            found.append(names.get(number, f"filter {number}"))
    return "+".join(found) or "none"
