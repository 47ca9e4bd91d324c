"""The codec classes, for numcodecs and for ``compressors=`` of both Zarr formats.

zarr-python knows two kinds of codec object and converts neither into the other: format 2
takes a `numcodecs.abc.Codec`, format 3 takes its own classes, or a dict with a codec's name
and configuration. The classes here are both at once, a numcodecs codec that *is* that dict.
So one object serves either format, in every call that takes a codec.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from bf16codecs import _core
from bf16codecs._base.arguments import as_integer, one_of
from bf16codecs._base.buffers import AUTO, dtype_name, row_length
from bf16codecs._base.names import ARITHMETIC_ID, HUFFMAN_ID, PREFIX, SPLIT_ID, ZSTD_ID, ZSTD_LEVELS
from bf16codecs.codecs.frames import FrameCodec, decode, decode_array, encode_delta, inspect
from bf16codecs.codecs.run_length import RunLength

__all__ = [
    "CODECS",
    "BF16Arithmetic",
    "BF16Huffman",
    "BF16Split",
    "BF16Zstd",
    "FrameCodec",
    "RunLength",
    "bound",
    "decode",
    "decode_array",
    "encode_delta",
    "inspect",
]


class BF16Split(FrameCodec):
    """Separate the byte planes of floating-point numbers without compressing them.

    Parameters
    ----------
    dtype : str
        How an item's bytes become planes: ``bfloat16``, ``float16``, ``float32``,
        ``float64``, ``float8_e4m3fn`` or ``float8_e5m2``; or ``"auto"``, which takes that of the
        array (``bfloat16`` for bytes). Any bytes round-trip, whatever it is.
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

    codec_id = SPLIT_ID

    def __init__(self, dtype: str = "bfloat16", by: str = "field") -> None:
        super().__init__(dtype=dtype_name(dtype), by=one_of("by", by, ("field", "byte")))

    @property
    def by(self) -> str:
        """How an item is split: ``"field"`` or ``"byte"``."""
        return self["configuration"]["by"]

    def _parameters(self) -> dict[str, Any]:
        return {"by_byte": self.by == "byte"}


class _ChecksumCodec(FrameCodec):
    """A codec whose frames may carry a checksum of every block's decoded bytes."""

    @property
    def checksum(self) -> bool:
        """Whether frames carry checksums, which decoding verifies."""
        return self["configuration"]["checksum"]


class _StepsCodec(_ChecksumCodec):
    """A codec whose frames may hold versions, each coded against an earlier one, and grids."""

    _left_out = frozenset({"steps", "grid"})

    @property
    def grid(self) -> bool:
        """Whether frames may hold levels and scales of weights that were quantised once."""
        return self["configuration"].get("grid", True)

    def _parameters(self) -> dict[str, Any]:
        return {
            **super()._parameters(),
            "steps": self.steps,
            "may_drop_steps": True,
            "grid": self.grid,
        }

    def _row(self, buf: Any) -> int:
        return row_length(buf, self.dtype, self.steps) if self.grid else 0


