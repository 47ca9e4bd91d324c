"""Coded sizes of a tensor and of its 64 KiB blocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.fields import row_entropies
from bf16codecs.analysis.counts import BLOCK_BYTES, block_counts
from bf16codecs.analysis.statistics import Spread
from bf16codecs.codecs.frames import encode_delta, encode_version
from bf16codecs.store.choice import CodecChoice

if TYPE_CHECKING:
    from numcodecs.abc import Codec

__all__ = [
    "BLOCK_CODECS",
    "CODECS",
    "DIFFERENCE",
    "CodedSizes",
    "codec_for",
    "measure",
    "measure_differences",
]

_CHOICES = {
    "huffman": CodecChoice("huffman"),
    "arithmetic": CodecChoice("arithmetic"),
    "arithmetic best": CodecChoice("arithmetic", "best"),
}
#: Names of the codecs that an analysis tries: the values of `--codec` and `--level`.
CODECS = tuple(_CHOICES)
#: Codecs whose coded sizes of single 64 KiB blocks are measured.
BLOCK_CODECS = ("huffman", "arithmetic")
#: The prefix of a codec's name in sizes of differences to a base.
DIFFERENCE = "difference, "


@dataclass
class CodedSizes:
    """Coded sizes, added up over pieces.

    By codec name, `nbytes` has coded bytes, and `blocks` the bits per value of each whole block;
    ``"entropy"`` in `blocks` is the sum of the order-0 entropies of a block's byte planes.
    """

    nbytes: dict[str, int] = field(default_factory=dict)
    blocks: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)

    def __iadd__(self, other: CodedSizes) -> CodedSizes:
        for name, size in other.nbytes.items():
            self.nbytes[name] = self.nbytes.get(name, 0) + size
        for name, parts in other.blocks.items():
            self.blocks.setdefault(name, []).extend(parts)
        return self

    def spread(self) -> dict[str, Spread]:
        """Return the spread of the blocks' sizes."""
        spreads = {name: Spread.of(np.concatenate(parts)) for name, parts in self.blocks.items()}
        return {name: spread for name, spread in spreads.items() if spread is not None}


def measure(
    dtype: str, items: NDArray[Any], base: Bytes | None, codecs: Collection[str] = CODECS
) -> CodedSizes:
    """Code a piece of a tensor with some of `CODECS`, alone and as a difference to a base's.

    Items are unsigned integers of the dtype's size, of shape (rows, columns) if there are rows.
    """
    found = CodedSizes()
    data = items.reshape(-1).view(np.uint8)
    for name in codecs:
        codec = codec_for(name, dtype)
        found.nbytes[name] = data.size if codec is None else len(codec.encode(items))
    if base is not None:
        found += measure_differences(dtype, items, base, codecs)
    if dtype in _core.DTYPES:
        blocks = [name for name in BLOCK_CODECS if name in codecs]
        _measure_blocks(found, dtype, data, items.dtype.itemsize, blocks)
    return found


def measure_differences(
    dtype: str, items: NDArray[Any], base: Bytes, codecs: Collection[str] = CODECS
) -> CodedSizes:
    """Code a piece of a tensor only as a difference to a base's: see `measure`."""
    found = CodedSizes()
    for name in codecs:
        size = len(encode_delta(_CHOICES[name].for_difference(dtype), items, base))
        found.nbytes[DIFFERENCE + name] = size
    return found


def _measure_blocks(
    found: CodedSizes, dtype: str, data: Bytes, item_size: int, codecs: Collection[str]
) -> None:
    """Measure whole blocks: in shorter ones, heads take more space than values."""
    data = data[: data.size - data.size % BLOCK_BYTES]
    if not data.size:
        return
    items = BLOCK_BYTES // item_size
    planes = [row_entropies(counts) for counts in block_counts(data, item_size)]
    found.blocks["entropy"] = [np.sum(planes, axis=0)]
    for name in codecs:
        codec: Any = codec_for(name, dtype)
        frame = encode_version(codec, data, block=items)
        sizes = np.diff(np.array(_core.Index(frame).offsets, np.float64))
        found.blocks[name] = [8 * sizes / items]


@lru_cache(maxsize=64)
def codec_for(name: str, dtype: str) -> Codec | None:
    """Return one of `CODECS` for items of a dtype; None if it stores the dtype uncompressed."""
    return _CHOICES[name].for_dtype(dtype)
