"""Frames of any codec: decoding and inspecting them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._buffers import byte_view, writable_byte_view

__all__ = ["decode", "decode_array", "inspect"]


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
        If `out` is of another size, not contiguous, or read-only.

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


def decode_array(buf: Any) -> NDArray[np.uint8]:
    """Decode a frame into a new array of bytes.

    NumPy asks for huge pages for large arrays, so writing this one for the first time costs
    fewer page faults than the `bytes` that `decode` returns.
    """
    frame = byte_view(buf)
    out = np.empty(_core.Index(frame).raw_size, np.uint8)
    _core.decode_into(frame, out)
    return out


def inspect(buf: Any) -> dict[str, Any]:
    """Tell a frame's codec, data type, sizes, blocks and per-plane modes, without decoding it.

    Examples
    --------
    >>> import bf16codecs
    >>> bf16codecs.inspect(bf16codecs.BF16Huffman().encode(bytes(1000)))["codec"]
    'huffman'
    """
    return _core.inspect(byte_view(buf))
