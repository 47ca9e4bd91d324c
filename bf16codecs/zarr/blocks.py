"""The Zarr format 3 serializer whose chunks can be read block by block."""

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
from bf16codecs._arrays.sources import AtMost, InMemory, Known, Request, check_range
from bf16codecs._arrays.wanted import Wanted, touched_ranges
from bf16codecs._base.buffers import AUTO, CHUNK_MEMORY, Bytes
from bf16codecs._base.messages import named_damage
from bf16codecs._base.names import BLOCKS_ID, PREFIX
from bf16codecs.codecs import CODECS, FrameCodec
from bf16codecs.errors import CorruptDataError
from bf16codecs.zarr.gpu import decoded_there

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, BufferPrototype, NDBuffer

__all__ = ["BF16BlocksCodec"]

# zarr opens arrays anew, and hands no key: nothing to remember heads by.
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
        The wrapped codec, also as array metadata; by default `BF16Arithmetic`, as of conversions. A
        name such as ``"huffman"`` means that codec with the element layout of the array's data
        type, as ``dtype="auto"`` does. Stored metadata contain this parameter in full: it keeps its
        name and meaning.

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
        # What metadata mean that name no codec, which this package does not write.
        return cls(configuration.get("codec", "huffman"))  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Return the codec as array metadata."""
        codec: dict[str, Any] = {"name": f"{PREFIX}{self.codec}"}
        if isinstance(self.codec, FrameCodec):
            codec = {"name": self.codec.codec_id, "configuration": self.codec["configuration"]}
        return {"name": self.codec_id, "configuration": {"codec": codec}}

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        """Return this codec, with the array's element layout if none was given."""
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
        # `encode` warns where the codec is for other numbers.
        return codec.encode(array.astype(_stored_dtype(array.dtype), order="C", copy=False))

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        encoded = self._encoded(chunk_array.as_numpy_array(), chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(encoded)

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        there = _decoded_there(chunk_bytes, chunk_spec)
        if there is not None:
            return there
        return _on_host(_decoded(chunk_bytes.as_numpy_array(), chunk_spec), chunk_spec)

    # Buffers, which may be a GPU's, are left to the thread that has them: see `gpu`.

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        array = chunk_array.as_numpy_array()
        encoded = await asyncio.to_thread(self._encoded, array, chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(encoded)

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        there = _decoded_there(chunk_bytes, chunk_spec)
        if there is not None:
            return there
        array = await asyncio.to_thread(_decoded, chunk_bytes.as_numpy_array(), chunk_spec)
        return _on_host(array, chunk_spec)

    async def _decode_partial_single(
        self, byte_getter: Any, selection: Any, chunk_spec: ArraySpec
    ) -> NDBuffer | None:
        part = _Part(selection, chunk_spec, byte_getter)

        async def get(request: RangeByteRequest | None) -> Buffer | None:
            return await byte_getter.get(part.prototype(request), byte_range=request)

        requests = part.begin()
        while requests is not None:
            limit = config.get("async.concurrency")
            replies = await concurrent_map([(r,) for r in requests], get, limit)
            if part.decode_there(replies):
                break
            requests = await asyncio.to_thread(part.send, _host_bytes(replies))
        return part.result

    def _decode_partial_sync(
        self, byte_getter: Any, selection: Any, chunk_spec: ArraySpec
    ) -> NDBuffer | None:
        # Used by zarr's fused pipeline where stores can be read without an event loop.
        part = _Part(selection, chunk_spec, byte_getter)
        requests = part.begin()
        while requests is not None:
            replies = [
                byte_getter.get_sync(prototype=part.prototype(r), byte_range=r) for r in requests
            ]
            if part.decode_there(replies):
                break
            requests = part.send(_host_bytes(replies))
        return part.result


def check_chunk_steps(codec: FrameCodec, dtype: Any, chunk_grid: Any) -> None:
    """Raise ValueError if a codec's steps do not divide the chunks of an array.

    Of chunks inside shards it is not known here how large they are: encoding refuses these.
    """
    chunk, native = getattr(chunk_grid, "chunk_shape", None), dtype.to_native_dtype()
    if chunk is not None and isinstance(dtype, HasItemSize):
        codec.for_dtype(native).check_steps(math.prod(chunk) * dtype.item_size)


def chunk_label(chunk_spec: ArraySpec, byte_getter: Any = None) -> str:
    """Return what messages call a chunk: by its key, if zarr gives it, or by its array's spec."""
    if isinstance(byte_getter, StorePath):
        return f"chunk {byte_getter}"
    place = getattr(byte_getter, "chunk_coords", None)
    which = "a chunk" if place is None else f"chunk {place} of a shard"
    return f"{which}, of shape {chunk_spec.shape} and {chunk_spec.dtype.to_native_dtype()}"


class _Part(Known):
    """Part of a chunk that is being read, while fetching is left to the caller.

    The selection itself is NumPy's work, on an array of the whole chunk into which only the
    touched blocks were decoded: of the rest, the system never provides the memory.
    """

    def __init__(self, selection: Any, chunk_spec: ArraySpec, byte_getter: Any) -> None:
        self._label = chunk_label(chunk_spec, byte_getter)
        nbytes, item_size = _chunk_bytes(chunk_spec), chunk_spec.dtype.to_native_dtype().itemsize
        self._selection, self._spec = selection, chunk_spec
        self._is_store = isinstance(byte_getter, StorePath)
        self._raw = CHUNK_MEMORY.array(nbytes)
        touched = partial(touched_ranges, selection, chunk_spec.shape, item_size)
        self._reading = _FORMAT.reading(self, Wanted(nbytes, touched, self._raw))
        self._requests: list[RangeByteRequest | None] = []
        self._has_begun = False
        self._selected: NDArray[Any] | None = None
        self._there: NDBuffer | None = None

    def prototype(self, request: RangeByteRequest | None) -> BufferPrototype:
        """Return what a request is to be fetched to: parts of a chunk to where they are decoded."""
        # Shards know one only.
        is_part = request is not None and self._is_store
        return numpy_buffer_prototype() if is_part else self._spec.prototype

    def decode_there(self, replies: Sequence[Buffer | None]) -> bool:
        """Decode a chunk where it was fetched to, if that is a GPU; return whether it was."""
        if self._requests != [None] or replies[0] is None:
            return False

        def on_host(data: Bytes) -> None:
            self.send([data])

        there = _decoded_there(replies[0], self._spec, self._label, on_host)
        if there is not None:
            self._there = there[self._selection]
        return there is not None

    @property
    def result(self) -> NDBuffer | None:
        """The selected items; None if the chunk was never written."""
        if self._selected is None:
            return self._there
        return _on_host(self._selected, self._spec)

    def begin(self) -> list[RangeByteRequest | None] | None:
        """Return the first requests: byte ranges, or None for the whole chunk."""
        return self._asked(next(self._reading))

    def send(self, replies: Sequence[Bytes | None]) -> list[RangeByteRequest | None] | None:
        """Take what the requests gave, and return the next ones, or None at the end."""
        with named_damage(self._label):
            return self._sent(replies)

    def _sent(self, replies: Sequence[Bytes | None]) -> list[RangeByteRequest | None] | None:
        parts = []
        for request, reply in zip(self._requests, replies, strict=True):
            if reply is None:
                if self._has_begun:
                    raise CorruptDataError("the chunk disappeared while it was being read")
                return None  # it was never written: all fill values
            if request is not None:
                check_range(reply.size, request.start, request.end, "chunk: ", CorruptDataError)
            parts.append(reply)
        self._has_begun = True
        # StopIteration cannot pass through a future, so it ends here.
        try:
            return self._asked(self._reading.send(parts))
        except StopIteration:
            array = _shaped(self._raw, self._spec)
            self._selected = np.asanyarray(array[self._selection])
            return None

    def _asked(self, request: Request) -> list[RangeByteRequest | None]:
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
    """Parse a codec given as an object, as metadata or by name."""
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
    """Return the items that a chunk's bytes are."""
    dtype = _stored_dtype(chunk_spec.dtype.to_native_dtype())
    return raw.view(dtype).reshape(chunk_spec.shape)


def _on_host(array: NDArray[Any], chunk_spec: ArraySpec) -> NDBuffer:
    """Return zarr's buffer with what was decoded on the host."""
    return chunk_spec.prototype.nd_buffer.from_numpy_array(array)


def _host_bytes(replies: Sequence[Buffer | None]) -> list[Bytes | None]:
    return [r if r is None else np.asarray(r.as_numpy_array()).view(np.uint8) for r in replies]


def _decoded(data: Bytes, chunk_spec: ArraySpec) -> NDArray[Any]:
    """Decode a chunk on the host."""
    raw = CHUNK_MEMORY.array(_chunk_bytes(chunk_spec))
    # What is not there yet of a growing frame, zarr may be about to write.
    wanted = replace(Wanted.whole(raw), pads=True)
    with named_damage(chunk_label(chunk_spec)):
        read(_FORMAT, InMemory(data), wanted)
    return _shaped(raw, chunk_spec)


def _decoded_there(
    chunk_bytes: Buffer,
    chunk_spec: ArraySpec,
    label: str | None = None,
    decode: Callable[[Bytes], Any] | None = None,
) -> NDBuffer | None:
    """Decode a chunk on the GPU on which it is, if there is one: see `decoded_there`."""
    size = _chunk_bytes(chunk_spec)
    there = decoded_there(
        chunk_bytes,
        label or chunk_label(chunk_spec),
        size,
        lambda nbytes: nbytes == size,
        decode or partial(_decoded, chunk_spec=chunk_spec),
    )
    if there is None:
        return None
    return chunk_spec.prototype.nd_buffer.from_ndarray_like(_shaped(there, chunk_spec))
