"""System A: shuffled bytes and Zstandard, in blocks of 32 MB."""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numcodecs

from bf16codecs.bench.contenders import Contender, of_codec
from bf16codecs.bench.data import Payload
from bf16codecs.bench.systems.blocks import in_blocks
from bf16codecs.codecs import BF16Zstd

__all__ = ["contenders"]

_BLOCK = 32 << 20
# The levels in the system's table, of 22.
_LEVELS = (1, 4, 7, 11, 15, 19, 22)
_SLOW_LEVEL = 15


def contenders(payload: Payload, threads: Sequence[int]) -> Iterator[Contender]:
    """Yield `BF16Zstd`, the same method with numcodecs, and its original competitors."""
    for n in threads:
        for level in _LEVELS:
            slow = level >= _SLOW_LEVEL
            codec = of_codec(f"BF16Zstd {level}", BF16Zstd(level, payload.dtype), slow=slow)
            yield replace(in_blocks(codec, _BLOCK), threads=n)
            yield in_blocks(_numcodecs(level, payload.item_size), _BLOCK, workers=n)
    yield of_codec("gzip -9", numcodecs.GZip(9), slow=True)
    yield of_codec("xz -9e", numcodecs.LZMA(preset=9 | lzma.PRESET_EXTREME), slow=True)


def _numcodecs(level: int, item_size: int) -> Contender:
    shuffle, zstd = numcodecs.Shuffle(item_size), numcodecs.Zstd(level)
    return Contender(
        f"shuffle + zstd {level}",
        lambda data: zstd.encode(shuffle.encode(data)),
        lambda encoded, out: shuffle.decode(zstd.decode(encoded), out=out),
        slow=level >= _SLOW_LEVEL,
    )
