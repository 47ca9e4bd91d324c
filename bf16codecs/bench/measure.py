"""Measure a contender, round by round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bf16codecs._base.memory import give_back_freed_memory, keep_freed_memory, peak_memory
from bf16codecs._base.threads import codec_threads
from bf16codecs.bench.contenders import MEMCPY, Contender, copy
from bf16codecs.bench.data import Bytes, cut, picked

__all__ = ["Failure", "Rates", "Result", "Work", "measure"]

# Copies of small models stop here: more would measure nothing new, at microseconds a call.
_MAX_TENSORS = 10_000
# Fewer rounds have no useful median; with less data, rates measure the overhead of calls.
_LEAST_ROUNDS, _MOST_ROUNDS, _LEAST_BYTES = 3, 5, 1 << 20
# Bytes of one tensor to probe, for which LZMA takes three seconds; and of a first, untimed call.
_PROBE_BYTES, _TRIAL_BYTES = 1 << 23, 1 << 12


@dataclass(frozen=True)
class Result:
    """A contender's result: rates in GB/s of decoded bytes, ratios to memcpy in the same round.

    `nbytes` counts the measured bytes. `peak_bytes` is the memory that encoding and decoding one
    tensor of at most 8 MiB takes. `exact` of lossy contenders means no loss beyond rounding.
    """

    name: str
    threads: int
    nbytes: int
    rounds: int
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


@dataclass(frozen=True)
class Failure:
    """A contender that failed, and its error message."""

    name: str
    threads: int
    message: str


def _encoded_nbytes(encoded: Any) -> int:
    parts = encoded if isinstance(encoded, list) else [encoded]
    return sum(memoryview(part).nbytes for part in parts)


def _round_trip(
    contender: Contender, data: Sequence[Bytes], out: Sequence[Bytes]
) -> tuple[float, float, int, bool]:
    given = contender.given(data)
    start = time.perf_counter()
    encoded = [contender.encode(tensor) for tensor in given]
    middle = time.perf_counter()
    decoded = [contender.decode(e, o) for e, o in zip(encoded, out, strict=True)]
    end = time.perf_counter()
    size = sum(map(_encoded_nbytes, encoded))
    expected = given if contender.restored is None else map(contender.restored, given)
    exact = all(
        np.array_equal(np.frombuffer(d, np.uint8), tensor.reshape(-1))
        for d, tensor in zip(decoded, expected, strict=True)
    )
    return middle - start, end - middle, size, exact


def _memcpy_seconds(data: Sequence[Bytes], out: Sequence[Bytes]) -> float:
    start = time.perf_counter()
    for tensor, target in zip(data, out, strict=True):
        copy(tensor.reshape(-1), target)
    return time.perf_counter() - start


@dataclass(frozen=True)
class Rates:
    """Rates of several rounds, in GB/s; the median of their ratios to copying in the same round."""

    median: float
    least: float
    most: float
    to_memcpy: float

    @classmethod
    def of(cls, nbytes: int, seconds: Sequence[float], copying: Sequence[float]) -> Rates:
        """Return the rates of rounds, from their seconds and those of copying in each."""
        rates = [nbytes / s / 1e9 for s in seconds]
        to_memcpy = statistics.median(c / s for c, s in zip(copying, seconds, strict=True))
        return cls(statistics.median(rates), min(rates), max(rates), to_memcpy)


@dataclass(frozen=True)
class Work:
    """Data of a contender: tensors, repeated or left out to fit the time.

    Attributes
    ----------
    tensors : list of uint8 ndarray
        Tensors, each encoded alone, of two dimensions where they have rows.
    nbytes : int
        Size up to which they are copied; there are at most 10,000 copies.
    item_size : int
        Bytes of an item.
    may_shrink : bool
        Whether less may be measured if time is short.
    """

    tensors: Sequence[Bytes]
    nbytes: int
    item_size: int
    may_shrink: bool = False

    def data(self, affordable: int) -> list[Bytes]:
        """Return copies of the tensors, or some of them if only `affordable` bytes fit the time."""
        sizes = [tensor.nbytes for tensor in self.tensors]
        total, copies = sum(sizes), -(-self.nbytes // sum(sizes))
        if self.may_shrink and affordable < total:
            units = [t.shape[1] if t.ndim == 2 else self.item_size for t in self.tensors]
            picks = picked(sizes, affordable, self.item_size, units)
            return [cut(self.tensors[i], size).copy() for i, size in picks]
        if self.may_shrink:
            copies = min(copies, affordable // total)
        copies = max(1, min(copies, _MAX_TENSORS // len(sizes)))
        return [tensor.copy() for _ in range(copies) for tensor in self.tensors]


def measure(contender: Contender, work: Work, repeats: int | None, seconds: float) -> Result:
    """Measure a contender, in a process that has done nothing else.

    Parameters
    ----------
    contender
        The contender.
    work
        Its data.
    repeats
        Number of rounds; None: 3 to 5, as time permits.
    seconds
        Time budget. If it is short, less data and fewer rounds are measured.
    """
    start = time.perf_counter()
    with codec_threads(contender.threads):
        peak_bytes, rate = _probe(contender, work)
        keep_freed_memory()
        left = max(0.0, seconds - (time.perf_counter() - start))
        data = work.data(max(_LEAST_BYTES, int(left * rate / (repeats or _LEAST_ROUNDS))))
        out = [np.zeros(piece.nbytes, np.uint8) for piece in data]
        copying: list[float] = []
        rounds: list[tuple[float, float, int, bool]] = []
        while len(rounds) < (repeats or _MOST_ROUNDS):
            copying.append(_memcpy_seconds(data, out))
            rounds.append(_round_trip(contender, data, out))
            is_late = time.perf_counter() - start > seconds
            if repeats is None and is_late and len(rounds) >= _LEAST_ROUNDS:
                break
    nbytes = sum(tensor.nbytes for tensor in data)
    # memcpy has one direction: its `encode` returns the argument. It is compared with itself, so
    # that its ratio is exactly 1.
    is_memcpy = contender.name == MEMCPY
    decoding = [r[1] for r in rounds]
    decode = Rates.of(nbytes, decoding, decoding if is_memcpy else copying)
    encode = decode if is_memcpy else Rates.of(nbytes, [r[0] for r in rounds], copying)
    size = rounds[0][2]
    return Result(
        name=contender.name,
        threads=contender.threads,
        nbytes=nbytes,
        rounds=len(rounds),
        encoded_nbytes=size,
        bits_per_value=8 * work.item_size * size / nbytes,
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


def _probe(contender: Contender, work: Work) -> tuple[int | None, float]:
    """Return the peak memory for one tensor, results included, and its bytes a second."""
    piece = cut(max(work.tensors, key=lambda tensor: tensor.nbytes), _PROBE_BYTES)
    # Pages of zeros would be provided where the decoder writes, and count as its memory.
    out, trial = np.ones(piece.nbytes, np.uint8), cut(piece, _TRIAL_BYTES)
    # The first call loads code, which must not count as memory of the data.
    _round_trip(contender, [trial], [out[: trial.nbytes]])
    (given,) = contender.given([piece])
    give_back_freed_memory()
    with peak_memory() as peak:
        start = time.perf_counter()
        contender.decode(contender.encode(given), out)
        seconds = time.perf_counter() - start
        return peak(), piece.nbytes / max(seconds, 1e-9)
