"""Frames: decoding and inspecting them, and the base classes of the codecs that write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numcodecs.abc import Codec

from bf16codecs import _core
from bf16codecs._base.buffers import (
    AUTO,
    CHUNK_MEMORY,
    Bytes,
    as_array,
    byte_view,
    check_same_dtype,
    is_shifted,
    layout_for,
    own_layout,
    writable_byte_view,
)
from bf16codecs._base.cached import cached_property
from bf16codecs._base.messages import counted, raise_named, warn_caller
from bf16codecs._base.names import PREFIX
from bf16codecs.errors import CodecError, CorruptDataError, DtypeMismatchWarning

__all__ = [
    "ConfiguredCodec",
    "FrameCodec",
    "decode",
    "decode_array",
    "encode_delta",
    "encode_version",
    "inspect",
    "stated_size",
]


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(f"{type(self).__name__} is immutable")


class FrozenDict(dict[str, Any]):
    """An immutable dict, so that a codec always matches the data it has encoded."""

    __setitem__: Any = _refuse
    __delitem__: Any = _refuse
    __ior__: Any = _refuse
    clear: Any = _refuse
    pop: Any = _refuse
    popitem: Any = _refuse
    setdefault: Any = _refuse
    update: Any = _refuse

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class ConfiguredCodec(Codec, FrozenDict):
    """A codec that is its configuration.

    As a dict it is ``{"name": codec_id, "configuration": {...}}``, the codec's metadata in Zarr
    format 3. It is immutable.

    Stored metadata contain the subclasses' parameters. So these keep their names, order and
    defaults; a new one comes last, with a default that keeps the old behaviour, and is left out
    where it has that default: older releases refuse unknown parameters.
    """

    codec_id: ClassVar[str]
    #: Parameters that are left out where they have their default.
    _left_out: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **parameters: Any) -> None:
        dict.__init__(self, name=self.codec_id, configuration=FrozenDict(parameters))

    def get_config(self) -> dict[str, Any]:
        """Return the parameters with the codec's id, as numcodecs and Zarr format 2 store them."""
        return {"id": self.codec_id, **self["configuration"]}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make a codec from `get_config`'s result, with or without ``id``."""
        parameters = dict(config)
        codec_id = parameters.pop("id", cls.codec_id)
        if codec_id != cls.codec_id:
            raise ValueError(f"the configuration is for {codec_id!r}, not {cls.codec_id!r}")
        unknown = parameters.keys() - cls()["configuration"].keys() - cls._left_out
        if unknown:
            names = ", ".join(sorted(map(repr, unknown)))
            raise ValueError(f"{cls.codec_id}: unknown configuration: {names}")
        return cls(**parameters)

    # numcodecs compares configurations and defines no hash. The dict holds the configuration.
    __eq__ = dict.__eq__

    def __hash__(self) -> int:  # type: ignore[override]
        return hash((self.codec_id, *self["configuration"].items()))

    def __repr__(self) -> str:
        parameters = ", ".join(f"{k}={v!r}" for k, v in self["configuration"].items())
        return f"{type(self).__name__}({parameters})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_config, (dict(self["configuration"]),)


