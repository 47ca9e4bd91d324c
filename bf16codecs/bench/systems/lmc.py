"""System D, LMC: byte groups, Huffman codes in blocks of 64 KiB, differences by exclusive or."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numcodecs
import numpy as np

from bf16codecs.bench.contenders import Contender, of_codec
from bf16codecs.bench.data import Bytes, Payload
from bf16codecs.bench.systems.blocks import frame
from bf16codecs.codecs import BF16Arithmetic, BF16Huffman, BF16Split, decode, encode_delta, inspect

__all__ = ["contenders", "figures"]

# Bytes of LMC's block of one byte group, and so items of a block of a frame.
_BLOCK = 64 << 10


def contenders(payload: Payload, threads: Sequence[int]) -> Iterator[Contender]:
    """Yield LMC, its competitors and this package's codecs, without and with the base."""
    yield from _alone(payload, threads)
    if payload.base is not None:
        for contender in _alone(payload, threads):
            yield _xor(contender, payload.base)
    for codec in _codecs(payload):
        for n in threads:
            name = f"{type(codec).__name__} {getattr(codec, 'level', '')}".rstrip()
            yield of_codec(name, codec, n)
            if payload.base is not None:
                yield _delta(f"encode_delta, {name}", codec, payload.base, n)


def figures(payload: Payload) -> Iterator[tuple[str, str]]:
    """Yield the numbers of constant, coded and stored blocks of 64 KiB."""
    pieces = {"alone": payload.data}
    if payload.base is not None:
        pieces["XOR"] = payload.data ^ payload.base
    for name, data in pieces.items():
        encoded = _groups_and_huffman(payload, 1).encode(data)
        modes = [plane["mode"] for block in inspect(encoded)["blocks"] for plane in block["planes"]]
        for mode in ("constant", "huffman", "stored"):
            yield f"{mode} blocks, {name}", f"{modes.count(mode)} of {len(modes)}"


def _codecs(payload: Payload) -> list[Any]:
    return [
        BF16Huffman(payload.dtype),
        BF16Arithmetic(payload.dtype),
        BF16Arithmetic(payload.dtype, "best"),
    ]


def _groups_and_huffman(payload: Payload, threads: int) -> Contender:
    name = "byte groups + Huffman, 64 KiB"
    return frame(name, payload, "huffman", _BLOCK, by_byte=True, threads=threads)


def _alone(payload: Payload, threads: Sequence[int]) -> Iterator[Contender]:
    for n in threads:
        yield _groups_and_huffman(payload, n)
    for n in threads:
        name = "byte groups + BF16Arithmetic"
        yield frame(name, payload, "arithmetic", _BLOCK, by_byte=True, threads=n)
    engines = {
        "LZ4": numcodecs.LZ4(),
        "DEFLATE 6": numcodecs.Zlib(6),
        "BZ2 9": numcodecs.BZ2(9),
        "zstd 3": numcodecs.Zstd(3),
    }
    for name, codec in engines.items():
        yield _grouped(name, codec, payload.dtype)
    for name, codec in engines.items():
        yield of_codec(name, codec)


def _grouped(name: str, codec: Any, dtype: str) -> Contender:
    groups = BF16Split(dtype, by="byte")
    return Contender(
        f"byte groups + {name}",
        lambda data: codec.encode(groups.encode(data)),
        lambda encoded, out: decode(codec.decode(encoded), out),
    )


def _xor(contender: Contender, base: Bytes) -> Contender:
    def decode_difference(encoded: Any, out: Bytes) -> Bytes:
        difference = np.frombuffer(contender.decode(encoded, out), np.uint8)
        return np.bitwise_xor(difference, base[: out.size], out=out)

    return replace(
        contender,
        name=f"XOR, {contender.name}",
        encode=lambda data: contender.encode(data ^ base[: data.size]),
        decode=decode_difference,
    )


def _delta(name: str, codec: Any, base: Bytes, threads: int) -> Contender:
    return Contender(
        name,
        lambda data: encode_delta(codec, data, base[: data.size]),
        lambda encoded, out: decode(encoded, out, base[: out.size]),
        threads,
    )
