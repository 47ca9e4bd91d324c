"""Contenders of the benchmark: memcpy, and this package's codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bf16codecs import _core
from bf16codecs.bench.data import Bytes

__all__ = ["MEMCPY", "Contender", "copy", "memcpy", "of_codec", "package_codecs"]

MEMCPY = "memcpy"


@dataclass(frozen=True)
class Contender:
    """An encoder and decoder of the bytes of one tensor, or of all tensors as one piece.

    `encode` returns a buffer, or a list of buffers. `decode` may write to `out`, a warm buffer of
    the right size, or return another. `restored` returns the expected bytes of a lossy contender.
    `slow` ones take minutes for a large model. Those that look at rows are given the bytes of a
    tensor row by row, as an array of two dimensions, if it has rows.
    """

    name: str
    encode: Callable[[Bytes], Any]
    decode: Callable[[Any, Bytes], Any]
    threads: int = 1
    restored: Callable[[Bytes], Bytes] | None = None
    slow: bool = False
    looks_at_rows: bool = False

    def given(self, tensors: Sequence[Bytes]) -> Sequence[Bytes]:
        """Return the tensors as it is given them."""
        return tensors if self.looks_at_rows else [tensor.reshape(-1) for tensor in tensors]


def copy(data: Bytes, out: Bytes) -> Bytes:
    """Copy, as `memcpy` does."""
    np.copyto(out, data)
    return out


def of_codec(name: str, codec: Any, threads: int = 1, *, slow: bool = False) -> Contender:
    """Return a codec of numcodecs as a contender."""

    def decode(encoded: Any, out: Bytes) -> Any:
        return codec.decode(encoded, out=out)

    return Contender(name, codec.encode, decode, threads, slow=slow)


def memcpy() -> Contender:
    """Return the reference contender, which copies."""
    return Contender(MEMCPY, lambda data: data, copy)


def package_codecs(threads: int, dtype: str) -> Iterator[Contender]:
    """Yield this package's codecs for a data type."""
    from bf16codecs import codecs

    for name, codec in (
        ("BF16Split", codecs.BF16Split(dtype)),
        ("BF16Huffman", codecs.BF16Huffman(dtype)),
        ("BF16Arithmetic fast", codecs.BF16Arithmetic(dtype)),
        ("BF16Arithmetic best", codecs.BF16Arithmetic(dtype, "best")),
        ("BF16Zstd 3", codecs.BF16Zstd(dtype=dtype)),
    ):
        contender = of_codec(name, codec, threads)
        encode = partial(_encode_rows, codec, _core.ITEM_SIZES[dtype])
        yield replace(contender, encode=encode, looks_at_rows=True)


def _encode_rows(codec: Any, item_size: int, data: Bytes) -> bytes:
    """Encode a tensor as an array of items."""
    encoded: bytes = codec.encode(data.view(f"V{item_size}") if data.ndim == 2 else data)
    return encoded
