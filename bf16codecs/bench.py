"""Sizes, speeds and memory use of this package beside its installed peers.

Every contender gets the same tensors, one by one, in the same run, and every round trip is
checked. The tensors are repeated in memory until they take `nbytes`, so that speeds are those of a
large model and not of a cache; each copy is encoded alone, since a codec that looks far back would
otherwise find the copy before. Speeds are also given as a ratio to `memcpy` between warm
buffers, measured in the same round: machines differ by more than codecs do.
"""

from __future__ import annotations

import csv
import importlib
import importlib.metadata
import io
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs import _core
from bf16codecs._memory import keep_freed_memory, peak_memory
from bf16codecs._threads import codec_threads
from bf16codecs._version import __version__
from bf16codecs.safetensors import open_source

__all__ = ["GAUSSIAN", "Machine", "Result", "machine", "run", "tensors_of", "to_csv", "to_json"]

Bytes = NDArray[np.uint8]

#: Source name for synthetic data: four matrices of normal numbers, sigma 0.011 to 0.048.
GAUSSIAN = "gaussian"

# Of small models: more tensors measure nothing new, and each call takes microseconds at least.
_MAX_TENSORS = 10_000

# Tensors of other dtypes are left out, so that all rows of a table are comparable.
_DTYPE = "BF16"


@dataclass(frozen=True)
class Contender:
    """Something that encodes and decodes one tensor's bytes.

    `decode` may write to `out`, a warm buffer of the right size, or return its own.
    """

    name: str
    encode: Callable[[Bytes], Any]
    decode: Callable[[Any, Bytes], Any]


@dataclass(frozen=True)
class Result:
    """One contender's result; rates in GB/s of decoded bytes, ratios to memcpy in their round."""

    name: str
    nbytes: int
    encoded_nbytes: int
    bits_per_value: float
    encode_gbps: float
    encode_gbps_min: float
    encode_gbps_max: float
    encode_to_memcpy: float
    decode_gbps: float
    decode_gbps_min: float
    decode_gbps_max: float
    decode_to_memcpy: float
    peak_bytes: int | None
    exact: bool

    @property
    def ratio(self) -> float:
        """Decoded size over encoded size."""
        return self.nbytes / max(1, self.encoded_nbytes)


@dataclass(frozen=True)
class Machine:
    """The machine and package versions of a measurement."""

    cpu: str
    cores: int
    isa: str
    threads: int
    versions: dict[str, str]


def tensors_of(source: str | os.PathLike[str]) -> list[Bytes]:
    """Return the bytes of every BF16 tensor of a model, or synthetic data for ``"gaussian"``.

    Raises
    ------
    ValueError
        If the source is not a safetensors model, or has no BF16 tensor.
    """
    if source == GAUSSIAN:
        return _gaussian()
    tensors = []
    for file in open_source(source).files:
        with open(file.path, "rb") as f:
            for tensor in file.header.tensors:
                if tensor.dtype == _DTYPE and tensor.nbytes:
                    f.seek(file.header.data_start + tensor.start)
                    tensors.append(np.frombuffer(f.read(tensor.nbytes), np.uint8))
    if not tensors:
        raise ValueError(f"{Path(source)}: no {_DTYPE} tensors to measure")
    return tensors


def _gaussian() -> list[Bytes]:
    rng = np.random.default_rng(0)
    matrices = []
    for sigma in (0.011, 0.02, 0.033, 0.048):
        values = rng.standard_normal(1 << 24, np.float32) * np.float32(sigma)
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        matrices.append(rounded.astype("<u2").view(np.uint8))
    return matrices


