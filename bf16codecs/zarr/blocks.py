"""The Zarr format 3 serializer whose chunks can be read block by block."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from zarr.abc.codec import ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin
from zarr.abc.store import RangeByteRequest
from zarr.core.common import concurrent_map, parse_named_configuration
from zarr.core.config import config
from zarr.core.dtype.common import HasItemSize

from bf16codecs import _core
from bf16codecs._buffers import layout_for
from bf16codecs._chunks.blocks import touched_blocks
from bf16codecs.codecs import CODECS, FrameCodec
from bf16codecs.errors import CorruptDataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

    #: Asks for byte ranges of the stored chunk (None: all of it), and is sent what they hold.
    Reading = Generator[Sequence[RangeByteRequest | None], Sequence[Buffer | None], NDBuffer | None]

__all__ = ["BF16BlocksCodec"]

# A block of bfloat16 of the default size. Smaller chunks are one block, so reading a range of them
# would save nothing.
_BLOCK_BYTES = 1 << 19
# Where a selection touches this share of a chunk, one request for all of it is the better one.
_WHOLE_SHARE = 0.75
# First read of a chunk. It holds header and block table, which has 8 bytes for each block, as long
# as blocks are of the default size; otherwise a second read gets the rest.
_PREFIX_BYTES = 4096
_PREFIX_SHIFT = 15


@dataclass(frozen=True)
class BF16BlocksCodec(ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin):
    """Serializer for Zarr format 3 that compresses, and reads only the blocks a slice touches.

    A chunk is stored as one frame of the codec it wraps, of the chunk's elements in C order and
    little-endian. To read part of a chunk, zarr fetches the frame's header and the byte ranges
    of the touched blocks. That works while nothing else encodes the chunk: create arrays with
    ``compressors=None``, or zarr appends its default compressor.

    Parameters
    ----------
    codec : BF16Huffman, BF16Arithmetic, BF16Zstd, BF16Split, mapping or str
        The wrapped codec; a mapping is one of these in the form of array metadata. A name such
        as ``"huffman"`` stands for that codec with the element layout of the array's data type.
        Stored metadata have this parameter in full; it stays as it is.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr
    >>> weights = np.arange(64000).reshape(1000, 64).astype("bfloat16")
    >>> array = zarr.create_array(
    ...     {}, data=weights, serializer=BF16BlocksCodec("arithmetic"), compressors=None
    ... )
    >>> array[2, 1:4]
    array([129, 130, 131], dtype=bfloat16)
    """

    is_fixed_size = False
    codec_id: ClassVar[str] = "bf16codecs.blocks"

    codec: FrameCodec | str = "huffman"

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", _parse_codec(self.codec))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make the codec from array metadata."""
        _, configuration = parse_named_configuration(
            data, cls.codec_id, require_configuration=False
        )
        configuration = configuration or {}
        unknown = configuration.keys() - {"codec"}
        if unknown:
            names = ", ".join(sorted(map(repr, unknown)))
            raise ValueError(f"{cls.codec_id}: unknown configuration: {names}")
        return cls(**configuration)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Return the codec as array metadata has it."""
        codec: dict[str, Any] = {"name": f"bf16codecs.{self.codec}"}
        if isinstance(self.codec, FrameCodec):
            codec = {"name": self.codec.codec_id, "configuration": self.codec["configuration"]}
        return {"name": self.codec_id, "configuration": {"codec": codec}}

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        """Give a codec that was named only the element layout of the array."""
        if isinstance(self.codec, FrameCodec):
            return self
        layout = layout_for(array_spec.dtype.to_native_dtype())
        return type(self)(CODECS[self.codec](dtype=layout))

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse data types without a fixed size."""
        if not isinstance(dtype, HasItemSize):
            raise TypeError(f"{self.codec_id} takes data types of a fixed size, not {dtype}")

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Refuse: the size depends on the data. `bf16codecs.bound` gives its limit."""
        raise NotImplementedError(f"{type(self).__name__} encodes to no fixed size")

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        codec = self.evolve_from_array_spec(chunk_spec).codec
        assert isinstance(codec, FrameCodec)
        array = chunk_array.as_numpy_array()
        array = array.astype(_stored_dtype(array.dtype), order="C", copy=False)
        return chunk_spec.prototype.buffer.from_bytes(codec.encode(array))

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        frame = chunk_bytes.as_numpy_array()
        raw = np.empty(_chunk_bytes(chunk_spec), np.uint8)
        _check_size(_core.Index(frame), raw.size)
        _core.decode_into(frame, raw)
        return _chunk_array(raw, chunk_spec)

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        return await asyncio.to_thread(self._encode_sync, chunk_array, chunk_spec)

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode_sync, chunk_bytes, chunk_spec)

    async def _decode_partial_single(
        self, byte_getter: Any, selection: Any, chunk_spec: ArraySpec
    ) -> NDBuffer | None:
        async def get(request: RangeByteRequest | None) -> Buffer | None:
            return await byte_getter.get(chunk_spec.prototype, byte_range=request)

        reading = self._read(selection, chunk_spec)
        requests, result = _advance(reading, None)
        while requests is not None:
            limit = config.get("async.concurrency")
            replies = await concurrent_map([(r,) for r in requests], get, limit)
            requests, result = await asyncio.to_thread(_advance, reading, replies)
        return result

    def _decode_partial_sync(
        self, byte_getter: Any, selection: Any, chunk_spec: ArraySpec
    ) -> NDBuffer | None:
        # Used by zarr's fused pipeline where stores can be read without an event loop.
        prototype = chunk_spec.prototype
        reading = self._read(selection, chunk_spec)
        requests, result = _advance(reading, None)
        while requests is not None:
            replies = [byte_getter.get_sync(prototype=prototype, byte_range=r) for r in requests]
            requests, result = _advance(reading, replies)
        return result

    def _read(self, selection: Any, chunk_spec: ArraySpec) -> Reading:
        """Read part of a chunk, as a generator that leaves fetching to its caller.

        The selection itself is NumPy's work, on an array of the whole chunk into which only the
        touched blocks were decoded: of the rest, the system never provides the memory.
        """
        nbytes, item_size = _chunk_bytes(chunk_spec), chunk_spec.dtype.to_native_dtype().itemsize
        guess = touched_blocks(selection, chunk_spec.shape, item_size, _BLOCK_BYTES)
        if sum(b - a for a, b in guess) * _BLOCK_BYTES >= _WHOLE_SHARE * nbytes:
            (data,) = yield [None]
            return None if data is None else self._decode_sync(data, chunk_spec)[selection]

        (head,) = yield [RangeByteRequest(0, max(_PREFIX_BYTES, nbytes >> _PREFIX_SHIFT))]
        if head is None:
            return None
        prefix = head.as_numpy_array()
        header_size = _core.header_size(prefix)
        if header_size > prefix.size:
            (rest,) = yield [RangeByteRequest(prefix.size, header_size)]
            prefix = np.concatenate([prefix, _present(rest)])
        index = _core.Index(prefix)
        _check_size(index, nbytes)

        block_bytes = index.block_items * index.item_size
        runs = touched_blocks(selection, chunk_spec.shape, item_size, block_bytes)
        # The bytes after the last whole item belong to the last block.
        runs = [(min(a, index.n_blocks - 1), min(b, index.n_blocks)) for a, b in runs]
        offsets = index.offsets
        replies = yield [RangeByteRequest(offsets[a], offsets[b]) for a, b in runs]
        raw = np.empty(nbytes, np.uint8)
        for (first, last), reply in zip(runs, replies, strict=True):
            stop = nbytes if last == index.n_blocks else last * block_bytes
            out = raw[first * block_bytes : stop]
            payload = _present(reply)
            if payload.size > offsets[last] - offsets[first]:
                raise CorruptDataError(
                    f"asked for {offsets[last] - offsets[first]} bytes of the chunk at"
                    f" {offsets[first]}, got {payload.size}: the server ignores ranges"
                )
            index.decode_block_range(payload, first, last, out)
        return _chunk_array(raw, chunk_spec)[selection]


def _parse_codec(codec: Any) -> FrameCodec | str:
    """Make sense of a codec given as an object, as metadata or by name."""
    if isinstance(codec, FrameCodec):
        return codec
    configuration = None
    if isinstance(codec, Mapping):
        name, configuration = parse_named_configuration(dict(codec), require_configuration=False)
    else:
        name = codec
    if not isinstance(name, str):
        raise TypeError(f"codec must be a codec of bf16codecs or its name, not {codec!r}")
    name = name.removeprefix("bf16codecs.")
    if name not in CODECS:
        raise ValueError(f"codec must be one of {', '.join(CODECS)}, not {name!r}")
    return name if configuration is None else CODECS[name].from_config(configuration)


def _advance(
    reading: Reading, replies: Sequence[Buffer | None] | None
) -> tuple[Sequence[RangeByteRequest | None] | None, NDBuffer | None]:
    """Let `reading` go on: its next requests, or None and its result."""
    # StopIteration cannot pass through a future, so it ends here.
    try:
        return (next(reading) if replies is None else reading.send(replies)), None
    except StopIteration as stop:
        return None, stop.value


def _present(reply: Buffer | None) -> NDArray[np.uint8]:
    if reply is None:
        raise CorruptDataError("the chunk disappeared while it was being read")
    return reply.as_numpy_array()


def _check_size(index: _core.Index, nbytes: int) -> None:
    if index.raw_size != nbytes:
        raise CorruptDataError(
            f"the frame holds {index.raw_size} bytes, and a chunk of this array {nbytes}"
        )


def _chunk_bytes(chunk_spec: ArraySpec) -> int:
    return math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize


def _stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the data type with the byte order of stored chunks."""
    return dtype.newbyteorder("<") if dtype.itemsize > 1 else dtype


def _chunk_array(raw: NDArray[np.uint8], chunk_spec: ArraySpec) -> NDBuffer:
    dtype = _stored_dtype(chunk_spec.dtype.to_native_dtype())
    array = raw.view(dtype).reshape(chunk_spec.shape)
    return chunk_spec.prototype.nd_buffer.from_numpy_array(array)
