"""What holds for every frame: decoding, inspection, and what the codec classes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numcodecs.abc import Codec

from bf16codecs import _core
from bf16codecs._buffers import Bytes, byte_view, writable_byte_view
from bf16codecs.errors import CorruptDataError

__all__ = ["PREFIX", "FrameCodec", "decode", "decode_array", "inspect"]

#: What the ids of this package's codecs begin with.
PREFIX = "bf16codecs."


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


class FrameCodec(Codec, FrozenDict):
    """What the codecs of this package share: one frame per encoded buffer.

    Use its subclasses. As a dict it is ``{"name": codec_id, "configuration": {...}}``, the
    codec's metadata in Zarr format 3. It is immutable.

    Stored metadata contain the subclasses' parameters. So these keep their names, order and
    defaults; a new one comes last, with a default that keeps the old behaviour.
    """

    codec_id: ClassVar[str]

    def __init__(self, **parameters: Any) -> None:
        dict.__init__(self, name=self.codec_id, configuration=FrozenDict(parameters))

    @property
    def number(self) -> int:
        """The codec's number in the native core and in frames."""
        return _core.CODECS[self.codec_id.removeprefix(PREFIX)]

    @property
    def dtype(self) -> str:
        """The element layout: how an item's bytes become planes."""
        return self["configuration"]["dtype"]

    def _native_parameters(self, buf: Any) -> dict[str, Any]:
        """Arguments of the native encoder besides codec and data type."""
        return {"checksum": self["configuration"]["checksum"]}

    def encode(self, buf: Any) -> bytes:
        """Encode a buffer as one frame.

        Parameters
        ----------
        buf : buffer or array
            Any contiguous memory, in C or Fortran order; its bytes are encoded in memory order.
            Arrays of ml_dtypes, or of another item size than that of `dtype`, are taken too.

        Returns
        -------
        bytes
            The frame. It depends only on `buf` (at level "best" on its shape too) and the codec's
            parameters.
        """
        return _core.encode(
            byte_view(buf), self.number, _core.DTYPES[self.dtype], **self._native_parameters(buf)
        )

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a frame of any codec of this package, as `bf16codecs.decode` does.

        Parameters
        ----------
        buf : buffer
            The frame.
        out : writable buffer or array, optional
            Where to put the decoded bytes: contiguous, and of exactly their size.

        Returns
        -------
        bytes, or `out` if it was given

        Raises
        ------
        bf16codecs.errors.CodecError
            If `buf` is not an intact frame.
        ValueError
            If `out` has another size, is not contiguous, or is read-only.
        """
        return decode(buf, out)

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
        unknown = parameters.keys() - cls()["configuration"].keys()
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


def decode(buf: Any, out: Any = None) -> Any:
    """Decode a frame of any codec of this package.

    Parameters
    ----------
    buf : buffer
        The frame.
    out : writable buffer or array, optional
        Where to put the decoded bytes: contiguous, and of exactly their size.

    Returns
    -------
    bytes, or `out` if it was given

    Raises
    ------
    bf16codecs.errors.CodecError
        If `buf` is not an intact frame.
    ValueError
        If `out` has another size, is not contiguous, or is read-only.

    Examples
    --------
    >>> import bf16codecs
    >>> bf16codecs.decode(bf16codecs.BF16Huffman().encode(b"weights"))
    b'weights'
    """
    frame = byte_view(buf)
    if out is None:
        return _core.decode(frame)
    _core.decode_into(frame, writable_byte_view(out))
    return out


def decode_array(buf: Any, most: int | None = None) -> Bytes:
    """Decode a frame into a new array of bytes, which it must not claim to have more than `most`.

    NumPy asks for huge pages for large arrays, so writing this one for the first time costs
    fewer page faults than the `bytes` that `decode` returns.
    """
    frame = byte_view(buf)
    size = _core.Index(frame).raw_size
    if most is not None and size > most:
        raise CorruptDataError(f"a frame of {size} bytes where a chunk has {most} at most")
    out = np.empty(size, np.uint8)
    _core.decode_into(frame, out)
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
        ``encoded_size`` in bytes, ``block_items``, and ``blocks``: of each its ``items``,
        ``offset`` and ``size`` in the frame, ``checksum``, and its ``planes`` with ``mode`` and
        ``size``.

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
