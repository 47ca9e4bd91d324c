"""Peers of this package's codecs: installed packages that compress arrays or weights."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bf16codecs import _core
from bf16codecs._base.messages import one_line
from bf16codecs.bench.contenders import Contender, of_codec
from bf16codecs.bench.data import Bytes

__all__ = ["PACKAGES", "Absent", "peers_of"]


@dataclass(frozen=True)
class Absent:
    """A peer that cannot be measured: its package, and the reason; empty if it is not installed."""

    package: str
    reason: str = ""

    @property
    def advice(self) -> str:
        """Advice for the user: why it is missing, or how to install it."""
        if self.reason:
            return f"{self.package} cannot be used: {self.reason}"
        return f"{self.package} is not installed: pip install {self.package}"


def peers_of(threads: int, dtype: str) -> tuple[list[Contender], list[Absent]]:
    """Return the installed peers that support a data type, and those that cannot be measured.

    Parameters
    ----------
    threads : int
        Threads of peers that can use several.
    dtype : str
        Data type, as codecs name it.
    """
    contenders: list[Contender] = []
    absent: list[Absent] = []
    for package, (dtypes, make) in _PEERS.items():
        if dtypes and dtype not in dtypes:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about their own imports
                contenders += make(threads, dtype)
        except ModuleNotFoundError:
            absent.append(Absent(package))
        except Exception as e:  # the package is broken, or another release
            absent.append(Absent(package, one_line(e)))
    return contenders, absent


def _numcodecs(threads: int, dtype: str) -> Iterator[Contender]:
    import numcodecs

    for name, codec in (
        ("Blosc lz4 bitshuffle", numcodecs.Blosc("lz4", 5, numcodecs.Blosc.BITSHUFFLE)),
        ("Blosc zstd-1 shuffle", numcodecs.Blosc("zstd", 1, numcodecs.Blosc.SHUFFLE)),
    ):
        yield _blosc(name, codec, threads, f"<u{_core.ITEM_SIZES[dtype]}")
    yield of_codec("Zstd 1", numcodecs.Zstd(1))
    yield of_codec("BZ2 1", numcodecs.BZ2(1), slow=True)
    yield of_codec("LZMA 1", numcodecs.LZMA(preset=1), slow=True)


def _blosc(name: str, codec: Any, threads: int, items: str) -> Contender:
    from numcodecs import blosc

    def encode(data: Bytes) -> Any:
        blosc.set_nthreads(threads)  # the default is one for each processor
        return codec.encode(data.view(items))  # it shuffles by the item size of the array

    def decode(encoded: Any, out: Bytes) -> Any:
        blosc.set_nthreads(threads)
        return codec.decode(encoded, out=out)

    return Contender(name, encode, decode, threads)


def _pcodec(threads: int, dtype: str) -> Iterator[Contender]:
    from numcodecs.pcodec import PCodec

    importlib.import_module("pcodec")
    codec, items = PCodec(level=8), f"<u{_core.ITEM_SIZES[dtype]}"
    yield Contender(
        "PCodec 8",
        lambda data: codec.encode(data.view(items)),
        lambda data, out: codec.decode(data, out=out.view(items)).view(np.uint8),
    )


def _blosc2(threads: int, dtype: str) -> Iterator[Contender]:
    import blosc2

    for name, level, filter_ in (
        ("blosc2 zstd-1 shuffle", 1, blosc2.Filter.SHUFFLE),
        ("blosc2 zstd-3 bitshuffle", 3, blosc2.Filter.BITSHUFFLE),
    ):
        parameters = {
            "codec": blosc2.Codec.ZSTD,
            "clevel": level,
            "filters": [filter_],
            "typesize": _core.ITEM_SIZES[dtype],
            "nthreads": threads,
        }
        yield Contender(
            name,
            lambda data, p=parameters: blosc2.compress2(data, **p),  # type: ignore[misc]
            lambda data, out: blosc2.decompress2(data, dst=out, nthreads=threads) or out,
            threads,
        )


def _zipnn(threads: int, dtype: str) -> Iterator[Contender]:
    from zipnn import ZipNN

    codec = ZipNN(input_format="byte", bytearray_dtype=dtype, threads=threads)
    # It overwrites its input, so pass a copy.
    yield Contender(
        "zipnn",
        lambda data: codec.compress(bytearray(data)),
        lambda data, out: codec.decompress(data),
        threads,
    )


def _openzl(threads: int, dtype: str) -> Iterator[Contender]:
    """Yield the two graphs that OpenZL publishes for weights: FSE is smaller, Huffman is faster."""
    from openzl import ext

    node = {"bfloat16": ext.nodes.BFloat16Deconstruct, "float32": ext.nodes.Float32Deconstruct}
    for name, coder in (("FSE", ext.graphs.Fse), ("Huffman", ext.graphs.Huffman)):
        compressor = ext.Compressor()
        compressor.set_parameter(ext.CParam.FormatVersion, ext.MAX_FORMAT_VERSION)
        graph = node[dtype]()(compressor, ext.graphs.Store()(compressor), coder()(compressor))
        compressor.select_starting_graph(graph)
        items = f"<u{_core.ITEM_SIZES[dtype]}"
        yield _openzl_contender(f"OpenZL {dtype} {name}", compressor, items)


def _openzl_contender(name: str, compressor: Any, items: str) -> Contender:
    from openzl import ext

    encoder, decoder = ext.CCtx(), ext.DCtx()
    encoder.ref_compressor(compressor)
    # Without this, it drops its compressor after each call.
    encoder.set_parameter(ext.CParam.StickyParameters, 1)
    return Contender(
        name,
        lambda data: encoder.compress([ext.Input(ext.Type.Numeric, data.view(items))]),
        lambda data, out: decoder.decompress(data)[0].content.as_nparray(),
    )


# By name of the package: supported data types, none of them meaning all; generator of contenders.
_PEERS: dict[str, tuple[Sequence[str], Callable[[int, str], Iterator[Contender]]]] = {
    "numcodecs": ((), _numcodecs),
    "pcodec": (("bfloat16", "float16", "float32", "float64"), _pcodec),
    "blosc2": ((), _blosc2),
    "zipnn": (("bfloat16", "float16", "float32"), _zipnn),
    "openzl": (("bfloat16", "float32"), _openzl),
}

#: Packages whose versions are reported with a measurement.
PACKAGES = tuple(_PEERS)
