"""The choice of codecs for the data types of arrays, and default sizes of chunks.

The codecs are imported when one is made: commands check their options without them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bf16codecs import _core
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.names import DEFLATE_LEVELS, FRAME_CODECS, ZSTD_LEVELS

if TYPE_CHECKING:
    from numcodecs.abc import Codec
    from numpy.typing import NDArray

    from bf16codecs._arrays.grid import ArrayPlan
    from bf16codecs._base.buffers import Bytes, ThreadBuffer
    from bf16codecs.codecs.frames import FrameCodec
    from bf16codecs.store.delta import DeltaChain

__all__ = [
    "CODEC_NAMES",
    "DEFAULT_CHUNK_SIZE",
    "DEFAULT_CODEC",
    "DEFAULT_GROUP",
    "DEFAULT_STEP_SIZE",
    "LEAST_CHUNK_SIZE",
    "LOSSY_CODEC_NAMES",
    "LOSSY_DTYPES",
    "MAX_HDF5_CHUNK",
    "PLAIN_ZSTD",
    "CodecChoice",
    "as_rows",
    "encode_difference",
]

#: Names of codecs for `CodecChoice` and ``--codec``.
CODEC_NAMES = (*FRAME_CODECS, "none")
DEFAULT_CODEC = "arithmetic"
#: Another codec for Zarr stores alone: Zstandard as every Zarr library has it.
PLAIN_ZSTD = "plain-zstd"
#: Codecs of lossy stores.
LOSSY_CODEC_NAMES = ("arithmetic", "huffman", "zstd", "delta-rle", "delta-deflate")
#: Data types that the FP32 tensors of lossy stores may become.
LOSSY_DTYPES = ("float16",)

# 8 to 64 MiB convert equally fast; smaller ones take less memory, and a slice where a reader
# decodes whole chunks (format 2) less time.
DEFAULT_CHUNK_SIZE = 16 << 20
#: Steps of a run from one that is coded whole to the next.
DEFAULT_GROUP = 16
#: The largest size of one step in a chunk.
DEFAULT_STEP_SIZE = 1 << 22
#: The least size of a chunk, where a model has many: no file takes less of most disks, and the head
#: of a frame of 4 KiB is 1 % of it.
LEAST_CHUNK_SIZE = 1 << 12
#: The largest chunk of HDF5: its size has 32 bits, in the file format that is written:
#: larger ones need HDF5 2.0.
MAX_HDF5_CHUNK = (1 << 32) - 1

# Codecs whose frames may hold several steps.
_STEPS_CODECS = ("arithmetic", "huffman")


@dataclass(frozen=True)
class CodecChoice:
    """A codec name and level, as `--codec` and `--level` take them, applied to each data type.

    `lossy` is the data type that FP32 tensors become, as `--lossy` takes it.
    """

    name: str = DEFAULT_CODEC
    level: str | int | None = None
    lossy: str | None = None

    def __post_init__(self) -> None:
        if self.lossy not in (None, *LOSSY_DTYPES):
            raise ValueError(f"lossy must be {' or '.join(LOSSY_DTYPES)}, not {self.lossy!r:.80}")
        if self.lossy is not None and self.name not in LOSSY_CODEC_NAMES:
            names = f"{', '.join(LOSSY_CODEC_NAMES[:-1])} or {LOSSY_CODEC_NAMES[-1]}"
            raise ValueError(f"the codec of a lossy store must be {names}, not {self.name!r}")
        if self.lossy is None and self.name in LOSSY_CODEC_NAMES and self.name not in CODEC_NAMES:
            lossy = for_caller("lossy='float16'", "--lossy float16")
            raise ValueError(f"codec {self.name!r} is for lossy stores alone ({lossy})")
        if self.lossy is None and self.name not in (*CODEC_NAMES, PLAIN_ZSTD):
            names = ", ".join((*FRAME_CODECS, PLAIN_ZSTD))
            lossy = for_caller("lossy='float16'", "--lossy float16")
            others = " or ".join(name for name in LOSSY_CODEC_NAMES if name not in CODEC_NAMES)
            raise ValueError(
                f"codec must be {names} or none, or with {lossy} {others}, not {self.name!r}"
            )
        self._check_level()

    def _check_level(self) -> None:
        if self.name == "arithmetic":
            if self.level is not None and str(self.level) not in _core.LEVELS:
                levels = " or ".join(map(repr, _core.LEVELS))
                zstd = " (numbers are levels of zstd)" if str(self.level).isdigit() else ""
                raise ValueError(f"level must be {levels}, not {self.level!r}{zstd}")
        elif self.name in ("zstd", PLAIN_ZSTD):
            self._number(3, ZSTD_LEVELS)
        elif self.name == "delta-deflate":
            self._number(9, DEFLATE_LEVELS)
        elif self.level is not None:
            raise ValueError(f"codec {self.name!r} has no levels")

    def at(self, level: str | None) -> CodecChoice:
        """Return the choice with another level, or unchanged for None."""
        return self if level is None else replace(self, level=level)

    def check_hdf5(self) -> None:
        """Raise `ValueError` if the codec is for Zarr stores alone."""
        if self.name == PLAIN_ZSTD:
            raise ValueError(
                f"codec {self.name!r} is for Zarr stores alone: that of HDF5, for all its"
                " programs, is 'zstd'"
            )

    def check_difference(self) -> None:
        """Raise `ValueError` if the codec stores no differences."""
        if self.name not in FRAME_CODECS:
            raise ValueError(f"codec {self.name!r} stores no differences: choose another codec")

    def check_run(self) -> None:
        """Raise `ValueError` if the codec stores no runs."""
        self.check_difference()
        if self.name not in _STEPS_CODECS:
            raise ValueError(f"codec {self.name!r} has no steps: choose arithmetic or huffman")

    def for_difference(self, dtype: str) -> FrameCodec:
        """Return the codec of differences of a data type: integers are taken as floats."""
        import numpy as np

        from bf16codecs._base.buffers import layout_for
        from bf16codecs.codecs.frames import FrameCodec

        self.check_difference()
        codec = self.for_dtype(layout_for(np.dtype(dtype)))
        assert isinstance(codec, FrameCodec)
        return codec

    def for_run(self, dtype: str, group: int) -> FrameCodec:
        """Return the codec of arrays over time of a data type, with `group` steps in a chunk."""
        self.check_run()
        codec = self.for_difference(dtype)
        return type(codec).from_config({**codec.get_config(), "steps": group})

    def for_dtype(self, dtype: str, zarr_format: int = 3) -> Codec | None:
        """Return the codec of arrays of a data type, or None to store them uncompressed."""
        from bf16codecs import codecs

        if self.name == "none":
            return None
        if self.name == PLAIN_ZSTD:
            from numcodecs import Zstd

            # In Zarr format 2, no library but numcodecs knows that there may be a checksum.
            return Zstd(level=self._number(3, ZSTD_LEVELS), checksum=zarr_format == 3)
        if self.name not in FRAME_CODECS:
            return CodecChoice().for_dtype(dtype)
        if dtype not in _core.DTYPES:
            if self.name == "split":  # integers have no exponent to split off
                return None
            from numcodecs import Zstd  # which every Zarr library has

            return Zstd(level=3, checksum=True)
        if self.name == "arithmetic":
            return codecs.BF16Arithmetic(dtype, "fast" if self.level is None else str(self.level))
        if self.name == "zstd":
            return codecs.BF16Zstd(self._number(3, ZSTD_LEVELS), dtype)
        return (codecs.BF16Huffman if self.name == "huffman" else codecs.BF16Split)(dtype)

    def chain(self, dtype: str) -> DeltaChain | None:
        """Return the chain that codes arrays of a data type instead of `for_dtype`, if any."""
        if dtype != "float16" or self.name not in ("delta-rle", "delta-deflate"):
            return None
        from bf16codecs.store.delta import DeltaChain

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


def encode_difference(
    choice: CodecChoice, array: ArrayPlan, chunk: Bytes, base: Bytes | None, memory: ThreadBuffer
) -> Bytes:
    """Encode a chunk of an array as its difference to the same chunk of the base, or alone."""
    codec = choice.for_difference(array.dtype)
    return codec.encode_to(memory.get, as_rows(array, chunk), base)
