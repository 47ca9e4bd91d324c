"""The codec of run lengths, which works on bytes and writes no frames."""

from __future__ import annotations

from typing import Any

from bf16codecs import _core
from bf16codecs._base.buffers import CHUNK_MEMORY, Bytes, byte_view, writable_byte_view
from bf16codecs._base.names import RUN_LENGTH_ID
from bf16codecs.codecs.frames import ConfiguredCodec
from bf16codecs.errors import CorruptDataError

__all__ = ["RunLength", "decode_array"]


class RunLength(ConfiguredCodec):
    r"""Shorten runs of five or more equal bytes.

    Zeros shrink to an 85th of their size. Where there are no runs, bytes of 255 take two: random
    bytes grow by a 256th, and any by half at most. There is no checksum.

    Examples
    --------
    >>> codec = RunLength()
    >>> encoded = codec.encode(bytes(200) + b"weights")
    >>> encoded
    b'\xff\xc8\x00weights'
    >>> codec.decode(encoded) == bytes(200) + b"weights"
    True
    """

    codec_id = RUN_LENGTH_ID

    def __init__(self) -> None:
        super().__init__()

    def encode(self, buf: Any) -> bytes:
        """Encode a buffer.

        Parameters
        ----------
        buf : buffer or array
            Any contiguous memory, in C or Fortran order; its bytes are encoded in memory order.

        Returns
        -------
        bytes
            At most half as many again as in `buf`.
        """
        return _core.rle_encode(byte_view(buf))

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode what `encode` returned.

        Parameters
        ----------
        buf : buffer
            The encoded bytes.
        out : writable buffer or array, optional
            Where to put the decoded bytes: contiguous, and of exactly their size.

        Returns
        -------
        bytes, or `out` if it was given

        Raises
        ------
        bf16codecs.errors.CodecError
            If `buf` ends within a run, or has a count that no run has. Other damage is not noticed.
        ValueError
            If `out` has another size, is not contiguous, or is read-only.
        """
        encoded = byte_view(buf)
        if out is None:
            return _core.rle_decode(encoded)
        _core.rle_decode_into(encoded, writable_byte_view(out))
        return out


def decode_array(buf: Any, most: int | None = None) -> Bytes:
    """Decode into a new array of at most `most` bytes."""
    encoded = byte_view(buf)
    size = _core.rle_decoded_size(encoded)
    if most is not None and size > most:
        raise CorruptDataError(f"runs of {size} bytes where a chunk has {most} at most")
    out = CHUNK_MEMORY.array(size)
    _core.rle_decode_into(encoded, out)
    return out
