"""What is measured: this package's codecs, and their installed peers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bf16codecs.bench.data import Bytes

__all__ = ["Contender", "contenders", "copy", "of_codec"]


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


def _own() -> Iterator[Contender]:
    from bf16codecs import codecs

    yield of_codec("BF16Split", codecs.BF16Split())
    yield of_codec("BF16Huffman", codecs.BF16Huffman())
    yield of_codec("BF16Arithmetic fast", codecs.BF16Arithmetic())
    yield of_codec("BF16Arithmetic best", codecs.BF16Arithmetic(level="best"))
    yield of_codec("BF16Zstd 3", codecs.BF16Zstd())


def _numcodecs_peers() -> Iterator[Contender]:
    import numcodecs

    shuffle, bitshuffle = numcodecs.Blosc.SHUFFLE, numcodecs.Blosc.BITSHUFFLE
    # Blosc shuffles by the item size of what it is given.
    for name, codec in (
        ("Blosc lz4 bitshuffle", numcodecs.Blosc("lz4", 5, bitshuffle)),
        ("Blosc zstd-1 shuffle", numcodecs.Blosc("zstd", 1, shuffle)),
    ):
        yield Contender(
            name,
            lambda data, codec=codec: codec.encode(data.view("<u2")),  # type: ignore[misc]
            lambda data, out, codec=codec: codec.decode(data, out=out),  # type: ignore[misc]
        )
    yield of_codec("Zstd 1", numcodecs.Zstd(1))
    yield of_codec("BZ2 1", numcodecs.BZ2(1))
    yield of_codec("LZMA 1", numcodecs.LZMA(preset=1))


def _pcodec() -> Iterator[Contender]:
    from numcodecs.pcodec import PCodec

    importlib.import_module("pcodec")
    codec = PCodec(level=8)
    yield Contender(
        "PCodec 8",
        lambda data: codec.encode(data.view("<u2")),
        lambda data, out: codec.decode(data, out=out.view("<u2")).view(np.uint8),
    )


def _blosc2(threads: int) -> Iterator[Contender]:
    import blosc2

    for name, level, filter_ in (
        ("blosc2 zstd-1 shuffle", 1, blosc2.Filter.SHUFFLE),
        ("blosc2 zstd-3 bitshuffle", 3, blosc2.Filter.BITSHUFFLE),
    ):
        parameters = {
            "codec": blosc2.Codec.ZSTD,
            "clevel": level,
            "filters": [filter_],
            "typesize": 2,
            "nthreads": threads,
        }
        yield Contender(
            name,
            lambda data, p=parameters: blosc2.compress2(data, **p),  # type: ignore[misc]
            lambda data, out: blosc2.decompress2(data, dst=out, nthreads=threads) or out,
        )


def _zipnn(threads: int) -> Iterator[Contender]:
    from zipnn import ZipNN

    codec = ZipNN(input_format="byte", bytearray_dtype="bfloat16", threads=threads)
    # It writes into its input, so it gets a copy.
    yield Contender(
        "zipnn",
        lambda data: codec.compress(bytearray(data)),
        lambda data, out: codec.decompress(data),
    )


def contenders(threads: int) -> Iterator[Contender]:
    """Yield memcpy, this package's codecs, and every peer that is installed."""
    yield Contender("memcpy", lambda data: data, copy)
    yield from (replace(own, threads=threads) for own in _own())
    for peers in (
        _numcodecs_peers,
        _pcodec,
        lambda: _blosc2(threads),
        lambda: _zipnn(threads),
    ):
        try:
            found = list(peers())
        except ImportError:
            continue
        yield from (replace(peer, threads=threads) for peer in found)