def machine(threads: int = 1) -> Machine:
    """Describe this machine and the packages that are measured on it."""
    versions = {"bf16codecs": __version__, "python": platform.python_version()}
    for name in ("numpy", "numcodecs", "zipnn", "blosc2", "pcodec"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Machine(_cpu(), os.cpu_count() or 1, _core.active_isa(), threads, versions)


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _copy(data: Bytes, out: Bytes) -> Bytes:
    np.copyto(out, data)
    return out


def _numcodecs(name: str, codec: Any) -> Contender:
    return Contender(name, codec.encode, lambda data, out: codec.decode(data, out=out))


def _own() -> Iterator[Contender]:
    from bf16codecs import codecs

    yield _numcodecs("BF16Split", codecs.BF16Split())
    yield _numcodecs("BF16Huffman", codecs.BF16Huffman())
    yield _numcodecs("BF16Arithmetic fast", codecs.BF16Arithmetic())
    yield _numcodecs("BF16Arithmetic best", codecs.BF16Arithmetic(level="best"))
    yield _numcodecs("BF16Zstd 3", codecs.BF16Zstd())


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
    yield _numcodecs("Zstd 1", numcodecs.Zstd(1))
    yield _numcodecs("BZ2 1", numcodecs.BZ2(1))
    yield _numcodecs("LZMA 1", numcodecs.LZMA(preset=1))


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


def _contenders(threads: int) -> Iterator[Contender]:
    yield Contender("memcpy", lambda data: data, _copy)
    yield from _own()
    for peers in (
        _numcodecs_peers,
        _pcodec,
        lambda: _blosc2(threads),
        lambda: _zipnn(threads),
    ):
        try:
            yield from peers()
        except ImportError:
            continue


def _round_trip(
    contender: Contender, data: Sequence[Bytes], out: Sequence[Bytes]
) -> tuple[float, float, int, bool]:
    start = time.perf_counter()
    encoded = [contender.encode(tensor) for tensor in data]
    middle = time.perf_counter()
    decoded = [contender.decode(e, o) for e, o in zip(encoded, out, strict=True)]
    end = time.perf_counter()
    size = sum(memoryview(e).nbytes for e in encoded)
    exact = all(
        np.array_equal(np.frombuffer(d, np.uint8), tensor)
        for d, tensor in zip(decoded, data, strict=True)
    )
    return middle - start, end - middle, size, exact


def _memcpy_seconds(data: Sequence[Bytes], out: Sequence[Bytes]) -> float:
    start = time.perf_counter()
    for tensor, o in zip(data, out, strict=True):
        _copy(tensor, o)
    return time.perf_counter() - start


@dataclass(frozen=True)
class _Rates:
    median: float
    least: float
    most: float
    to_memcpy: float

    @classmethod
    def of(cls, nbytes: int, seconds: Sequence[float], copying: Sequence[float]) -> _Rates:
        rates = [nbytes / s / 1e9 for s in seconds]
        to_memcpy = statistics.median(c / s for c, s in zip(copying, seconds, strict=True))
        return cls(statistics.median(rates), min(rates), max(rates), to_memcpy)


def _measure(
    contender: Contender, data: Sequence[Bytes], out: Sequence[Bytes], repeats: int
) -> Result:
    nbytes = sum(tensor.nbytes for tensor in data)
    copying, rounds = [], []
    with peak_memory() as peak:
        for _ in range(repeats):
            copying.append(_memcpy_seconds(data, out))
            rounds.append(_round_trip(contender, data, out))
        peak_bytes = peak()
    decode = _Rates.of(nbytes, [r[1] for r in rounds], copying)
    # memcpy has one direction; its "encode" returns its argument.
    is_memcpy = contender.name == "memcpy"
    encode = decode if is_memcpy else _Rates.of(nbytes, [r[0] for r in rounds], copying)
    size = rounds[0][2]
    return Result(
        name=contender.name,
        nbytes=nbytes,
        encoded_nbytes=size,
        bits_per_value=16 * size / nbytes,
        encode_gbps=encode.median,
        encode_gbps_min=encode.least,
        encode_gbps_max=encode.most,
        encode_to_memcpy=encode.to_memcpy,
        decode_gbps=decode.median,
        decode_gbps_min=decode.least,
        decode_gbps_max=decode.most,
        decode_to_memcpy=decode.to_memcpy,
        peak_bytes=peak_bytes,
        exact=all(r[3] for r in rounds),
    )


def _wanted(contenders: list[Contender], names: Sequence[str] | None) -> list[Contender]:
    """Return memcpy and the contenders with one of these in their names, or all."""
    if names is None:
        return contenders
    first, *others = contenders
    found = [c for c in others if any(n.lower() in c.name.lower() for n in names)]
    if not found:
        raise ValueError(
            f"no codec has {' or '.join(map(repr, names))} in its name; there are"
            f" {', '.join(c.name for c in others)}"
        )
    return [first, *found]


def run(
    tensors: Sequence[Bytes],
    *,
    nbytes: int = 1 << 28,
    repeats: int = 5,
    threads: int = 1,
    names: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Result]:
    """Measure every codec of this package and every peer that is installed.

    Parameters
    ----------
    tensors : sequence of uint8 ndarray
        What to encode.
    nbytes : int
        The tensors are copied until they take at least this much, or are 10,000.
    repeats : int
        Rounds; medians are reported, with the lowest and highest.
    threads : int
        Threads for every contender that can use them.
    names : sequence of str, optional
        Only contenders whose names contain one of these, ignoring case.
    progress : callable, optional
        Called with the name of each contender before it runs.

    Returns
    -------
    list of Result
        In the order of the contenders, memcpy first.

    Raises
    ------
    ValueError
        If there cannot be so many threads, or no contender has one of the names.
    """
    total = sum(tensor.nbytes for tensor in tensors)
    copies = max(1, min(-(-nbytes // total), _MAX_TENSORS // len(tensors)))
    data = [tensor.copy() for _ in range(copies) for tensor in tensors]
    out = [np.zeros_like(tensor) for tensor in data]
    results = []
    keep_freed_memory()
    with codec_threads(threads):
        for contender in _wanted(list(_contenders(threads)), names):
            if progress is not None:
                progress(contender.name)
            results.append(_measure(contender, data, out, repeats))
    return results


def to_csv(results: Sequence[Result]) -> str:
    """Return results as CSV text, one line a contender."""
    text = io.StringIO()
    rows = [asdict(result) | {"ratio": result.ratio} for result in results]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_json(results: Sequence[Result], where: Machine) -> str:
    """Return machine and results as JSON text."""
    rows = [asdict(result) | {"ratio": result.ratio} for result in results]
    return json.dumps({"machine": asdict(where), "results": rows}, indent=2)
