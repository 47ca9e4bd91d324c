"""The codec classes, for numcodecs and for ``compressors=`` of both Zarr formats.

zarr-python knows two kinds of codec object and converts neither into the other: format 2
takes a `numcodecs.abc.Codec`, format 3 takes its own classes, or a dict with a codec's name
and configuration. The classes here are both at once, a numcodecs codec that *is* that dict.
So one object serves either format, in every call that takes a codec.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numcodecs.abc import Codec

from bf16codecs import _core
from bf16codecs._buffers import DTYPES, byte_view, dtype_name, row_length
from bf16codecs._frames import decode, decode_array, inspect

__all__ = [
    "CODECS",
    "BF16Arithmetic",
    "BF16Huffman",
    "BF16Split",
    "BF16Zstd",
    "FrameCodec",
    "bound",
    "decode",
    "decode_array",
    "inspect",
]


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(f"{type(self).__name__} is immutable")


class _FrozenDict(dict[str, Any]):
    """A dict whose contents cannot change, so that a codec stays what its encoded data say."""

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


class FrameCodec(Codec, _FrozenDict):
    """What the codecs of this package share: one frame per encoded buffer.

    Not to be instantiated itself. As a dict it reads ``{"name": codec_id, "configuration":
    {...}}``, which is the codec's metadata in Zarr format 3. It cannot be changed.

    Stored metadata name the subclasses' parameters: these keep their names, order and defaults,
    and a new one comes last, with a default that means what was before.
    """

    codec_id: ClassVar[str]
    _native_codec: ClassVar[int]

    def __init__(self, **parameters: Any) -> None:
        dict.__init__(self, name=self.codec_id, configuration=_FrozenDict(parameters))

    @property
    def dtype(self) -> str:
        """The element layout that splits bytes into planes."""
        return self["configuration"]["dtype"]

    def _native_parameters(self, buf: Any) -> dict[str, Any]:
        """Arguments of the native encoder besides codec and data type."""
        return {"checksum": self["configuration"]["checksum"]}

    def encode(self, buf: Any) -> bytes:
        """Encode a buffer as one frame.

        Parameters
        ----------
        buf : buffer or array
            Any contiguous memory, in C or Fortran order; its bytes are encoded as they lie.
            ml_dtypes arrays, and arrays of another item size than `dtype`'s, are welcome.

        Returns
        -------
        bytes
            The frame. It depends on `buf` and the codec's parameters alone.
        """
        return _core.encode(
            byte_view(buf), self._native_codec, DTYPES[self.dtype], **self._native_parameters(buf)
        )

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a frame: the same as `bf16codecs.decode`, since frames describe themselves.

        Parameters
        ----------
        buf : buffer
            The frame.
        out : writable buffer or array, optional
            Where to put the decoded bytes: contiguous, and of exactly their size.

        Returns
        -------
        bytes, or `out` if it was given
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
            raise ValueError(f"configuration is for {codec_id!r}, not {cls.codec_id!r}")
        unknown = parameters.keys() - cls()["configuration"].keys()
        if unknown:
            names = ", ".join(sorted(map(repr, unknown)))
            raise ValueError(f"{cls.codec_id}: unknown configuration: {names}")
        return cls(**parameters)

    # numcodecs compares configurations and defines no hash; the dict's contents hold them.
    __eq__ = dict.__eq__

    def __hash__(self) -> int:  # type: ignore[override]
        return hash((self.codec_id, *self["configuration"].items()))

    def __repr__(self) -> str:
        parameters = ", ".join(f"{k}={v!r}" for k, v in self["configuration"].items())
        return f"{type(self).__name__}({parameters})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_config, (dict(self["configuration"]),)


class BF16Split(FrameCodec):
    """Separate the byte planes of floating-point numbers, without compressing them.

    Parameters
    ----------
    dtype : str
        How an element's bytes become planes: ``bfloat16``, ``float16``, ``float32``,
        ``float64``, ``float8_e4m3fn`` or ``float8_e5m2``. Any bytes round-trip, whatever it is.
    by : {"field", "byte"}
        ``"field"`` splits bfloat16 into its exponents, then its signs and mantissas;
        ``"byte"`` into its high bytes, then its low bytes.

    Examples
    --------
    >>> import numpy as np
    >>> codec = BF16Split()
    >>> bytes(codec.decode(codec.encode(b"abcdef")))
    b'abcdef'
    """

    codec_id = "bf16codecs.split"
    _native_codec = 1

    def __init__(self, dtype: str = "bfloat16", by: str = "field") -> None:
        if not isinstance(by, str):
            raise TypeError(f"by must be a string, not {type(by).__name__}")
        if by not in ("field", "byte"):
            raise ValueError(f"by must be 'field' or 'byte', not {by!r}")
        super().__init__(dtype=dtype_name(dtype), by=by)

    @property
    def by(self) -> str:
        """Where an element is cut: ``"field"`` or ``"byte"``."""
        return self["configuration"]["by"]

    def _native_parameters(self, buf: Any) -> dict[str, Any]:
        return {"by_byte": self.by == "byte"}


class _ChecksumCodec(FrameCodec):
    """A codec whose frames may carry a checksum of every block's decoded bytes."""

    @property
    def checksum(self) -> bool:
        """Whether frames carry checksums, which decoding verifies."""
        return self["configuration"]["checksum"]


