"""Measuring a contender, round by round."""

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
from bf16codecs.bench.data import Bytes, picked

__all__ = ["Failure", "Rates", "Result", "Work", "measure"]

# Of small models: more tensors measure nothing new, and each call takes microseconds at least.
_MAX_TENSORS = 10_000
# Of fewer rounds, the median is no better than any of them; of less data, rates are those of calls.
_LEAST_ROUNDS, _MOST_ROUNDS, _LEAST_BYTES = 3, 5, 1 << 20
# Of one tensor: LZMA takes three seconds for it.
_PROBE_BYTES, _TRIAL_BYTES = 1 << 23, 1 << 12


@dataclass(frozen=True)
class Result:
    """One contender's result; rates in GB/s of decoded bytes, ratios to memcpy in their round.

    `nbytes` are those that were measured, `peak_bytes` what encoding and decoding one tensor of at
    most 8 MiB takes. Of lossy contenders, `exact` says that they lost only what rounding takes.
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
    """A contender that could not be measured, and why."""

    name: str
    threads: int
    message: str


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
class Rates:
    """Of several rounds, in GB/s; the ratio is to what was copied in the same round, a median."""

    median: float
    least: float
    most: float
    to_memcpy: float

    @classmethod
    def of(cls, nbytes: int, seconds: Sequence[float], copying: Sequence[float]) -> Rates:
        """Return the rates of rounds that took so long, and in which copying took so long."""
        rates = [nbytes / s / 1e9 for s in seconds]
        to_memcpy = statistics.median(c / s for c, s in zip(copying, seconds, strict=True))
        return cls(statistics.median(rates), min(rates), max(rates), to_memcpy)


@dataclass(frozen=True)
class Work:
    """The data of a contender: tensors, repeated or left out to fit the time.

    Attributes
    ----------
    tensors : list of uint8 ndarray
        Each is encoded alone.
    nbytes : int
        They are copied until they take this much, or are 10,000.
    item_size : int
        Bytes of a number.
    may_shrink : bool
        Whether less is measured where there is no time for all.
    """

    tensors: Sequence[Bytes]
    nbytes: int
    item_size: int
    may_shrink: bool = False

    def data(self, affordable: int) -> list[Bytes]:
        """Return copies of the tensors, or some of them if no more bytes than that shall be."""
        sizes = [tensor.nbytes for tensor in self.tensors]
        total, copies = sum(sizes), -(-self.nbytes // sum(sizes))
        if self.may_shrink and affordable < total:
            taken = picked(sizes, affordable, self.item_size)
            return [self.tensors[i][:size].copy() for i, size in taken]
        if self.may_shrink:
            copies = min(copies, affordable // total)
        copies = max(1, min(copies, _MAX_TENSORS // len(sizes)))
        return [tensor.copy() for _ in range(copies) for tensor in self.tensors]


def measure(contender: Contender, work: Work, repeats: int | None, seconds: float) -> Result:
    """Measure a contender, in a process that has done nothing else.

    Parameters
    ----------
    contender
        What encodes and decodes.
    work
        What it gets.
    repeats
        Rounds. None: as many as there is time for, 3 to 5.
    seconds
        The time that it should take. Less data are measured, and fewer rounds, if it is too short.
    """
    start = time.perf_counter()
    with codec_threads(contender.threads):
        peak_bytes, rate = _probe(contender, work)
        keep_freed_memory()
        left = max(0.0, seconds - (time.perf_counter() - start))
        data = work.data(max(_LEAST_BYTES, int(left * rate / (repeats or _LEAST_ROUNDS))))
        out = [np.zeros_like(piece) for piece in data]
        copying: list[float] = []
        rounds: list[tuple[float, float, int, bool]] = []
        while len(rounds) < (repeats or _MOST_ROUNDS):
            copying.append(_memcpy_seconds(data, out))
            rounds.append(_round_trip(contender, data, out))
            is_late = time.perf_counter() - start > seconds
            if repeats is None and is_late and len(rounds) >= _LEAST_ROUNDS:
                break
    nbytes = sum(tensor.nbytes for tensor in data)
    # memcpy has one direction; its "encode" returns its argument. Its copies are the round's, or it
    # would be compared with another copy, and not be 1.
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
    """Return what one tensor takes in memory, its result included, and bytes a second of it."""
    piece = max(work.tensors, key=lambda tensor: tensor.nbytes)[:_PROBE_BYTES]
    out = np.zeros_like(piece)
    # What comes with the first call is code, and no memory that data take.
    _round_trip(contender, [piece[:_TRIAL_BYTES]], [out[:_TRIAL_BYTES]])
    give_back_freed_memory()
    with peak_memory() as peak:
        start = time.perf_counter()
        contender.decode(contender.encode(piece), out)
        seconds = time.perf_counter() - start
        return peak(), piece.nbytes / max(seconds, 1e-9)
