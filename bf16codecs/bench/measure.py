"""Measuring contenders, round by round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bf16codecs._memory import keep_freed_memory, peak_memory
from bf16codecs._threads import codec_threads
from bf16codecs.bench.contenders import Contender, contenders, copy
from bf16codecs.bench.data import Bytes

__all__ = ["Result", "measure", "run"]

# Of small models: more tensors measure nothing new, and each call takes microseconds at least.
_MAX_TENSORS = 10_000


@dataclass(frozen=True)
class Result:
    """One contender's result; rates in GB/s of decoded bytes, ratios to memcpy in their round.

    Of lossy ones, `exact` says that they lost only what rounding takes.
    """

    name: str
    threads: int
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
    lossy: bool

    @property
    def ratio(self) -> float:
        """Decoded size over encoded size."""
        return self.nbytes / max(1, self.encoded_nbytes)


def _encoded_nbytes(encoded: Any) -> int:
    parts = encoded if isinstance(encoded, list) else [encoded]
    return sum(memoryview(part).nbytes for part in parts)


def _round_trip(
    contender: Contender, data: Sequence[Bytes], out: Sequence[Bytes]
) -> tuple[float, float, int, bool]:
    start = time.perf_counter()
    encoded = [contender.encode(tensor) for tensor in data]
    middle = time.perf_counter()
    decoded = [contender.decode(e, o) for e, o in zip(encoded, out, strict=True)]
    end = time.perf_counter()
    size = sum(map(_encoded_nbytes, encoded))
    expected = data if contender.restored is None else map(contender.restored, data)
    exact = all(
        np.array_equal(np.frombuffer(d, np.uint8), tensor)
        for d, tensor in zip(decoded, expected, strict=True)
    )
    return middle - start, end - middle, size, exact


def _memcpy_seconds(data: Sequence[Bytes], out: Sequence[Bytes]) -> float:
    start = time.perf_counter()
    for tensor, o in zip(data, out, strict=True):
        copy(tensor, o)
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


def _measure_one(
    contender: Contender, data: Sequence[Bytes], out: Sequence[Bytes], item_size: int, repeats: int
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
        threads=contender.threads,
        nbytes=nbytes,
        encoded_nbytes=size,
        bits_per_value=8 * item_size * size / nbytes,
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
        lossy=contender.restored is not None,
    )


def _wanted(candidates: list[Contender], names: Sequence[str] | None) -> list[Contender]:
    """Return memcpy and the contenders with one of these in their names, or all."""
    if names is None:
        return candidates
    first, *others = candidates
    found = [c for c in others if any(n.lower() in c.name.lower() for n in names)]
    if not found:
        raise ValueError(
            f"no codec has {' or '.join(map(repr, names))} in its name; there are"
            f" {', '.join(c.name for c in others)}"
        )
    return [first, *found]


def measure(
    candidates: Iterable[Contender],
    data: Sequence[Bytes],
    *,
    item_size: int = 2,
    repeats: int = 5,
    names: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Result]:
    """Measure contenders, memcpy first, as `run` says, on data of items of `item_size` bytes."""
    out = [np.zeros_like(piece) for piece in data]
    results = []
    keep_freed_memory()
    for contender in _wanted(list(candidates), names):
        if progress is not None:
            progress(contender.name)
        with codec_threads(contender.threads):
            results.append(_measure_one(contender, data, out, item_size, repeats))
    return results


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
    return measure(contenders(threads), data, repeats=repeats, names=names, progress=progress)
