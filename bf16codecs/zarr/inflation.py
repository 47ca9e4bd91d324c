"""What zarr's codecs would make of a stored chunk, found out before zarr lets them.

Most codecs decode whatever a chunk says it holds. Here it is compared with what the array's chunk
can have: by the size that the chunk claims, or by decoding it up to that size and no further. And
what a shard does not have becomes fill values, so its index is looked at.
"""

from __future__ import annotations

import bz2
import lzma
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, SuffixByteRequest
from zarr.codecs import BytesCodec, Crc32cCodec

from bf16codecs import _core
from bf16codecs._arguments import argument
from bf16codecs._buffers import Bytes
from bf16codecs._frames import stated_size
from bf16codecs._limits import Limits, stored_limit
from bf16codecs._messages import advised
from bf16codecs._names import BLOCKS_ID, DELTA_ID, FRAME_IDS, RUN_LENGTH_ID
from bf16codecs.errors import CorruptDataError, LimitError, StoreError

__all__ = ["ChunkCheck", "chunk_check"]

#: Called with the key of a stored chunk, what was read of it, and the range that was asked for.
ChunkCheck = Callable[[str, Bytes, ByteRequest | None], None]

_Inflates = Callable[[Bytes, int], bool]

# Codecs whose output is as large as their input, or an item's size times that at most.
_STEADY = {
    *("bytes", "transpose", "crc32c", "crc32", "shuffle", "delta", "bitround", "astype"),
    *("numcodecs.crc32c", DELTA_ID),
    BLOCKS_ID,  # it knows the chunk's size, and decodes no other
}
# Of a shard's index: the offset and size of each chunk, and a checksum.
_ENTRY, _CHECKSUM, _NO_CHUNK = 16, 4, (1 << 64) - 1
# As zarr makes it if nothing is said.
_INDEX_CODECS = BytesCodec(endian="little"), Crc32cCodec()


def _claims(at: int) -> _Inflates:
    """Return what compares the 32-bit size that a chunk has at a place in its header."""

    def inflates(data: Bytes, limit: int) -> bool:
        return int.from_bytes(data[at : at + 4].tobytes(), "little") > limit

    return inflates


def _zstd(data: Bytes, limit: int) -> bool:
    size = _core.zstd_content_size(data)
    if size is None:
        raise CorruptDataError("a Zstandard frame that does not state its size")
    return size > limit


def _frame(data: Bytes, limit: int) -> bool:
    return stated_size(data) > limit


def _runs(data: Bytes, limit: int) -> bool:
    return _core.rle_decoded_size(data) > limit


def _stream(make: Callable[[], Any]) -> _Inflates:
    """Return what decodes a stream up to a limit, to see whether it goes on."""

    def inflates(data: Bytes, limit: int) -> bool:
        decoder = make()
        try:
            size = len(decoder.decompress(data.tobytes(), limit + 1))
        except (zlib.error, lzma.LZMAError, OSError, EOFError) as e:
            raise CorruptDataError(str(e)) from e
        # Python's modules go on with the next stream, and the next, of any sizes.
        if size <= limit and decoder.unused_data:
            raise CorruptDataError("there are bytes behind its compressed stream")
        return size > limit

    return inflates


_COMPRESSORS: dict[str, _Inflates] = {
    **dict.fromkeys(FRAME_IDS, _frame),
    RUN_LENGTH_ID: _runs,
    "zstd": _zstd,
    "blosc": _claims(4),
    "lz4": _claims(0),
    "gzip": _stream(partial(zlib.decompressobj, 31)),
    "zlib": _stream(zlib.decompressobj),
    "bz2": _stream(bz2.BZ2Decompressor),
    "lzma": _stream(lzma.LZMADecompressor),
}