class FrameCodec(ConfiguredCodec):
    """Base of the codecs of numbers, which write one frame for each buffer.

    Use its subclasses.
    """

    @property
    def number(self) -> int:
        """The codec's number in the native core and in frames."""
        return _core.CODECS[self.codec_id.removeprefix(PREFIX)]

    @property
    def dtype(self) -> str:
        """The element layout: how an item's bytes become planes; ``"auto"``: that of the array."""
        return self["configuration"]["dtype"]

    @property
    def steps(self) -> int:
        """How many versions a buffer holds, each but the first coded against an earlier one."""
        return self["configuration"].get("steps", 1)

    def for_dtype(self, dtype: np.dtype[Any] | None) -> Self:
        """Return this codec; if its `dtype` is ``"auto"``, one for numbers of this data type."""
        if self.dtype != AUTO:
            return self
        return type(self)(**{**self["configuration"], "dtype": layout_for(dtype)})

    def warn_of_other(self, dtype: np.dtype[Any]) -> None:
        """Warn if numbers of `dtype` get the element layout of others.

        Bytes, integers and the like have no element layout, and may hold any numbers.
        """
        layout = own_layout(dtype)
        if layout is not None and self.dtype not in (layout, AUTO):
            warn_caller(
                f"{self.codec_id} for {self.dtype} encodes {layout}, exactly but less well:"
                f" give dtype={layout!r}, or dtype={AUTO!r}",
                DtypeMismatchWarning,
            )

    def check_steps(self, nbytes: int) -> None:
        """Raise ValueError unless a buffer of `nbytes` has as many items in every step.

        The codec's `dtype` must not be ``"auto"``.
        """
        if self.steps > 1 and nbytes % (self.steps * _core.ITEM_SIZES[self.dtype]):
            raise ValueError(
                f"{counted(nbytes, 'byte')} are not {self.steps} steps of whole {self.dtype} items:"
                " let the first dimension of the array, or of its chunks, be a multiple of steps"
            )

    def _parameters(self) -> dict[str, Any]:
        """Return the native encoder's arguments besides codec and dtype."""
        return {"checksum": self["configuration"]["checksum"]}

    @cached_property
    def _native_parameters(self) -> dict[str, Any]:
        return {"codec": self.number, "dtype": _core.DTYPES[self.dtype], **self._parameters()}

    def _row(self, buf: Any) -> int:
        """Return the items of a row of a buffer, if they matter."""
        return 0

    def encode(self, buf: Any) -> bytes:
        """Encode a buffer as one frame.

        Parameters
        ----------
        buf : buffer or array
            Any contiguous memory, in C or Fortran order; its bytes are encoded in memory order.
            Arrays of ml_dtypes, or of another item size than that of `dtype`, are taken as
            well, and so are tensors of PyTorch and arrays of CuPy.

        Returns
        -------
        bytes
            The frame. It depends only on `buf` (on its shape too, at level "best" or where it lies
            on a grid, and with dtype "auto" on its data type) and the codec's parameters.

        Warns
        -----
        bf16codecs.errors.DtypeMismatchWarning
            If `buf` is a NumPy array of other floating-point numbers than those of `dtype`.
        """
        buf = as_array(buf)
        dtype = buf.dtype if isinstance(buf, np.ndarray) else None
        if dtype is not None:
            self.warn_of_other(dtype)
        return self.for_dtype(dtype)._encode(buf)

    def encode_to(
        self, memory: Callable[[int], Bytes], buf: Any, base: Bytes | None = None
    ) -> Bytes:
        """Encode a buffer, alone or against a base, into reused memory.

        `memory` returns memory of at least so many bytes. Return the part of it with the frame.
        """
        given: list[Bytes] = []

        def take(room: int) -> Bytes:
            given.append(memory(room))
            return given[0]

        size = self._encode(buf, base, memory=take)
        return given[0][:size]

    def _encode(self, buf: Any, base: Bytes | None = None, block: int = 0, **options: Any) -> Any:
        view = byte_view(buf)
        self.check_steps(view.size)
        if block:
            options["block"] = block
        parameters = {**self._native_parameters, **options}
        return _core.encode(view, base=base, row=self._row(buf), **parameters)

    def decode(self, buf: Any, out: Any = None, base: Any = None) -> Any:
        """Decode a frame of any codec of this package, as `bf16codecs.decode` does.

        A codec with steps decodes all versions of a growing frame; those that are missing yet
        become bytes of 255, which are NaN.

        Parameters
        ----------
        buf : buffer
            The frame.
        out : writable buffer or array, optional
            Where to put the decoded bytes: contiguous, and of exactly their size.
        base : buffer or array, optional
            The base of the frame, if `bf16codecs.encode_delta` made it.

        Returns
        -------
        bytes, or `out` if it was given

        Raises
        ------
        bf16codecs.errors.CodecError
            If `buf` is not an intact frame, needs another base, or is a growing one for another
            number of steps.
        ValueError
            If `out` has another size, is not contiguous, or is read-only.
        """
        try:
            return self._decode(byte_view(buf), out, base)
        except CodecError as e:
            raise_named(e)

    def _decode(self, frame: Bytes, out: Any, base: Any) -> Any:
        is_padded = self.steps > 1 and _core.is_growing(frame)
        if is_padded and _core.GrowingIndex(frame).room != self.steps:
            raise CorruptDataError(
                f"the growing frame has room for {_core.GrowingIndex(frame).room} versions, and"
                f" the codec has steps={self.steps}"
            )
        return _decode(frame, out, base, is_padded)


def encode_delta(codec: FrameCodec, buf: Any, base: Any) -> bytes:
    """Encode a buffer as a frame of its differences to a base.

    Each number is coded given the base's number with the same index: a checkpoint takes much less
    given another of the same run, as does a fine-tuned model given the original. The frame has the
    base's digest, and `decode` needs the same bytes again.

    Parameters
    ----------
    codec : codec of this package
        Its `dtype` names the type of the numbers. At level "best", the differences may have
        scales of rows and columns.
    buf, base : buffer or array
        Any contiguous memory, as `FrameCodec.encode` takes it, of the same size.

    Returns
    -------
    bytes
        The frame, in format version 2.

    Raises
    ------
    TypeError
        If `codec` is no codec of this package, or `buf` or `base` is no buffer.
    ValueError
        If `base` has another size, is an array of another type of floating-point numbers or of
        another byte order, or is not contiguous; or if the codec splits by byte or has steps.

    Examples
    --------
    >>> import numpy as np
    >>> import bf16codecs
    >>> base = np.linspace(1, 2, 100_000, dtype="f4")
    >>> frame = bf16codecs.encode_delta(bf16codecs.BF16Arithmetic("float32"), base * 1.0001, base)
    >>> len(frame) < 0.6 * base.nbytes
    True
    >>> restored = np.frombuffer(bf16codecs.decode(frame, base=base), "f4")
    >>> bool((restored == base * 1.0001).all())
    True
    """
    if not isinstance(codec, FrameCodec):
        raise TypeError(f"codec must be a codec of bf16codecs, not {type(codec).__name__}")
    if codec.steps > 1:
        raise ValueError(
            f"a codec with steps={codec.steps} takes bases from the buffer itself: encode the"
            " differences to another one with steps=1"
        )
    buf, base = as_array(buf), as_array(base)
    dtype = buf.dtype if isinstance(buf, np.ndarray) else None
    if dtype is not None:
        codec.warn_of_other(dtype)
    return encode_version(codec.for_dtype(dtype), buf, base)