class BF16Huffman(_ChecksumCodec):
    """Compress floating-point numbers with canonical, block-adaptive Huffman codes.

    Planes on which a code does not pay, mantissas mostly, are stored as they are.

    Parameters
    ----------
    dtype : str
        How an element's bytes become planes: ``bfloat16``, ``float16``, ``float32``,
        ``float64``, ``float8_e4m3fn`` or ``float8_e5m2``. Any bytes round-trip, whatever it is.
    checksum : bool
        Store a checksum per block, and verify it when decoding.

    Examples
    --------
    >>> import ml_dtypes
    >>> import numpy as np
    >>> weights = np.random.default_rng(0).normal(0, 0.02, 100_000).astype(ml_dtypes.bfloat16)
    >>> codec = BF16Huffman()
    >>> frame = codec.encode(weights)
    >>> len(frame) < 0.68 * weights.nbytes
    True
    >>> restored = np.empty_like(weights)
    >>> _ = codec.decode(frame, out=restored)
    >>> bool((restored.view("u2") == weights.view("u2")).all())
    True
    """

    codec_id = "bf16codecs.huffman"
    _native_codec = 2

    def __init__(self, dtype: str = "bfloat16", checksum: bool = True) -> None:
        super().__init__(dtype=dtype_name(dtype), checksum=_flag("checksum", checksum))


class BF16Arithmetic(_ChecksumCodec):
    """Compress floating-point numbers with an interleaved range coder (rANS).

    Parameters
    ----------
    dtype : str
        How an element's bytes become planes: ``bfloat16``, ``float16``, ``float32``,
        ``float64``, ``float8_e4m3fn`` or ``float8_e5m2``. Any bytes round-trip, whatever it is.
    level : {"fast", "best"}
        ``"fast"`` codes the exponent plane, at the speed of memory. ``"best"`` models exponents
        and mantissas by the scales of rows and columns, for the smallest output, at a twentieth
        of the speed. It takes rows from an array's shape; of plain bytes it looks for them.
    checksum : bool
        Store a checksum per block, and verify it when decoding.

    Examples
    --------
    >>> codec = BF16Arithmetic()
    >>> codec
    BF16Arithmetic(dtype='bfloat16', level='fast', checksum=True)
    >>> codec.decode(codec.encode(bytes(1000))) == bytes(1000)
    True
    """

    codec_id = "bf16codecs.arithmetic"
    _native_codec = 3
    _levels: ClassVar[dict[str, int]] = {"fast": 0, "best": 1}

    def __init__(self, dtype: str = "bfloat16", level: str = "fast", checksum: bool = True) -> None:
        if not isinstance(level, str):
            raise TypeError(f"level must be a string, not {type(level).__name__}")
        if level not in self._levels:
            raise ValueError(f"level must be 'fast' or 'best', not {level!r}")
        super().__init__(dtype=dtype_name(dtype), level=level, checksum=_flag("checksum", checksum))

    @property
    def level(self) -> str:
        """How hard to try: ``"fast"`` or ``"best"``."""
        return self["configuration"]["level"]

    def _native_parameters(self, buf: Any) -> dict[str, Any]:
        parameters = {**super()._native_parameters(buf), "level": self._levels[self.level]}
        if self.level == "best":
            parameters["row"] = row_length(buf, self.dtype)
        return parameters


