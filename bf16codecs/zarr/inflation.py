"""Refuse stored chunks that a library's codecs would inflate without a limit.

Most codecs decode as many bytes as a chunk claims. The checks here compare that size with the size
of the array's chunks: the size in the chunk's header or, in formats without one, that of decoding
up to the limit.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from zarr.abc.store import ByteRequest, SuffixByteRequest

from bf16codecs import _core
from bf16codecs._base.arguments import argument
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.limits import Limits, stored_limit
from bf16codecs._base.names import BLOCKS_ID, DELTA_ID, FRAME_IDS, RUN_LENGTH_ID
from bf16codecs.codecs.frames import stated_size
from bf16codecs.errors import CorruptDataError, LimitError
from bf16codecs.zarr.shards import CHECKSUM_BYTES, NO_CHUNK, has_plain_index, shard_index

__all__ = ["ChunkCheck", "chunk_check"]

#: Called with the bytes read of a stored chunk, and the range that was requested.
ChunkCheck = Callable[[Bytes, ByteRequest | None], None]

_Inflates = Callable[[Bytes, int], bool]

# Codecs whose output is at most an item's size times their input.
_STEADY = {
    *("bytes", "transpose", "crc32c", "crc32", "shuffle", "delta", "bitround", "astype"),
    *("numcodecs.crc32c", DELTA_ID),
    BLOCKS_ID,  # checks the chunk's size itself
}


def _size_field(offset: int) -> _Inflates:
    """Return a check of the 32-bit size at an offset of a chunk's header."""

    def inflates(data: Bytes, limit: int) -> bool:
        return int.from_bytes(data[offset : offset + 4].tobytes(), "little") > limit

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
    """Return a check that decodes a stream up to the limit, to see whether it goes on."""

    def inflates(data: Bytes, limit: int) -> bool:
        decoder = make()
        try:
            size = len(decoder.decompress(data.tobytes(), limit + 1))
        except (zlib.error, lzma.LZMAError, OSError, EOFError) as e:
            raise CorruptDataError(str(e)) from e
        # Python's modules would decode all further streams, of any size.
        if size <= limit and decoder.unused_data:
            raise CorruptDataError("bytes follow its compressed stream")
        return size > limit

    return inflates


_COMPRESSORS: dict[str, _Inflates] = {
    **dict.fromkeys(FRAME_IDS, _frame),
    RUN_LENGTH_ID: _runs,
    "zstd": _zstd,
    "blosc": _size_field(4),
    "lz4": _size_field(0),
    "gzip": _stream(partial(zlib.decompressobj, 31)),
    "zlib": _stream(zlib.decompressobj),
    "bz2": _stream(bz2.BZ2Decompressor),
    "lzma": _stream(lzma.LZMADecompressor),
}


def chunk_check(
    document: Mapping[str, Any], nbytes: int, shard_chunks: int, limits: Limits
) -> ChunkCheck | None:
    """Return a check of the stored chunks of an array before a library decodes them.

    Parameters
    ----------
    document
        The array's metadata, of format 2 or 3.
    nbytes
        Size of a decoded chunk.
    shard_chunks
        Number of chunks in a shard; 1 without shards.
    limits
        If the caller sets `max_bytes`, unknown codecs are trusted.

    Returns
    -------
    ChunkCheck or None
        None if no codec inflates, or unknown codecs are trusted.

    Raises
    ------
    LimitError
        If a codec may inflate without a limit.
    """
    names, sharding = _codec_names(document), None
    if names == ["sharding_indexed"]:  # if codecs surround it, both could inflate
        sharding = document["codecs"][0]["configuration"]
        names = list(map(_name, sharding["codecs"]))
    *inner, last = names or ["bytes"]
    checksum_bytes = 0
    if last == "crc32c" and inner[-1:] and inner[-1] in _COMPRESSORS:
        *inner, last = inner
        checksum_bytes = CHECKSUM_BYTES
    is_known = last in _STEADY or last in _COMPRESSORS
    is_plain = sharding is None or has_plain_index(sharding)
    if not (is_known and is_plain and set(inner) <= _STEADY):
        if limits.max_bytes is None:
            raise LimitError(
                f"its codecs, {', '.join(names):.200}, may inflate without a limit; if you trust"
                f" the store, say how far with {argument('max_bytes')}"
            )
        return None
    if last in _STEADY:
        return None
    check = partial(_check, last, stored_limit(nbytes), checksum_bytes)
    if sharding is None:
        return lambda data, byte_range: check(data)
    return partial(_check_shard, check, shard_chunks)


def _codec_names(document: Mapping[str, Any]) -> list[str]:
    """Return the names of an array's codecs, in the order of encoding."""
    if document.get("zarr_format") == 2:
        codecs: Sequence[Any] = [*(document.get("filters") or []), document.get("compressor")]
        return [_name(f"numcodecs.{c['id']}") for c in codecs if c is not None]
    return list(map(_name, document["codecs"]))


def _name(codec: Any) -> str:
    name = str(codec if isinstance(codec, str) else codec["name"])
    # Zarr's checksum follows the chunk; that of numcodecs may precede it.
    return name if name == "numcodecs.crc32c" else name.removeprefix("numcodecs.")


def _check(name: str, limit: int, checksum_bytes: int, data: Bytes) -> None:
    """Check a chunk, whose last `checksum_bytes` are a checksum."""
    data = np.asarray(data).view(np.uint8)
    if _COMPRESSORS[name](data[: data.size - checksum_bytes], limit):
        raise CorruptDataError(f"it inflates to more than the {limit} bytes that it can have")


def _check_shard(
    check: Callable[[Bytes], None], count: int, data: Bytes, byte_range: ByteRequest | None
) -> None:
    """Check all chunks of a whole shard, or one of them."""
    if isinstance(byte_range, SuffixByteRequest):
        return  # the index
    if byte_range is not None:
        check(data)
        return
    data = np.asarray(data).view(np.uint8)
    for offset, size in shard_index(data, count).tolist():
        if offset != NO_CHUNK:
            check(data[offset : offset + size])
