"""Plain Zstandard frames, as Zarr and HDF5 have them, decoded into memory of known size."""

from __future__ import annotations

import numpy as np
from numcodecs import Zstd
from numpy.typing import NDArray

from bf16codecs.errors import CorruptDataError

__all__ = ["decode_zstd"]


def decode_zstd(stored: NDArray[np.uint8], chunk: NDArray[np.uint8]) -> None:
    """Decode a Zstandard frame that has the chunk's size."""
    # numcodecs' `out=` accepts a frame that is shorter than it, and leaves the rest as it was.
    size = _content_size(stored[:18].tobytes())
    if size is not None and size != chunk.size:
        raise CorruptDataError(f"the frame holds {size} bytes, the chunk {chunk.size}")
    content = np.frombuffer(Zstd().decode(stored), np.uint8)
    if content.size != chunk.size:
        raise CorruptDataError(f"the frame holds {content.size} bytes, the chunk {chunk.size}")
    chunk[:] = content


def _content_size(head: bytes) -> int | None:
    """Return what a Zstandard frame says of its content's size (RFC 8878, section 3.1.1.1)."""
    if len(head) < 6 or head[:4] != b"\x28\xb5\x2f\xfd":
        raise CorruptDataError("not a Zstandard frame")
    single, width = head[4] >> 5 & 1, (0, 2, 4, 8)[head[4] >> 6]
    width = width or single
    start = 5 + (1 - single) + (0, 1, 2, 4)[head[4] & 3]
    size = int.from_bytes(head[start : start + width], "little")
    return None if width == 0 else size + (256 if width == 2 else 0)