class BF16Huffman(_StepsCodec):
    """Compress floating-point numbers with canonical, block-adaptive Huffman codes.

    Planes for which a code does not pay, mostly mantissas, are stored.

    Parameters
    ----------
    dtype : str
        How an element's bytes become planes: ``bfloat16``, ``float16``, ``float32``,
        ``float64``, ``float8_e4m3fn`` or ``float8_e5m2``; or ``"auto"``, which takes that of the
        array (``bfloat16`` for bytes). Any bytes round-trip, whatever it is.
    checksum : bool
        Store a checksum per block, and verify it when decoding.
    steps : int
        How many equally long versions a buffer holds, 1 to 65534. Each is coded against an earlier
        one: of weights over time, or a field of a simulation, what differs takes less.
    grid : bool
        Look for weights that were quantised once, to FP8 or INT4 for instance, and multiplied out
        again: frames then hold the levels and scales. False writes none, for readers of releases
        that do not know them.

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

    codec_id = HUFFMAN_ID

    def __init__(
        self, dtype: str = "bfloat16", checksum: bool = True, steps: int = 1, grid: bool = True
    ) -> None:
        super().__init__(
            dtype=dtype_name(dtype),
            checksum=_checked_bool("checksum", checksum),
            **_steps(steps),
            **_grid(grid),
        )


class BF16Arithmetic(_StepsCodec):
    """Compress floating-point numbers with an interleaved range coder (rANS).

    Parameters
    ----------
    dtype : str
        How an element's bytes become planes: ``bfloat16``, ``float16``, ``float32``,
        ``float64``, ``float8_e4m3fn`` or ``float8_e5m2``; or ``"auto"``, which takes that of the
        array (``bfloat16`` for bytes). Any bytes round-trip, whatever it is.
    level : {"fast", "best"}
        ``"fast"`` codes the exponent plane, at the speed of memory. ``"best"`` models exponents
        and mantissas by the scales of rows and columns, for the smallest output, at a fifth to a
        half of the speed. It takes the row length from an array's shape, and estimates that of
        plain bytes.
    checksum : bool
        Store a checksum per block, and verify it when decoding.
    steps : int
        How many equally long versions a buffer holds, 1 to 65534. Each is coded against an earlier
        one: of weights over time, or a field of a simulation, what differs takes less.
    grid : bool
        Look for weights that were quantised once, to FP8 or INT4 for instance, and multiplied out
        again: frames then hold the levels and scales. False writes none, for readers of releases
        that do not know them.

    Examples
    --------
    >>> codec = BF16Arithmetic()
    >>> codec
    BF16Arithmetic(dtype='bfloat16', level='fast', checksum=True)
    >>> codec.decode(codec.encode(bytes(1000))) == bytes(1000)
    True

    A field at 24 times, each of which is like the one before:

    >>> import numpy as np
    >>> noise = np.random.default_rng(0).normal(0, 0.001, (24, 5000)).cumsum(axis=0)
    >>> field = (280 + np.linspace(0, 9, 5000) + noise).astype("f4")
    >>> in_steps = BF16Arithmetic("float32", steps=24).encode(field)
    >>> len(in_steps) < 0.7 * len(BF16Arithmetic("float32").encode(field))
    True
    """

    codec_id = ARITHMETIC_ID

    def __init__(
        self,
        dtype: str = "bfloat16",
        level: str = "fast",
        checksum: bool = True,
        steps: int = 1,
        grid: bool = True,
    ) -> None:
        super().__init__(
            dtype=dtype_name(dtype),
            level=one_of("level", level, _core.LEVELS),
            checksum=_checked_bool("checksum", checksum),
            **_steps(steps),
            **_grid(grid),
        )

    @property
    def level(self) -> str:
        """The level, ``"fast"`` or ``"best"``."""
        return self["configuration"]["level"]

    def _parameters(self) -> dict[str, Any]:
        return {**super()._parameters(), "level": _core.LEVELS[self.level]}

    def _row(self, buf: Any) -> int:
        if self.grid or self.level == "best":
            return row_length(buf, self.dtype, self.steps)
        return 0


class BF16Zstd(_ChecksumCodec):
    """Compress the byte planes of floating-point numbers with Zstandard.

    Parameters
    ----------
    level : int
        Zstandard's compression level, 1 to 22.
    dtype : str
        How an element's bytes become planes: ``bfloat16``, ``float16``, ``float32``,
        ``float64``, ``float8_e4m3fn`` or ``float8_e5m2``; or ``"auto"``, which takes that of the
        array (``bfloat16`` for bytes). Any bytes round-trip, whatever it is.
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

    codec_id = ZSTD_ID

    def __init__(self, level: int = 3, dtype: str = "bfloat16", checksum: bool = True) -> None:
        super().__init__(
            level=as_integer("level", level, ZSTD_LEVELS),
            dtype=dtype_name(dtype),
            checksum=_checked_bool("checksum", checksum),
        )

    @property
    def level(self) -> int:
        """Zstandard's compression level."""
        return self["configuration"]["level"]

    def _parameters(self) -> dict[str, Any]:
        is_larger = self.level in _LARGER_BLOCKS and _core.ITEM_SIZES[self.dtype] == 2
        block = _LARGER_BLOCK if is_larger else 0
        return {**super()._parameters(), "level": self.level, "block": block}


# Zstandard searches in another way beyond 256 KiB, the planes of a block of the default size. At
# these levels, weights in planes of twice that take 0.5 to 1.5 % less, and no more time; at the
# others up to 3 % more (docs/design_codecs.md). Items of other sizes would gain less, 0.2 to 0.6 %.
_LARGER_BLOCKS = {1, 2, 3, 7, 8, 9, 10, 11, 12}
_LARGER_BLOCK = 1 << 19

#: The codec classes of frames by the short names that commands and `bound` take.
CODECS: dict[str, type[FrameCodec]] = {
    cls.codec_id.removeprefix(PREFIX): cls
    for cls in (BF16Split, BF16Huffman, BF16Arithmetic, BF16Zstd)
}


def _checked_bool(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def _grid(grid: Any) -> dict[str, bool]:
    return {} if _checked_bool("grid", grid) else {"grid": False}


def _steps(steps: Any) -> dict[str, int]:
    """Return the parameter, or none where it is 1: as configurations were before there was one."""
    steps = as_integer("steps", steps, range(1, _core.MAX_STEPS + 1))
    return {} if steps == 1 else {"steps": steps}


def bound(nbytes: int, codec: FrameCodec | RunLength | str) -> int:
    """Return the largest possible size of `nbytes` bytes once `codec.encode` has encoded them.

    A frame of `encode_delta` may have 16 bytes more, and 4 for each block.

    Parameters
    ----------
    nbytes : int
        Number of bytes to encode.
    codec : codec or str
        A codec of this package, or the name of one that writes frames, such as ``"huffman"``.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    TypeError
        If `nbytes` is no integer, or `codec` no codec.
    ValueError
        If `nbytes` is negative or more than any buffer has, or no codec has that name.

    Examples
    --------
    >>> bound(1000, BF16Zstd()) >= 1000
    True
    """
    nbytes = as_integer("nbytes", nbytes)
    if nbytes > sys.maxsize:
        raise ValueError(f"no buffer has {nbytes} bytes")
    if nbytes < 0:
        raise ValueError(f"nbytes must not be negative, got {nbytes}")
    if isinstance(codec, str):
        name = codec.removeprefix(PREFIX)
        if name not in CODECS:
            raise ValueError(f"codec must be one of {', '.join(CODECS)}, not {codec!r:.80}")
        codec = CODECS[name]()
    if isinstance(codec, RunLength):
        return nbytes + (nbytes + 1) // 2
    if not isinstance(codec, FrameCodec):
        raise TypeError(f"codec must be a codec of bf16codecs or its name, not {codec!r}")
    number, steps = codec.number, codec.steps
    layouts = _core.DTYPES.values() if codec.dtype == AUTO else [_core.DTYPES[codec.dtype]]
    return max(_core.bound(nbytes, number, layout, steps=steps) for layout in layouts)