class BF16Zstd(_ChecksumCodec):
    """Compress floating-point numbers with a byte shuffle and Zstandard.

    Parameters
    ----------
    level : int
        Zstandard's compression level, 1 to 22.
    dtype : str
        How an element's bytes become planes: ``bfloat16``, ``float16``, ``float32``,
        ``float64``, ``float8_e4m3fn`` or ``float8_e5m2``. Any bytes round-trip, whatever it is.
    checksum : bool
        Store a checksum per block, and verify it when decoding.

    Examples
    --------
    >>> codec = BF16Zstd(level=9)
    >>> codec.get_config()
    {'id': 'bf16codecs.zstd', 'level': 9, 'dtype': 'bfloat16', 'checksum': True}
    >>> codec.decode(codec.encode(bytes(1000))) == bytes(1000)
    True
    """

    codec_id = "bf16codecs.zstd"
    _native_codec = 4

    def __init__(self, level: int = 3, dtype: str = "bfloat16", checksum: bool = True) -> None:
        super().__init__(
            level=_zstd_level(level),
            dtype=dtype_name(dtype),
            checksum=_flag("checksum", checksum),
        )

    @property
    def level(self) -> int:
        """Zstandard's compression level."""
        return self["configuration"]["level"]

    def _native_parameters(self, buf: Any) -> dict[str, Any]:
        return {**super()._native_parameters(buf), "level": self.level}


#: The codec classes by the short names that commands and `bound` take.
CODECS: dict[str, type[FrameCodec]] = {
    cls.codec_id.removeprefix("bf16codecs."): cls
    for cls in (BF16Split, BF16Huffman, BF16Arithmetic, BF16Zstd)
}


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def _zstd_level(level: Any) -> int:
    if isinstance(level, (bool, np.bool_)) or not hasattr(level, "__index__"):
        raise TypeError(f"level must be an integer, not {type(level).__name__}")
    level = operator.index(level)
    if not 1 <= level <= 22:
        raise ValueError(f"level must be between 1 and 22, not {level}")
    return level


def bound(nbytes: int, codec: FrameCodec | str) -> int:
    """Return the largest size that `nbytes` bytes can have once encoded.

    Parameters
    ----------
    nbytes : int
        Number of bytes to encode.
    codec : codec or str
        A codec of this package, or the name of one, such as ``"huffman"``.

    Examples
    --------
    >>> bound(1000, BF16Zstd()) >= 1000
    True
    """
    nbytes = operator.index(nbytes)
    if nbytes < 0:
        raise ValueError(f"nbytes must not be negative, and is {nbytes}")
    if isinstance(codec, str):
        name = codec.removeprefix("bf16codecs.")
        if name not in CODECS:
            raise ValueError(f"codec must be one of {', '.join(CODECS)}, not {codec!r}")
        codec = CODECS[name]()
    if not isinstance(codec, FrameCodec):
        raise TypeError(f"codec must be a codec of bf16codecs or its name, not {codec!r}")
    return _core.bound(nbytes, codec._native_codec, DTYPES[codec.dtype])
