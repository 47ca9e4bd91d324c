"""What is measured: this package's codecs, and their installed peers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bf16codecs import _core
from bf16codecs.bench.data import Bytes

__all__ = ["MEMCPY", "Contender", "contenders", "copy", "memcpy", "of_codec"]

MEMCPY = "memcpy"
_ZIPNN_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Contender:
    """Something that encodes and decodes the bytes of one tensor, or of all tensors as one piece.

    `encode` returns a buffer, or a list of them. `decode` may write to `out`, a warm buffer of the
    right size, or return its own. `restored` says what it has to give: other bytes than the encoded
    ones where numbers lose something.
    """

    name: str
    encode: Callable[[Bytes], Any]
    decode: Callable[[Any, Bytes], Any]
    threads: int = 1
    restored: Callable[[Bytes], Bytes] | None = None


def copy(data: Bytes, out: Bytes) -> Bytes:
    """Copy, as `memcpy` does."""
    np.copyto(out, data)
    return out


def of_codec(name: str, codec: Any) -> Contender:
    """Return a codec of numcodecs as a contender."""
    return Contender(name, codec.encode, lambda data, out: codec.decode(data, out=out))


def memcpy() -> Contender:
    """Return what all others are compared with."""
    return Contender(MEMCPY, lambda data: data, copy)


def _own(dtype: str) -> Iterator[Contender]:
    from bf16codecs import codecs

    yield of_codec("BF16Split", codecs.BF16Split(dtype))
    yield of_codec("BF16Huffman", codecs.BF16Huffman(dtype))
    yield of_codec("BF16Arithmetic fast", codecs.BF16Arithmetic(dtype))
    yield of_codec("BF16Arithmetic best", codecs.BF16Arithmetic(dtype, "best"))
    yield of_codec("BF16Zstd 3", codecs.BF16Zstd(dtype=dtype))


def _numcodecs_peers(items: str) -> Iterator[Contender]:
    import numcodecs

    shuffle, bitshuffle = numcodecs.Blosc.SHUFFLE, numcodecs.Blosc.BITSHUFFLE
    # Blosc shuffles by the item size of what it is given.
    for name, codec in (
        ("Blosc lz4 bitshuffle", numcodecs.Blosc("lz4", 5, bitshuffle)),
        ("Blosc zstd-1 shuffle", numcodecs.Blosc("zstd", 1, shuffle)),
    ):
        yield Contender(
            name,
            lambda data, codec=codec: codec.encode(data.view(items)),  # type: ignore[misc]
            lambda data, out, codec=codec: codec.decode(data, out=out),  # type: ignore[misc]
        )
    yield of_codec("Zstd 1", numcodecs.Zstd(1))
    yield of_codec("BZ2 1", numcodecs.BZ2(1))
    yield of_codec("LZMA 1", numcodecs.LZMA(preset=1))


def _pcodec(items: str) -> Iterator[Contender]:
    from numcodecs.pcodec import PCodec

    importlib.import_module("pcodec")
    codec = PCodec(level=8)
    yield Contender(
        "PCodec 8",
        lambda data: codec.encode(data.view(items)),
        lambda data, out: codec.decode(data, out=out.view(items)).view(np.uint8),
    )


def _blosc2(threads: int, item_size: int) -> Iterator[Contender]:
    import blosc2

    for name, level, filter_ in (
        ("blosc2 zstd-1 shuffle", 1, blosc2.Filter.SHUFFLE),
        ("blosc2 zstd-3 bitshuffle", 3, blosc2.Filter.BITSHUFFLE),
    ):
        parameters = {
            "codec": blosc2.Codec.ZSTD,
            "clevel": level,
            "filters": [filter_],
            "typesize": item_size,
            "nthreads": threads,
        }
        yield Contender(
            name,
            lambda data, p=parameters: blosc2.compress2(data, **p),  # type: ignore[misc]
            lambda data, out: blosc2.decompress2(data, dst=out, nthreads=threads) or out,
        )


def _zipnn(threads: int, dtype: str) -> Iterator[Contender]:
    from zipnn import ZipNN

    codec = ZipNN(input_format="byte", bytearray_dtype=dtype, threads=threads)
    # It writes into its input, so it gets a copy.
    yield Contender(
        "zipnn",
        lambda data: codec.compress(bytearray(data)),
        lambda data, out: codec.decompress(data),
    )


def contenders(threads: int, dtype: str) -> Iterator[Contender]:
    """Yield memcpy, this package's codecs, and every installed peer that knows such items."""
    item_size = _core.ITEM_SIZES[dtype]
    items = f"<u{item_size}"
    yield memcpy()
    yield from (replace(own, threads=threads) for own in _own(dtype))
    for peers in (
        lambda: _numcodecs_peers(items),
        lambda: _pcodec(items) if item_size > 1 else (),
        lambda: _blosc2(threads, item_size),
        lambda: _zipnn(threads, dtype) if dtype in _ZIPNN_DTYPES else (),
    ):
        try:
            found = list(peers())
        except ImportError:
            continue
        yield from (replace(peer, threads=threads) for peer in found)