def encode_version(codec: FrameCodec, buf: Any, base: Any = None, block: int = 0) -> bytes:
    """Encode one version with a codec without steps, whose dtype is settled, alone or to a base.

    Its blocks have `block` items, or as many as by default if that is 0.
    """
    if base is None:
        return codec._encode(buf, block=block)
    check_same_dtype(buf, base)
    return codec._encode(buf, byte_view(base, "base"), block)


def decode(buf: Any, out: Any = None, base: Any = None) -> Any:
    """Decode a frame of any codec of this package.

    Parameters
    ----------
    buf : buffer
        The frame. The existing versions of a growing one are decoded, one after the other.
    out : writable buffer or array, optional
        Where to put the decoded bytes: contiguous, and of exactly their size. It may be `base`
        itself, which is then decoded in place; if the frame is damaged, the base is lost.
    base : buffer or array, optional
        The base of the frame, if `encode_delta` made it. Other frames need none.

    Returns
    -------
    bytes, or `out` if it was given

    Raises
    ------
    bf16codecs.errors.CodecError
        If `buf` is not an intact frame.
    bf16codecs.errors.BaseMismatchError
        If it needs a base, and `base` is missing or another. Nothing is written then.
    ValueError
        If `out` has another size, is not contiguous, or is read-only.

    Examples
    --------
    >>> import bf16codecs
    >>> bf16codecs.decode(bf16codecs.BF16Huffman().encode(b"weights"))
    b'weights'
    """
    return _decode(byte_view(buf), out, base, False)


def _decode(frame: Bytes, out: Any, base: Any, padded: bool) -> Any:
    """Decode a frame, a growing one with or without its missing versions."""
    base_bytes = None if base is None else byte_view(base, "base")
    if out is None:
        return _core.decode(frame, base_bytes, padded)
    out_bytes = writable_byte_view(out)
    if base_bytes is not None and is_shifted(base_bytes, out_bytes):
        base_bytes = base_bytes.copy()
    _core.decode_into(frame, out_bytes, base_bytes, padded)
    return out


def stated_size(frame: Bytes) -> int:
    """Return the decoded size that a frame claims; of a growing one, with all versions."""
    if _core.is_growing(frame):
        return _core.GrowingIndex(frame).raw_size
    return _core.Index(frame).raw_size


def decode_array(buf: Any, most: int | None = None) -> Bytes:
    """Decode a frame into a new array of bytes; refuse one that claims more than `most` bytes.

    A growing frame is decoded with all its versions; as a few bytes claim many, it needs a `most`.
    The memory may have been that of an earlier array: fresh pages cost more than decoding.
    """
    frame = byte_view(buf)
    size = stated_size(frame)
    if most is None and _core.is_growing(frame):
        raise CorruptDataError("a growing frame where a chunk may have any size")
    if most is not None and size > most:
        raise CorruptDataError(f"a frame of {size} bytes where a chunk has {most} at most")
    out = CHUNK_MEMORY.array(size)
    _core.decode_into(frame, out, padded=True)
    return out


def inspect(buf: Any) -> dict[str, Any]:
    """Return a frame's codec, data type, sizes, blocks and the modes of their planes, undecoded.

    Parameters
    ----------
    buf : buffer
        The frame.

    Returns
    -------
    dict
        ``version``, ``codec``, ``dtype``, ``by``, ``checksum``, ``raw_size`` and
        ``encoded_size`` in bytes, ``block_items``, and ``blocks``: for each, its ``items``,
        ``offset`` and ``size`` in the frame, ``checksum``, and its ``planes`` with ``mode`` and
        ``size``. A frame of differences also has ``steps``, how many versions it holds, their
        ``parents``, and ``base``, the digest of a base that it needs, or None. A growing frame has
        the ``codec`` ``"growing"``, its room for versions as ``steps``, the ``parents`` of the
        existing versions, and instead of ``blocks`` it has ``frames``: the same dict of each
        version's frame, and its ``offset``.

    Raises
    ------
    bf16codecs.errors.CodecError
        If `buf` is not a frame, or is cut off.

    Examples
    --------
    >>> import bf16codecs
    >>> bf16codecs.inspect(bf16codecs.BF16Huffman().encode(bytes(1000)))["codec"]
    'huffman'
    """
    return _core.inspect(byte_view(buf))
