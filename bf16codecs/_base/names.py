"""Names of codecs, levels and options, for modules that only read metadata or options."""

from __future__ import annotations

__all__ = [
    "ARITHMETIC_ID",
    "BLOCKS_ID",
    "DEFLATE_LEVELS",
    "DELTA_ID",
    "FRAME_CODECS",
    "FRAME_IDS",
    "HUFFMAN_ID",
    "PREFIX",
    "RUN_LENGTH_ID",
    "SORTS",
    "SPLIT_ID",
    "ZSTD_ID",
    "ZSTD_LEVELS",
]

#: The start of the ids of this package's codecs.
PREFIX = "bf16codecs."

SPLIT_ID = f"{PREFIX}split"
HUFFMAN_ID = f"{PREFIX}huffman"
ARITHMETIC_ID = f"{PREFIX}arithmetic"
ZSTD_ID = f"{PREFIX}zstd"
RUN_LENGTH_ID = f"{PREFIX}rle"
#: Codecs of Zarr format 3 alone: arrays of frames, and differences of integers.
BLOCKS_ID, DELTA_ID = f"{PREFIX}blocks", f"{PREFIX}delta"

#: Codecs whose results are frames, by id, and by the short names that commands take.
FRAME_IDS = (SPLIT_ID, HUFFMAN_ID, ARITHMETIC_ID, ZSTD_ID)
FRAME_CODECS = tuple(codec.removeprefix(PREFIX) for codec in FRAME_IDS)

#: Levels of Zstandard and of DEFLATE; `_core.LEVELS` are those of the arithmetic codec.
ZSTD_LEVELS, DEFLATE_LEVELS = range(1, 23), range(1, 10)

#: How a list of tensors may be ordered: as in the files, by name, or the largest first.
SORTS = ("file", "name", "size", "ratio")
