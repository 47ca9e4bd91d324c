"""Serializer for Zarr format 3 whose chunks can be read block by block."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from zarr.abc.codec import ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import numpy_buffer_prototype
from zarr.core.common import concurrent_map, parse_named_configuration
from zarr.core.config import config
from zarr.core.dtype.common import HasItemSize
from zarr.storage import StorePath

from bf16codecs._arrays.formats import read
from bf16codecs._arrays.frames import FrameFormat
from bf16codecs._arrays.parts import ChunkPart, touched_ranges
from bf16codecs._arrays.storage import AtMost, ChunkInfo, InMemory, Request, check_range
from bf16codecs._base.buffers import AUTO, CHUNK_MEMORY, Bytes
from bf16codecs._base.messages import named_damage
from bf16codecs._base.names import BLOCKS_ID, PREFIX
from bf16codecs.codecs import CODECS, FrameCodec
from bf16codecs.errors import CorruptDataError
from bf16codecs.zarr.gpu import decoded_on_gpu

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, BufferPrototype, NDBuffer

__all__ = ["BF16BlocksCodec"]

# zarr passes no chunk keys by which heads could be remembered, and reopens arrays.
_FORMAT = FrameFormat(keep_heads=False)


@dataclass(frozen=True)
class BF16BlocksCodec(ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin):
    """Serializer for Zarr format 3 that compresses, and reads only the blocks a selection touches.

    A chunk is stored as one frame of the wrapped codec, with the chunk's items in C order and
    little-endian. To read part of a chunk, zarr fetches the frame's head and the ranges of the
    touched blocks. That works only if no other codec encodes the chunk: create arrays with
    ``compressors=None``, or zarr adds its default compressor.

    Parameters
    ----------
    codec : BF16Huffman, BF16Arithmetic, BF16Zstd, BF16Split, mapping or str
        The wrapped codec, an object or array metadata; by default `BF16Arithmetic`, as in
        conversions. A name such as ``"huffman"`` means that codec with the element layout of the
        array's data type, as with ``dtype="auto"``. Array metadata store this parameter in full.

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
    codec_id: ClassVar[str] = BLOCKS_ID

    codec: FrameCodec | str = "arithmetic"

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", _parse_codec(self.codec))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make the codec from array metadata."""
        _, configuration = parse_named_configuration(
            data, cls.codec_id, require_configuration=False
        )
        configuration = configuration or {}
        _refuse_unknown(configuration, {"codec"})
        # The default of metadata without a codec, which this package does not write.
        return cls(configuration.get("codec", "huffman"))  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Return the codec as array metadata."""
        codec: dict[str, Any] = {"name": f"{PREFIX}{self.codec}"}
        if isinstance(self.codec, FrameCodec):
            codec = {"name": self.codec.codec_id, "configuration": self.codec["configuration"]}
        return {"name": self.codec_id, "configuration": {"codec": codec}}

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        """Return this codec, with the array's element layout if it has none."""
        codec = self.codec if isinstance(self.codec, FrameCodec) else CODECS[self.codec](dtype=AUTO)
        settled = codec.for_dtype(array_spec.dtype.to_native_dtype())
        return self if settled is self.codec else type(self)(settled)

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse data types without a fixed size, and chunks that steps do not divide."""
        if not isinstance(dtype, HasItemSize):
            raise TypeError(f"{self.codec_id} takes data types of a fixed size, not {dtype}")
        if isinstance(self.codec, FrameCodec):
            check_chunk_steps(self.codec, dtype, chunk_grid)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise: the size depends on the data. `bf16codecs.bound` gives its limit."""
        raise NotImplementedError(f"the encoded size of {type(self).__name__} depends on the data")

    def _encoded(self, array: NDArray[Any], chunk_spec: ArraySpec) -> bytes:
        codec = self.evolve_from_array_spec(chunk_spec).codec
        assert isinstance(codec, FrameCodec)
        # `encode` warns if the codec is for another data type.
        return codec.encode(array.astype(_stored_dtype(array.dtype), order="C", copy=False))

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        encoded = self._encoded(chunk_array.as_numpy_array(), chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(encoded)

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        on_gpu = _decoded_on_gpu(chunk_bytes, chunk_spec)
        if on_gpu is not None:
            return on_gpu
        return _on_host(_decoded(chunk_bytes.as_numpy_array(), chunk_spec), chunk_spec)

    # A buffer may be a GPU's, which only the calling thread may touch: see `gpu`.

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        array = chunk_array.as_numpy_array()
        encoded = await asyncio.to_thread(self._encoded, array, chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(encoded)

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        on_gpu = _decoded_on_gpu(chunk_bytes, chunk_spec)
        if on_gpu is not None:
            return on_gpu
        array = await asyncio.to_thread(_decoded, chunk_bytes.as_numpy_array(), chunk_spec)
        return _on_host(array, chunk_spec)

    async def _decode_partial_single(
        self, byte_getter: Any, selection: Any, chunk_spec: ArraySpec
    ) -> NDBuffer | None:
        chunk_read = _ChunkRead(selection, chunk_spec, byte_getter)

        async def get(request: RangeByteRequest | None) -> Buffer | None:
            return await byte_getter.get(chunk_read.prototype(request), byte_range=request)

        requests = chunk_read.begin()
        while requests is not None:
            limit = config.get("async.concurrency")
            replies = await concurrent_map([(r,) for r in requests], get, limit)
            if chunk_read.decode_on_gpu(replies):
                break
            requests = await asyncio.to_thread(chunk_read.send, _host_bytes(replies))
        return chunk_read.result

    def _decode_partial_sync(
        self, byte_getter: Any, selection: Any, chunk_spec: ArraySpec
    ) -> NDBuffer | None:
        # zarr's fused pipeline calls this for stores that it can read without an event loop.
        chunk_read = _ChunkRead(selection, chunk_spec, byte_getter)
        requests = chunk_read.begin()
        while requests is not None:
            replies = [
                byte_getter.get_sync(prototype=chunk_read.prototype(request), byte_range=request)
                for request in requests
            ]
            if chunk_read.decode_on_gpu(replies):
                break
            requests = chunk_read.send(_host_bytes(replies))
        return chunk_read.result


def check_chunk_steps(codec: FrameCodec, dtype: Any, chunk_grid: Any) -> None:
    """Raise ValueError if a codec's steps do not divide the chunks of an array.

    The size of chunks inside shards is not known here: encoding checks those.
    """
    chunk, native = getattr(chunk_grid, "chunk_shape", None), dtype.to_native_dtype()
    if chunk is not None and isinstance(dtype, HasItemSize):
        codec.for_dtype(native).check_steps(math.prod(chunk) * dtype.item_size)


def chunk_label(chunk_spec: ArraySpec, byte_getter: Any = None) -> str:
    """Return a chunk's name for messages: by its key, if zarr passes it, or by its array's spec."""
    if isinstance(byte_getter, StorePath):
        return f"chunk {byte_getter}"
    index = getattr(byte_getter, "chunk_coords", None)
    which = "a chunk" if index is None else f"chunk {index} of a shard"
    return f"{which}, of shape {chunk_spec.shape} and {chunk_spec.dtype.to_native_dtype()}"


class _ChunkRead(ChunkInfo):
    """A read of a part of a chunk, for which the caller fetches the bytes.

    Only the touched blocks are decoded, into an array of the whole chunk from which NumPy selects.
    The system never provides memory for the rest of the array.
    """

    def __init__(self, selection: Any, chunk_spec: ArraySpec, byte_getter: Any) -> None:
        self._label = chunk_label(chunk_spec, byte_getter)
        nbytes, item_size = _chunk_bytes(chunk_spec), chunk_spec.dtype.to_native_dtype().itemsize
        self._selection, self._spec = selection, chunk_spec
        self._is_store = isinstance(byte_getter, StorePath)
        self._raw = CHUNK_MEMORY.array(nbytes)
        touched = partial(touched_ranges, selection, chunk_spec.shape, item_size)
        self._reading = _FORMAT.reading(self, ChunkPart(nbytes, touched, self._raw))
        self._requests: list[RangeByteRequest | None] = []
        self._has_begun = False
        self._selected: NDArray[Any] | None = None
        self._on_gpu: NDBuffer | None = None

    def prototype(self, request: RangeByteRequest | None) -> BufferPrototype:
        """Return the buffers to fetch a request to; parts of chunks are decoded on the host."""
        # Chunks inside shards come in the array's buffers only.
        is_part = request is not None and self._is_store
        return numpy_buffer_prototype() if is_part else self._spec.prototype

    def decode_on_gpu(self, replies: Sequence[Buffer | None]) -> bool:
        """Decode a whole chunk that was fetched to a GPU; return whether that was possible."""
        if self._requests != [None] or replies[0] is None:
            return False

        def on_host(data: Bytes) -> None:
            self.send([data])

        chunk = _decoded_on_gpu(replies[0], self._spec, self._label, on_host)
        if chunk is not None:
            self._on_gpu = chunk[self._selection]
        return chunk is not None

    @property
    def result(self) -> NDBuffer | None:
        """The selected items; None if the chunk was never written."""
        if self._selected is None:
            return self._on_gpu
        return _on_host(self._selected, self._spec)

    def begin(self) -> list[RangeByteRequest | None] | None:
        """Return the first requests: byte ranges, or None for the whole chunk."""
        return self._byte_requests(next(self._reading))

    def send(self, replies: Sequence[Bytes | None]) -> list[RangeByteRequest | None] | None:
        """Take the replies to the requests; return the next requests, or None at the end."""
        with named_damage(self._label):
            return self._send(replies)

    def _send(self, replies: Sequence[Bytes | None]) -> list[RangeByteRequest | None] | None:
        parts = []
        for request, reply in zip(self._requests, replies, strict=True):
            if reply is None:
                if self._has_begun:
                    raise CorruptDataError("the chunk disappeared while it was being read")
                return None  # never written: all fill values
            if request is not None:
                check_range(reply.size, request.start, request.end, "chunk: ", CorruptDataError)
            parts.append(reply)
        self._has_begun = True
        # A future cannot raise StopIteration.
        try:
            return self._byte_requests(self._reading.send(parts))
        except StopIteration:
            array = _shaped(self._raw, self._spec)
            self._selected = np.asanyarray(array[self._selection])
            return None

    def _byte_requests(self, request: Request) -> list[RangeByteRequest | None]:
        if isinstance(request, AtMost):
            self._requests = [None]
        else:
            self._requests = [RangeByteRequest(*r) for r in request]
        return self._requests


def _refuse_unknown(configuration: Mapping[str, Any], known: set[str]) -> None:
    unknown = configuration.keys() - known
    if unknown:
        names = ", ".join(sorted(map(repr, unknown)))
        raise ValueError(f"{BLOCKS_ID}: unknown configuration: {names}")


def _parse_codec(codec: Any) -> FrameCodec | str:
    """Return the codec of an object or of metadata; a name without parameters stays a name."""
    if isinstance(codec, FrameCodec):
        return codec
    configuration = None
    if isinstance(codec, Mapping):
        _refuse_unknown(codec, {"name", "configuration"})
        name, configuration = parse_named_configuration(dict(codec), require_configuration=False)
    else:
        name = codec
    if not isinstance(name, str):
        raise TypeError(
            f"codec must be a codec of bf16codecs or its name ({', '.join(CODECS)}), not"
            f" {codec!r:.80}"
        )
    name = name.removeprefix(PREFIX)
    if name not in CODECS:
        raise ValueError(f"codec must be one of {', '.join(CODECS)}, not {name!r:.80}")
    return name if configuration is None else CODECS[name].from_config(configuration)


def _chunk_bytes(chunk_spec: ArraySpec) -> int:
    return math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize


def _stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the data type with the byte order of stored chunks."""
    return dtype.newbyteorder("<") if dtype.itemsize > 1 else dtype


def _shaped(raw: Any, chunk_spec: ArraySpec) -> Any:
    """Return a chunk's bytes as an array of its items."""
    dtype = _stored_dtype(chunk_spec.dtype.to_native_dtype())
    return raw.view(dtype).reshape(chunk_spec.shape)


def _on_host(array: NDArray[Any], chunk_spec: ArraySpec) -> NDBuffer:
    """Return zarr's buffer of an array on the host."""
    return chunk_spec.prototype.nd_buffer.from_numpy_array(array)


def _host_bytes(replies: Sequence[Buffer | None]) -> list[Bytes | None]:
    return [r if r is None else np.asarray(r.as_numpy_array()).view(np.uint8) for r in replies]


def _decoded(data: Bytes, chunk_spec: ArraySpec) -> NDArray[Any]:
    """Decode a chunk on the host."""
    raw = CHUNK_MEMORY.array(_chunk_bytes(chunk_spec))
    # A growing frame may be incomplete: zarr reads it before it writes the missing versions.
    part = replace(ChunkPart.whole(raw), pads=True)
    with named_damage(chunk_label(chunk_spec)):
        read(_FORMAT, InMemory(data), part)
    return _shaped(raw, chunk_spec)


def _decoded_on_gpu(
    chunk_bytes: Buffer,
    chunk_spec: ArraySpec,
    label: str | None = None,
    decode: Callable[[Bytes], Any] | None = None,
) -> NDBuffer | None:
    """Decode a chunk that lies on a GPU there: see `decoded_on_gpu`."""
    size = _chunk_bytes(chunk_spec)
    raw = decoded_on_gpu(
        chunk_bytes,
        label or chunk_label(chunk_spec),
        size,
        lambda nbytes: nbytes == size,
        decode or partial(_decoded, chunk_spec=chunk_spec),
    )
    if raw is None:
        return None
    return chunk_spec.prototype.nd_buffer.from_ndarray_like(_shaped(raw, chunk_spec))
