"""Bytes-to-bytes codecs of Zarr format 3."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from numcodecs import Delta
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec
from zarr.core.common import parse_named_configuration
from zarr.registry import register_codec

from bf16codecs._base.buffers import Bytes
from bf16codecs._base.cached import cached_property
from bf16codecs._base.limits import stored_limit
from bf16codecs._base.messages import named_damage
from bf16codecs._base.names import DELTA_ID
from bf16codecs.codecs import (
    BF16Arithmetic,
    BF16Huffman,
    BF16Split,
    BF16Zstd,
    FrameCodec,
    RunLength,
    decode_array,
)
from bf16codecs.codecs import run_length as _run_length
from bf16codecs.codecs.frames import ConfiguredCodec
from bf16codecs.errors import CorruptDataError
from bf16codecs.zarr.blocks import BF16BlocksCodec, check_chunk_steps, chunk_label
from bf16codecs.zarr.dtypes import register_data_types
from bf16codecs.zarr.gpu import decoded_on_gpu

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer

__all__ = [
    "BF16ArithmeticCodec",
    "BF16HuffmanCodec",
    "BF16SplitCodec",
    "BF16ZstdCodec",
    "DeltaCodec",
    "RunLengthCodec",
    "register",
]


@dataclass(frozen=True)
class _BytesCodec(BytesBytesCodec):
    """A bytes-to-bytes codec that works on the host, or decodes chunks that lie on a GPU there."""

    def _encoded(self, data: Bytes, chunk_spec: ArraySpec) -> bytes | memoryview:
        raise NotImplementedError

    def _decoded(self, data: Bytes, chunk_spec: ArraySpec) -> Bytes:
        raise NotImplementedError

    def _decoded_on_gpu(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        """Return the chunk decoded on its GPU, or None if the host has to decode it."""
        return None

    def _decode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        on_gpu = self._decoded_on_gpu(chunk_data, chunk_spec)
        if on_gpu is not None:
            return on_gpu
        raw = self._decoded(chunk_data.as_numpy_array(), chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(raw.data)

    def _encode_sync(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        encoded = self._encoded(chunk_data.as_numpy_array(), chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(encoded)

    # A buffer may be a GPU's, which only the calling thread may touch: see `gpu`.

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        on_gpu = self._decoded_on_gpu(chunk_data, chunk_spec)
        if on_gpu is not None:
            return on_gpu
        raw = await asyncio.to_thread(self._decoded, chunk_data.as_numpy_array(), chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(raw.data)

    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        encoded = await asyncio.to_thread(self._encoded, chunk_data.as_numpy_array(), chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(encoded)


@dataclass(frozen=True)
class _WrappedCodec(_BytesCodec):
    """A codec class of this package as a bytes-to-bytes codec of Zarr format 3.

    The fields are the parameters of that class.
    """

    is_fixed_size = False
    _codec_class: ClassVar[type[ConfiguredCodec]]
    _decode_array: ClassVar[Callable[[Any, int | None], Bytes]]

    def __post_init__(self) -> None:
        parameters = {field.name: getattr(self, field.name) for field in fields(self)}
        codec = self._codec_class(**parameters)
        for name in parameters:
            object.__setattr__(self, name, getattr(codec, name))
        object.__setattr__(self, "_codec", codec)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make the codec from array metadata."""
        _, configuration = parse_named_configuration(
            data, cls._codec_class.codec_id, require_configuration=False
        )
        return cls(**cls._codec_class.from_config(configuration or {})["configuration"])

    def to_dict(self) -> dict[str, Any]:
        """Return the codec as array metadata."""
        codec: ConfiguredCodec = self._codec  # type: ignore[attr-defined]
        return {"name": codec.codec_id, "configuration": dict(codec["configuration"])}

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise: the size depends on the data."""
        raise NotImplementedError(f"the encoded size of {type(self).__name__} depends on the data")

    def _decoded(self, data: Bytes, chunk_spec: ArraySpec) -> Bytes:
        # zarr passes no key to a compressor, so the label cannot name the chunk.
        with named_damage(chunk_label(chunk_spec)):
            return type(self)._decode_array(data, _largest_chunk(chunk_spec))

    def _encoded(self, data: Bytes, chunk_spec: ArraySpec) -> bytes:
        codec: ConfiguredCodec = self._codec  # type: ignore[attr-defined]
        return codec.encode(data)


def _largest_chunk(chunk_spec: ArraySpec) -> int | None:
    """Return the largest size of a chunk before compression, in bytes; None without a limit."""
    dtype = chunk_spec.dtype.to_native_dtype()
    if dtype.kind in "OT":  # strings of any length
        return None
    # Codecs before this one may make the chunk a little larger.
    return stored_limit(math.prod(chunk_spec.shape) * dtype.itemsize)


def _with_rows(data: Bytes, chunk_spec: ArraySpec) -> NDArray[Any]:
    """Return a chunk as items in its shape, unless codecs before this one changed its size."""
    dtype = chunk_spec.dtype.to_native_dtype()
    is_whole = data.nbytes == math.prod(chunk_spec.shape) * dtype.itemsize
    if dtype.kind in "OT" or len(chunk_spec.shape) < 2 or not is_whole:
        return data
    return data.view(f"V{dtype.itemsize}").reshape(chunk_spec.shape)


@dataclass(frozen=True)
class RunLengthCodec(_WrappedCodec):
    """`RunLength` as a codec of Zarr format 3."""

    _codec_class = RunLength
    _decode_array = staticmethod(_run_length.decode_array)


@dataclass(frozen=True)
class _FrameBytesCodec(_WrappedCodec):
    """A codec that writes frames.

    Arrays of another data type than `dtype` are compressed less well, still bit for bit, with a
    warning.
    """

    _decode_array = staticmethod(decode_array)

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        """Return this codec, with the array's data type if its `dtype` is ``"auto"``."""
        codec: FrameCodec = self._codec  # type: ignore[attr-defined]
        settled = codec.for_dtype(array_spec.dtype.to_native_dtype())
        return self if settled is codec else type(self)(**settled["configuration"])

    def _decoded_on_gpu(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        largest = _largest_chunk(chunk_spec)
        if largest is None:
            return None
        raw = decoded_on_gpu(
            chunk_data,
            chunk_label(chunk_spec),
            largest,
            lambda nbytes: nbytes <= largest,
            lambda data: self._decoded(data, chunk_spec),
        )
        return None if raw is None else chunk_spec.prototype.buffer.from_array_like(raw)

    def _encoded(self, data: Bytes, chunk_spec: ArraySpec) -> bytes:
        # Not when an array is opened: its readers cannot change the codec.
        codec: FrameCodec = self._codec  # type: ignore[attr-defined]
        codec.warn_of_other(chunk_spec.dtype.to_native_dtype())
        return codec.encode(_with_rows(data, chunk_spec))

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse chunks that steps do not divide."""
        check_chunk_steps(self._codec, dtype, chunk_grid)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class BF16SplitCodec(_FrameBytesCodec):
    """`BF16Split` as a codec of Zarr format 3."""

    _codec_class = BF16Split
    dtype: str = "bfloat16"
    by: str = "field"


@dataclass(frozen=True)
class BF16HuffmanCodec(_FrameBytesCodec):
    """`BF16Huffman` as a codec of Zarr format 3."""

    _codec_class = BF16Huffman
    dtype: str = "bfloat16"
    checksum: bool = True
    steps: int = 1
    grid: bool = True


@dataclass(frozen=True)
class BF16ArithmeticCodec(_FrameBytesCodec):
    """`BF16Arithmetic` as a codec of Zarr format 3."""

    _codec_class = BF16Arithmetic
    dtype: str = "bfloat16"
    level: str = "fast"
    checksum: bool = True
    steps: int = 1
    grid: bool = True


@dataclass(frozen=True)
class BF16ZstdCodec(_FrameBytesCodec):
    """`BF16Zstd` as a codec of Zarr format 3."""

    _codec_class = BF16Zstd
    level: int = 3
    dtype: str = "bfloat16"
    checksum: bool = True


@dataclass(frozen=True)
class DeltaCodec(_BytesCodec):
    """Differences of consecutive integers, as a codec of Zarr format 3.

    Unlike `numcodecs.delta` of zarr-python, it takes a chunk's bytes as integers even in arrays of
    floats, and so is exact.

    Parameters
    ----------
    dtype : {"|u1", "<u2", "<u4", "<u8"}
        Integer type of the chunk's bytes.
    """

    is_fixed_size = True
    codec_id: ClassVar[str] = DELTA_ID
    dtype: str

    def __post_init__(self) -> None:
        # Differences of floats are rounded, and those of signed integers overflow.
        if self.dtype not in ("|u1", "<u2", "<u4", "<u8"):
            raise ValueError(f"dtype must be '|u1', '<u2', '<u4' or '<u8', not {self.dtype!r:.80}")

    @cached_property
    def _delta(self) -> Delta:
        return Delta(self.dtype)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make the codec from array metadata."""
        _, configuration = parse_named_configuration(data, cls.codec_id)
        if configuration.keys() != {"dtype"}:
            raise ValueError(f"{cls.codec_id}: its configuration must be dtype alone")
        return cls(str(configuration["dtype"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the codec as array metadata."""
        return {"name": self.codec_id, "configuration": {"dtype": self.dtype}}

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Return the size itself: encoding keeps it."""
        return input_byte_length

    def _encoded(self, data: Bytes, chunk_spec: ArraySpec) -> memoryview:
        self._check_size(data)
        return self._delta.encode(data).data

    def _decoded(self, data: Bytes, chunk_spec: ArraySpec) -> Bytes:
        self._check_size(data)
        return self._delta.decode(data)

    def _check_size(self, data: Bytes) -> None:
        size = int(self.dtype[-1])
        if data.size == 0 or data.size % size:
            raise CorruptDataError(
                f"a chunk of {data.size} bytes does not consist of {8 * size}-bit integers"
            )


def register() -> None:
    """Register the codecs and data types with zarr; importing the package does this."""
    frame_codecs = (BF16SplitCodec, BF16HuffmanCodec, BF16ArithmeticCodec, BF16ZstdCodec)
    for cls in (*frame_codecs, RunLengthCodec):
        register_codec(cls._codec_class.codec_id, cls)
    for unwrapped in (BF16BlocksCodec, DeltaCodec):
        register_codec(unwrapped.codec_id, unwrapped)
    register_data_types()
