"""Which codec stores the arrays of a data type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numcodecs import Zstd
from numcodecs.abc import Codec
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._buffers import Bytes, layout_for
from bf16codecs._chunks.grid import ArrayPlan
from bf16codecs.codecs import (
    CODECS,
    ZSTD_LEVELS,
    BF16Arithmetic,
    BF16Huffman,
    BF16Split,
    BF16Zstd,
    FrameCodec,
    encode_delta,
)
from bf16codecs.store.delta import DEFLATE_LEVELS, DeltaChain

__all__ = [
    "CODEC_NAMES",
    "LOSSY_CODEC_NAMES",
    "LOSSY_DTYPES",
    "CodecChoice",
    "as_rows",
    "encode_difference",
]

#: What `CodecChoice` and ``--codec`` take.
CODEC_NAMES = (*CODECS, "none")
#: And what they take for lossy stores.
LOSSY_CODEC_NAMES = ("arithmetic", "huffman", "zstd", "delta-rle", "delta-deflate")
#: What FP32 tensors of lossy stores may become.
LOSSY_DTYPES = ("float16",)


@dataclass(frozen=True)
class CodecChoice:
    """A codec name and level, as `--codec` and `--level` take them, applied to each data type.

    `lossy` is what FP32 tensors become, as `--lossy` takes it.
    """

    name: str = "arithmetic"
    level: str | int | None = None
    lossy: str | None = None

    def __post_init__(self) -> None:
        if self.lossy not in (None, *LOSSY_DTYPES):
            raise ValueError(f"lossy must be {' or '.join(LOSSY_DTYPES)}, not {self.lossy!r:.80}")
        if self.lossy is not None and self.name not in LOSSY_CODEC_NAMES:
            names = f"{', '.join(LOSSY_CODEC_NAMES[:-1])} or {LOSSY_CODEC_NAMES[-1]}"
            raise ValueError(f"the codec of a lossy store must be {names}, not {self.name!r}")
        if self.lossy is None and self.name in LOSSY_CODEC_NAMES and self.name not in CODECS:
            raise ValueError(f"codec {self.name!r} is for lossy stores alone (--lossy float16)")
        if self.lossy is None and self.name not in CODEC_NAMES:
            raise ValueError(f"codec must be {', '.join(CODECS)} or none, not {self.name!r}")
        if self.level is not None and self.name not in ("arithmetic", "zstd", "delta-deflate"):
            raise ValueError(f"codec {self.name!r} has no levels")
        self.chain("float16") or self.for_dtype("float16")  # checks the level

    def for_difference(self, dtype: str) -> FrameCodec:
        """Return the codec of differences of a data type: integers are taken as floats."""
        codec = self.for_dtype(layout_for(np.dtype(dtype)))
        if not isinstance(codec, FrameCodec):
            raise ValueError(f"codec {self.name!r} stores no differences: choose another codec")
        return codec

    def for_run(self, dtype: str, group: int) -> FrameCodec:
        """Return the codec of arrays over time of a data type, with `group` steps in a chunk."""
        codec = self.for_difference(dtype)
        if not isinstance(codec, (BF16Huffman, BF16Arithmetic)):
            raise ValueError(f"codec {self.name!r} has no steps: choose arithmetic or huffman")
        return type(codec).from_config({**codec.get_config(), "steps": group})

    def for_dtype(self, dtype: str) -> Codec | None:
        """Return the codec of arrays of a data type, or None to store them as they are."""
        if self.name == "none":
            return None
        if self.name not in CODECS:
            return CodecChoice().for_dtype(dtype)
        if dtype not in _core.DTYPES:
            # Integers have no exponent to split off; every Zarr library has this codec.
            return None if self.name == "split" else Zstd(level=3, checksum=True)
        if self.name == "split":
            return BF16Split(dtype)
        if self.name == "huffman":
            return BF16Huffman(dtype)
        if self.name == "arithmetic":
            return BF16Arithmetic(dtype, "fast" if self.level is None else str(self.level))
        return BF16Zstd(self._number(3, ZSTD_LEVELS), dtype)

    def chain(self, dtype: str) -> DeltaChain | None:
        """Return what codes arrays of a data type in place of `for_dtype`, if something does."""
        if dtype != "float16" or self.name not in ("delta-rle", "delta-deflate"):
            return None
        return DeltaChain(None if self.name == "delta-rle" else self._number(9, DEFLATE_LEVELS))

    def _number(self, default: int, levels: range) -> int:
        """Return the level, which is a number."""
        try:
            level = default if self.level is None else int(self.level)
        except ValueError:
            level = levels.stop
        if level not in levels:
            raise ValueError(
                f"level must be between {levels[0]} and {levels[-1]} for {self.name},"
                f" not {self.level!r}"
            )
        return level


def as_rows(array: ArrayPlan, chunk: Bytes) -> NDArray[Any]:
    """Return a chunk as an array of numbers of its width: some codecs look at its rows."""
    return chunk.view(f"u{array.item_size}").reshape(array.chunks)


def encode_difference(choice: CodecChoice, array: ArrayPlan, chunk: Bytes, base: Bytes) -> bytes:
    """Encode a chunk of an array as its difference to the same chunk of the base."""
    codec = choice.for_difference(array.dtype)
    return encode_delta(codec, as_rows(array, chunk), as_rows(array, base))
