"""Float16 numbers as differences of their bits, which run lengths or DEFLATE make smaller.

docs/store.md, "Lossy stores", is the normative description.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from numcodecs import Delta, Zlib
from numcodecs.abc import Codec
from numcodecs.checksum32 import CRC32C

from bf16codecs._base.buffers import Bytes
from bf16codecs._base.names import DELTA_ID
from bf16codecs.codecs import RunLength

__all__ = ["DeltaChain"]

_DELTA = "<u2"
_GZIP_HEADER = 16 + zlib.MAX_WBITS


@dataclass(frozen=True)
class DeltaChain:
    """Differences, followed by DEFLATE of a level, or by run lengths if the level is None."""

    level: int | None

    def encode(self, chunk: Bytes, zarr_format: int) -> bytes:
        """Encode a chunk as a format of Zarr stores it."""
        differences = Delta(_DELTA).encode(chunk)
        if self.level is None:
            runs = RunLength().encode(differences)
            return runs if zarr_format == 2 else CRC32C(location="end").encode(runs).tobytes()
        # Not numcodecs' GZip, which writes the time: equal chunks are equal bytes.
        header = zlib.MAX_WBITS if zarr_format == 2 else _GZIP_HEADER
        return zlib.compress(differences, self.level, header)

    def format_2(self) -> tuple[list[Codec], Codec]:
        """Return the filters, and the compressor, in Zarr format 2."""
        return [Delta(_DELTA)], RunLength() if self.level is None else Zlib(self.level)

    def format_3(self) -> list[dict[str, Any]]:
        """Return the codecs after ``bytes`` in Zarr format 3."""
        chain: list[dict[str, Any]] = [{"name": DELTA_ID, "configuration": {"dtype": _DELTA}}]
        if self.level is None:
            chain += [dict(RunLength()), {"name": "crc32c"}]
        else:
            chain += [{"name": "gzip", "configuration": {"level": self.level}}]
        return chain
