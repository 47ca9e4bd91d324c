"""How chunks are stored: as they are, by common compressors, or as frames, which `frames` reads.

A format says which bytes of a stored chunk it needs and decodes them, and leaves fetching them to
its driver: `read`, which blocks, or zarr's event loop.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bf16codecs import _core
from bf16codecs._arrays.parts import ChunkPart
from bf16codecs._arrays.storage import (
    AtMost,
    ChunkInfo,
    InMemory,
    Range,
    Reading,
    StoredChunk,
    drive,
)
from bf16codecs._base.buffers import Bytes, ThreadBuffer
from bf16codecs._base.cached import cached_property
from bf16codecs._base.limits import stored_limit
from bf16codecs._base.messages import counted
from bf16codecs.errors import CorruptDataError, TruncatedDataError

if TYPE_CHECKING:
    from numcodecs import Shuffle

__all__ = [
    "RAW",
    "Crc32cFormat",
    "DeflateFormat",
    "DeltaFormat",
    "Fletcher32Format",
    "Format",
    "GzipFormat",
    "RawFormat",
    "RunLengthFormat",
    "ShuffledFormat",
    "ZstdFormat",
    "encode_zstd",
    "read",
    "read_whole",
]

# A block of a Zstandard frame: at least so many bytes, for at most so many (RFC 8878, 3.1.1.2).
_ZSTD_BLOCK_STORED, _ZSTD_BLOCK = 4, 1 << 17
# At least two bits for each 258 bytes.
_DEFLATE_RATIO = 1032
# zlib's code for the header of gzip.
_GZIP_HEADER = 16 + zlib.MAX_WBITS
# A run, of at most 255 bytes, takes 3.
_RUN_RATIO = 85
_CHECKSUM_BYTES = 4


class Format(Protocol):
    """How a chunk's bytes are stored."""

    #: Whether parts of a chunk can be decoded.
    in_blocks: bool

    def reading(self, stored: ChunkInfo, part: ChunkPart) -> Reading:
        """Read parts of a chunk."""


def read(chunk_format: Format, stored: StoredChunk, part: ChunkPart) -> None:
    """Read parts of a chunk, and wait for every reply."""
    drive(chunk_format.reading(stored, part), stored)


class RawFormat:
    """Chunks stored without a codec; if `is_padded`, those at the array's edges are whole."""

    in_blocks = True

    def __init__(self, is_padded: bool = True) -> None:
        self._is_padded = is_padded

    def reading(self, stored: ChunkInfo, part: ChunkPart) -> Reading:
        """Read parts of a chunk: see `Format`."""
        if stored.size is not None and stored.size > part.chunk_nbytes:
            raise CorruptDataError(
                f"{stored.size} bytes, more than the {part.chunk_nbytes} of a chunk"
            )
        if self._is_padded and stored.size is not None and stored.size < part.chunk_nbytes:
            raise TruncatedDataError(
                f"{counted(stored.size, 'byte')} where {part.chunk_nbytes} were expected"
            )
        touched = part.ranges()
        if stored.size is None and touched == [(0, part.chunk_nbytes)]:
            data = yield from read_whole(stored, stored_limit(part.chunk_nbytes))
            if data.size > part.chunk_nbytes:
                raise CorruptDataError(
                    f"{data.size} bytes, more than the {part.chunk_nbytes} of a chunk"
                )
            _put(data, 0, part.chunk_nbytes, part)
            return
        for ranges in _cut(touched, stored.read_nbytes):
            for (start, stop), content in zip(ranges, (yield ranges), strict=True):
                _put(content, start, stop, part)


def _put(content: Bytes, start: int, stop: int, part: ChunkPart) -> None:
    if content.size < stop - start:
        raise TruncatedDataError(
            f"{counted(content.size, 'byte')} where {stop - start} were expected"
        )
    part.put(start, content)


RAW = RawFormat()