def chunk_check(
    document: Mapping[str, Any], array: zarr.Array, limits: Limits
) -> ChunkCheck | None:
    """Return what checks the stored chunks of an array before zarr decodes them.

    Parameters
    ----------
    document
        The array's metadata, of format 2 or 3.
    array
        The array that zarr made of them.
    limits
        With a `max_bytes` of the caller's, codecs that are not known here are trusted.

    Returns
    -------
    ChunkCheck or None
        None if no codec inflates, and there are no shards.

    Raises
    ------
    StoreError
        If a codec might inflate without a limit.
    """
    names, sharding = _codec_names(document), None
    if names == ["sharding_indexed"]:  # with codecs around it, both kinds could inflate
        sharding = document["codecs"][0]["configuration"]
        names = list(map(_name, sharding["codecs"]))
    *inner, last = names or ["bytes"]
    behind = 0
    if last == "crc32c" and inner[-1:] and inner[-1] in _COMPRESSORS:
        *inner, last = inner
        behind = _CHECKSUM
    is_known = last in _STEADY or last in _COMPRESSORS
    made: Any = array.metadata
    # Of shards, the index has to be where it is looked for here.
    is_plain = sharding is None or (
        sharding.get("index_location", "end") == "end"
        and made.codecs[0].index_codecs == _INDEX_CODECS
    )
    if not (is_known and is_plain and set(inner) <= _STEADY):
        if limits.max_bytes is None:
            raise LimitError(
                f"its codecs, {', '.join(names):.200}, may inflate without a limit; if you trust"
                f" the store, say how far with {argument('max_bytes')}"
            )
        return None
    limit = stored_limit(math.prod(array.chunks) * array.dtype.itemsize)
    check = partial(_check, last, limit, behind)
    if sharding is not None:
        return _Shards(array.shape, array.chunks, array.shards or array.chunks, check).check
    return None if last in _STEADY else lambda key, data, byte_range: check(data)


def _codec_names(document: Mapping[str, Any]) -> list[str]:
    """Return the names of an array's codecs, the outermost last."""
    if document.get("zarr_format") == 2:
        codecs: Sequence[Any] = [*(document.get("filters") or []), document.get("compressor")]
        return [_name(f"numcodecs.{c['id']}") for c in codecs if c is not None]
    return list(map(_name, document["codecs"]))


def _name(codec: Any) -> str:
    name = str(codec if isinstance(codec, str) else codec["name"])
    # Zarr's checksum is behind a chunk, that of numcodecs may be before it.
    return name if name == "numcodecs.crc32c" else name.removeprefix("numcodecs.")


def _check(name: str, limit: int, behind: int, data: Bytes) -> None:
    """Check a chunk that has a checksum of so many bytes behind it, or none."""
    data = np.asarray(data).view(np.uint8)
    if name not in _STEADY and _COMPRESSORS[name](data[: data.size - behind], limit):
        raise CorruptDataError(f"it inflates to more than the {limit} bytes that it can have")


@dataclass(frozen=True)
class _Shards:
    """The shards of an array, and what checks each of their chunks."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...]
    check_chunk: Callable[[Bytes], None]

    def check(self, key: str, data: Bytes, byte_range: ByteRequest | None) -> None:
        """Check a shard that was read whole, its index, or one of its chunks."""
        data = np.asarray(data).view(np.uint8)
        if byte_range is not None and not isinstance(byte_range, SuffixByteRequest):
            self.check_chunk(data)
            return
        index = self._index(data)
        self._check_index(key, index)
        if byte_range is None:
            for offset, size in index.reshape(-1, 2).tolist():
                if offset != _NO_CHUNK:
                    self.check_chunk(data[offset : offset + size])

    @property
    def _counts(self) -> tuple[int, ...]:
        """How many chunks a shard has along each axis."""
        return tuple(s // c for s, c in zip(self.shards, self.chunks, strict=True))

    def _index(self, data: Bytes) -> NDArray[Any]:
        """Return offset and size of each chunk, which are at the end of a shard."""
        start = data.size - _CHECKSUM - math.prod(self._counts) * _ENTRY
        if start < 0:
            raise CorruptDataError("a shard that is shorter than its index")
        index = np.frombuffer(data[start : data.size - _CHECKSUM].tobytes(), "<u8")
        return index.reshape(*self._counts, 2)

    def _check_index(self, key: str, index: NDArray[Any]) -> None:
        """Refuse a shard that lacks a chunk of the array: zarr would read fill values."""
        numbers = re.findall(r"\d+", key)
        place = map(int, numbers[len(numbers) - len(self.shape) :])
        axes = zip(place, self._counts, self.shape, self.chunks, strict=True)
        # What lies behind the end of the array need not be there.
        within = (slice(max(0, -(-size // chunk) - i * count)) for i, count, size, chunk in axes)
        if (index[..., 0][tuple(within)] == _NO_CHUNK).any():
            raise StoreError(advised("a chunk of this shard is missing"))
