"""System C, which is lossy: half precision, differences, and run lengths or DEFLATE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numcodecs
import numpy as np

from bf16codecs._base.half import HalfLoss, from_half, to_half
from bf16codecs.bench.contenders import Contender, of_codec
from bf16codecs.bench.data import Bytes, Payload
from bf16codecs.bench.systems.blocks import in_blocks
from bf16codecs.codecs import BF16Arithmetic, RunLength

__all__ = ["contenders", "figures"]

# Bytes of a block of float16 items, which are half as large as the float32 items they come from.
_BLOCK = 8 << 20
_DELTA = numcodecs.Delta("<u2")


def contenders(payload: Payload, threads: Sequence[int]) -> Iterator[Contender]:
    """Yield its three variants, this package's codecs on the same numbers, and a lossless one."""
    yield _differences("base: run lengths", RunLength())
    yield _differences("comp: DEFLATE 9", numcodecs.Zlib(9))
    for n in threads:
        final = _differences("final: DEFLATE 6, 8 MiB", numcodecs.Zlib(6))
        yield in_blocks(final, 2 * _BLOCK, workers=n)
    for level in ("fast", "best"):
        yield _halves(f"BF16Arithmetic {level}, float16", BF16Arithmetic("float16", level))
    lossless = BF16Arithmetic(payload.dtype, "best")
    yield of_codec(f"without loss: BF16Arithmetic best, {payload.dtype}", lossless)


def figures(payload: Payload) -> Iterator[tuple[str, str]]:
    """Yield errors of the rounding."""
    values = payload.data.view("<f4")
    loss = HalfLoss.of(values, to_half(values))
    yield "largest absolute error", f"{loss.absolute:.4g}"
    yield "largest relative error", f"{loss.relative:.4g}"
    yield "of numbers that stay normal", f"{loss.relative_of_normal:.4g}"
    yield "numbers that became zero", f"{loss.to_zero} of {values.size}"
    yield "numbers that became infinite", f"{loss.to_infinite} of {values.size}"


def _halves(name: str, codec: Any) -> Contender:
    """Return a contender that rounds float32 items to float16 and encodes these."""

    def decode(encoded: Any, out: Bytes) -> Bytes:
        halves = np.frombuffer(codec.decode(encoded), "<f2")
        np.copyto(out.view("<f4"), from_half(halves))
        return out

    return Contender(
        name, lambda data: codec.encode(to_half(data.view("<f4"))), decode, restored=_rounded
    )


def _rounded(data: Bytes) -> Bytes:
    return from_half(to_half(data.view("<f4"))).view(np.uint8)


class _DifferenceCodec:
    """A codec of bytes, applied to the differences of 16-bit patterns."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec

    def encode(self, halves: np.ndarray) -> Any:
        return self._codec.encode(_DELTA.encode(halves))

    def decode(self, encoded: Any) -> Any:
        return _DELTA.decode(self._codec.decode(encoded))


def _differences(name: str, codec: Any) -> Contender:
    return _halves(name, _DifferenceCodec(codec))