class _WholeFormat(ABC):
    """Chunks that can be decoded whole only.

    HDF5's filter shuffled items of `item_size` bytes before they were compressed. A chunk that is
    not wanted as it is stored is decoded to `scratch`.
    """

    in_blocks = False

    def __init__(self, item_size: int = 1, scratch: ThreadBuffer | None = None) -> None:
        self._item_size = item_size
        self._scratch = scratch or ThreadBuffer()

    @cached_property
    def _shuffle(self) -> Shuffle | None:
        if self._item_size == 1:
            return None
        from numcodecs import Shuffle

        return Shuffle(self._item_size)

    def reading(self, stored: ChunkInfo, part: ChunkPart) -> Reading:
        """Read parts of a chunk: see `Format`."""
        data = yield from read_whole(stored, stored_limit(part.chunk_nbytes))
        # Before memory is taken for a chunk of the size that the array's metadata claim.
        if part.chunk_nbytes > self._most(data.size):
            raise CorruptDataError(
                f"{counted(data.size, 'byte')} cannot hold a chunk of {part.chunk_nbytes}"
            )
        out = part.whole_array
        if out is not None and self._shuffle is None:
            self._decode(data, out)
            return
        content = self._scratch.get(part.chunk_nbytes)
        self._decode(data, content)
        if out is not None and self._shuffle is not None:
            self._shuffle.decode(content, out=out)
        else:
            part.put(0, content if self._shuffle is None else self._shuffle.decode(content))

    @staticmethod
    @abstractmethod
    def _most(stored_nbytes: int) -> int:
        """Return the most that so many stored bytes can hold."""

    @staticmethod
    @abstractmethod
    def _decode(stored: Bytes, out: Bytes) -> None:
        """Decode to exactly `out`; the stored bytes decide on no allocation."""


