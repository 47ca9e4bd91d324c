"""Chunks of an HDF5 dataset, coded here and moved by HDF5 as they are (direct chunk I/O).

libhdf5 works under one lock, its filters included. So only the moving is left to it, and the
coding is done outside, by as many threads as there are.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import h5py
import numpy as np
from h5py._hl.base import phil
from numcodecs import Shuffle, Zstd
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._buffers import DTYPES
from bf16codecs._h5filters import FILTER_ID, ZSTD_FILTER_ID
from bf16codecs._h5types import array_dtype
from bf16codecs._selection import touched_blocks
from bf16codecs._zstd import decode_zstd
from bf16codecs.codecs import BF16Split, FrameCodec
from bf16codecs.errors import CodecError, CorruptDataError

__all__ = ["ChunkedDataset", "Memory", "Place", "Stored", "ThreadMemory", "codec_name"]

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


class Memory:
    """Memory that is used for chunk after chunk: fresh pages cost more than decoding into them."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def get(self, size: int) -> NDArray[np.uint8]:
        """Return memory whose content is undefined, until the next call."""
        if self._buffer.size < size:
            self._buffer = np.empty(size, np.uint8)
        return self._buffer[:size]


class ThreadMemory(threading.local):
    """Memory of each thread."""

    def __init__(self) -> None:
        self.memory = Memory()


@dataclass(frozen=True)
class Stored:
    """A chunk as it is stored, and what decodes it."""

    index: tuple[int, ...]
    data: NDArray[np.uint8]
    coder: _Coder


class _Coder(Protocol):
    def encode(self, chunk: NDArray[np.uint8]) -> Any: ...

    def decode(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None: ...


class _Plain:
    """No filter: chunks as they are."""

    def encode(self, chunk: NDArray[np.uint8]) -> Any:
        return chunk

    def decode(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        if stored.size != out.size:
            raise CorruptDataError(f"{stored.size} bytes, not {out.size}")
        out[:] = stored


class _Frames:
    """The filter of this package."""

    def __init__(self, codec: FrameCodec, dtype: np.dtype[Any], chunks: tuple[int, ...]) -> None:
        self._codec, self._dtype, self._chunks = codec, dtype, chunks

    def encode(self, chunk: NDArray[np.uint8]) -> Any:
        # As an array, since some codecs look at its rows.
        return self._codec.encode(chunk.view(self._dtype).reshape(self._chunks))

    def decode(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        index = _core.Index(stored)
        if index.raw_size != out.size:
            raise CorruptDataError(f"the frame holds {index.raw_size} bytes, the chunk {out.size}")
        self._codec.decode(stored, out=out)


class _ShuffledZstd:
    """HDF5's shuffle, unless items have one byte, and the Zstandard filter."""

    def __init__(self, level: int, item_size: int) -> None:
        self._zstd = Zstd(level)
        self._shuffle = Shuffle(item_size) if item_size > 1 else None

    def encode(self, chunk: NDArray[np.uint8]) -> Any:
        return self._zstd.encode(chunk if self._shuffle is None else self._shuffle.encode(chunk))

    def decode(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        if self._shuffle is None:
            decode_zstd(stored, out)
            return
        planes = np.empty_like(out)
        decode_zstd(stored, planes)
        self._shuffle.decode(planes, out=out)


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
        self.nbytes = math.prod(self.chunks) * self.dtype.itemsize
        self._all_filters = (1 << len(filters)) - 1
        self._coder = self._make_coder(filters, codec or _ANY_FRAME)

    def _make_coder(self, filters: list[_Filter], codec: FrameCodec) -> _Coder:
        if not filters:
            return _Plain()
        if filters[-1][0] == FILTER_ID:
            return _Frames(codec, self.dtype, self.chunks)
        level = (*filters[-1][1], 3)[0]
        return _ShuffledZstd(level, self.dtype.itemsize if len(filters) > 1 else 1)

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
        """Read a chunk as it is stored; None if it is missing, or only HDF5 can decode it."""
        # Eight-byte items have the largest bound: the plugin wrote nothing that is larger.
        bound = _core.bound(self.nbytes, BF16Split._native_codec, DTYPES["float64"])
        room = memory.get(bound)
        with phil:
            try:
                mask, data = self._id.read_direct_chunk(self._origin(index), out=room)
            except ValueError:  # larger, so somebody else wrote it
                mask, data = self._id.read_direct_chunk(self._origin(index))
            except RuntimeError:  # not there
                return None
        if mask not in (0, self._all_filters):
            return None
        return Stored(index, np.frombuffer(data, np.uint8), _Plain() if mask else self._coder)

    def decode(self, stored: Stored, out: NDArray[np.uint8]) -> None:
        """Decode a whole chunk."""
        with _Located(self, stored.index):
            stored.coder.decode(stored.data, out)

    def decode_part(
        self,
        stored: Stored,
        selection: tuple[slice | NDArray[np.intp], ...],
        out: NDArray[np.uint8],
    ) -> None:
        """Decode at least the selected items of a chunk to their places in `out`."""
        with _Located(self, stored.index):
            if isinstance(stored.coder, _Frames):
                self._decode_part(stored.data, selection, out)
            else:
                stored.coder.decode(stored.data, out)

    def _decode_part(
        self,
        stored: NDArray[np.uint8],
        selection: tuple[slice | NDArray[np.intp], ...],
        out: NDArray[np.uint8],
    ) -> None:
        frame = _core.Index(stored)
        if frame.raw_size != out.size or frame.frame_size != stored.size:
            raise CorruptDataError(
                f"the frame has {stored.size} bytes of {frame.frame_size} and holds"
                f" {frame.raw_size}, the chunk {out.size}"
            )
        block = frame.block_items * frame.item_size
        if frame.n_blocks == 0:
            _ANY_FRAME.decode(stored, out=out)
            return
        runs = touched_blocks(selection, self.chunks, self.dtype.itemsize, block)
        for first, last in runs:
            # The bytes behind the last item belong to the last block.
            last = min(last, frame.n_blocks)
            first = min(first, last - 1)
            end = out.size if last == frame.n_blocks else last * block
            payload = stored[frame.offsets[first] : frame.offsets[last]]
            frame.decode_block_range(payload, first, last, out[first * block : end])

    def places(self) -> dict[tuple[int, ...], Place] | None:
        """Tell where the chunks lie in the file, if they are frames or as they are."""
        if isinstance(self._coder, _ShuffledZstd):
            return None
        found = {}

        def visit(info: Any) -> None:
            index = tuple(o // n for o, n in zip(info.chunk_offset, self.chunks, strict=True))
            is_plain = isinstance(self._coder, _Plain) or info.filter_mask != 0
            found[index] = Place(info.byte_offset, info.size, is_plain)

        with phil:
            self._id.chunk_iter(visit)
        return found

    def _origin(self, index: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i * n for i, n in zip(index, self.chunks, strict=True))

    def where(self, index: tuple[int, ...]) -> str:
        """Name a chunk, for messages."""
        with phil:
            name = h5py.h5i.get_name(self._id) or b"dataset"
        return f"{name.decode(errors='replace')}, chunk {index}"


class _Located:
    """Says in errors of decoding which chunk they are about."""

    def __init__(self, dataset: ChunkedDataset, index: tuple[int, ...]) -> None:
        self._dataset = dataset
        self._index = index

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        # numcodecs' Zstd raises RuntimeError or ValueError.
        if isinstance(error, (ValueError, RuntimeError)):
            own = type(error) if isinstance(error, CodecError) else CorruptDataError
            raise own(f"{self._dataset.where(self._index)}: {error}") from error


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