class ZstdFormat(_WholeFormat):
    """Chunks that are Zstandard frames: see `_WholeFormat`."""

    @staticmethod
    def _most(stored_nbytes: int) -> int:
        return (stored_nbytes // _ZSTD_BLOCK_STORED + 1) * _ZSTD_BLOCK

    @staticmethod
    def _decode(stored: Bytes, out: Bytes) -> None:
        from numcodecs import Zstd

        size = _core.zstd_content_size(stored)
        if size is not None and size != out.size:
            raise CorruptDataError(
                f"the frame holds {counted(size, 'byte')}, a chunk of this array has {out.size}"
            )
        try:
            # It never writes more than `out` has. It would accept a frame that states a smaller
            # size, hence the check above; a frame without a size must fill `out`.
            Zstd().decode(stored, out=out)
        except (RuntimeError, ValueError) as e:
            raise CorruptDataError(str(e)) from e


class DeflateFormat(_WholeFormat):
    """Chunks that are deflated, as by HDF5's gzip filter: see `_WholeFormat`.

    HDF5's filter inflates without a limit: a chunk of 4 kB can become gigabytes.
    """

    @staticmethod
    def _most(stored_nbytes: int) -> int:
        return stored_nbytes * _DEFLATE_RATIO

    @staticmethod
    def _decode(stored: Bytes, out: Bytes) -> None:
        _inflate(stored, out, zlib.MAX_WBITS)


class GzipFormat(DeflateFormat):
    """Chunks that are deflated, with the header of gzip: see `DeflateFormat`."""

    @staticmethod
    def _decode(stored: Bytes, out: Bytes) -> None:
        _inflate(stored, out, _GZIP_HEADER)


def _inflate(stored: Bytes, out: Bytes, header: int) -> None:
    inflater = zlib.decompressobj(header)
    try:
        content = inflater.decompress(stored.data, out.size + 1)
    except zlib.error as e:
        raise CorruptDataError(str(e)) from e
    if len(content) > out.size:
        raise CorruptDataError(
            f"it inflates to more than the {counted(out.size, 'byte')} of a chunk"
        )
    if not inflater.eof:
        raise TruncatedDataError("its deflated data end too early")
    if len(content) < out.size:
        raise CorruptDataError(
            f"it inflates to {counted(len(content), 'byte')}, a chunk of this array has {out.size}"
        )
    out[:] = np.frombuffer(content, np.uint8)


class RunLengthFormat(_WholeFormat):
    """Chunks that are run lengths: see `_WholeFormat`."""

    @staticmethod
    def _most(stored_nbytes: int) -> int:
        return stored_nbytes * _RUN_RATIO

    @staticmethod
    def _decode(stored: Bytes, out: Bytes) -> None:
        size = _core.rle_decoded_size(stored)
        if size != out.size:
            raise CorruptDataError(
                f"runs of {counted(size, 'byte')}, a chunk of this array has {out.size}"
            )
        _core.rle_decode_into(stored, out)


class ShuffledFormat(_WholeFormat):
    """Chunks that were shuffled alone: HDF5 leaves out a compressor that gains nothing."""

    @staticmethod
    def _most(stored_nbytes: int) -> int:
        return stored_nbytes

    @staticmethod
    def _decode(stored: Bytes, out: Bytes) -> None:
        if stored.size > out.size:
            raise CorruptDataError(f"{stored.size} bytes, more than the {out.size} of a chunk")
        out[:] = stored


class _ChecksumFormat(ABC):
    """Chunks of another format with a checksum of their stored bytes behind them."""

    in_blocks = False

    def __init__(self, inner: Format) -> None:
        self._inner = inner

    def reading(self, stored: ChunkInfo, part: ChunkPart) -> Reading:
        """Read parts of a chunk: see `Format`."""
        data = yield from read_whole(stored, stored_limit(part.chunk_nbytes))
        if data.size <= _CHECKSUM_BYTES:
            raise TruncatedDataError(
                f"{counted(data.size, 'byte')}, with a checksum of {_CHECKSUM_BYTES}"
            )
        try:
            self._check(data)
        except RuntimeError as e:
            raise CorruptDataError(f"its bytes do not have {self._name} behind them") from e
        if part.base is not None:
            data = data.copy()  # its memory may be that in which the base is read
        read(self._inner, InMemory(data[:-_CHECKSUM_BYTES]), part)

    #: The checksum's name in messages.
    _name: str

    @staticmethod
    @abstractmethod
    def _check(data: Bytes) -> None:
        """Raise RuntimeError if the checksum differs."""


class Fletcher32Format(_ChecksumFormat):
    """Chunks with Fletcher's checksum, as HDF5's filter writes: see `_ChecksumFormat`.

    HDF5's filter crashes on chunks that are shorter than the checksum.
    """

    _name = "Fletcher's checksum"

    @staticmethod
    def _check(data: Bytes) -> None:
        from numcodecs import Fletcher32

        Fletcher32().decode(data)


class Crc32cFormat(_ChecksumFormat):
    """Chunks with the CRC-32C that Zarr's codec writes: see `_ChecksumFormat`."""

    _name = "their CRC-32C"

    @staticmethod
    def _check(data: Bytes) -> None:
        from numcodecs.checksum32 import CRC32C

        CRC32C(location="end").decode(data)


class DeltaFormat:
    """Chunks of 16-bit integers, stored in another format as differences to the one before."""

    in_blocks = False

    def __init__(self, inner: Format) -> None:
        self._inner, self._scratch = inner, ThreadBuffer()

    def reading(self, stored: ChunkInfo, part: ChunkPart) -> Reading:
        """Read parts of a chunk: see `Format`."""
        if part.chunk_nbytes % 2:
            raise CorruptDataError(
                f"a chunk of {part.chunk_nbytes} bytes is not one of 16-bit integers"
            )
        # Before memory is taken; of run lengths, so many bytes hold less.
        data = yield from read_whole(stored, stored_limit(part.chunk_nbytes))
        if part.chunk_nbytes > data.size * _DEFLATE_RATIO:
            raise CorruptDataError(
                f"{counted(data.size, 'byte')} cannot hold a chunk of {part.chunk_nbytes}"
            )
        out = part.whole_array
        content = self._scratch.get(part.chunk_nbytes) if out is None else out
        read(self._inner, InMemory(data), ChunkPart.whole(content))
        items = content.view("<u2")
        np.cumsum(items, out=items, dtype=items.dtype)
        if out is None:
            part.put(0, content)


def encode_zstd(chunk: Bytes, level: int, item_size: int) -> bytes:
    """Shuffle a chunk, unless its items have one byte, and compress it."""
    from numcodecs import Shuffle, Zstd

    return Zstd(level).encode(chunk if item_size == 1 else Shuffle(item_size).encode(chunk))


def _cut(ranges: Sequence[Range], length: int | None) -> Iterator[Sequence[Range]]:
    """Yield all ranges at once, or, if `length` is given, pieces of at most that, one by one."""
    if length is None:
        yield ranges
        return
    for start, stop in ranges:
        for first in range(start, stop, length):
            yield [(first, min(first + length, stop))]


def read_whole(stored: ChunkInfo, limit: int) -> Generator[AtMost, Sequence[Bytes], Bytes]:
    """Read all of a stored chunk, which must not have more bytes than `limit`."""
    if stored.size is not None and stored.size > limit:
        raise CorruptDataError(f"{stored.size} bytes, more than the {limit} it can have")
    (data,) = yield AtMost(limit)
    if data.size > limit:
        raise CorruptDataError(f"{data.size} bytes, more than the {limit} it can have")
    return data
