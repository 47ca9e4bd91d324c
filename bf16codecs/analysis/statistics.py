"""Statistics of tensors: entropies of counted values, and spreads of sizes and scales."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bf16codecs._base.fields import FIELDS, conditional_entropy, entropy
from bf16codecs.analysis.counts import NEIGHBOURS, PLANES, Counts

__all__ = ["Change", "Entropies", "Prediction", "Spread", "Statistics", "statistics_of"]

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Spread:
    """The spread of a number over blocks, rows or columns.

    Attributes
    ----------
    count : int
        The number of blocks, rows or columns.
    mean, deviation : float
        Mean, and standard deviation.
    quantiles : tuple of float
        The least; the 5, 25, 50, 75 and 95 % quantiles; and the largest.
    """

    count: int
    mean: float
    deviation: float
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, numbers: NDArray[np.float64]) -> Spread | None:
        """Return the spread of some numbers; None without numbers."""
        if not numbers.size:
            return None
        # np.quantile takes ten times as long for few numbers, and most tensors have few.
        ranks = np.multiply(_QUANTILES, numbers.size - 1)
        quantiles = tuple(np.interp(ranks, np.arange(numbers.size), np.sort(numbers)).tolist())
        return cls(numbers.size, float(numbers.mean()), float(numbers.std()), quantiles)


# The bits of each value of a byte.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float64)


@dataclass(frozen=True)
class Entropies:
    """Order-0 entropies in bits per value; those of the payload are in bits per byte.

    Attributes
    ----------
    payload, payload_given_previous : float
        Bits per byte of the data as stored: of each byte alone, and of a byte whose predecessor
        is known (the first-order conditional entropy).
    bytes : tuple of float
        The entropy of each byte of the values, the most significant one first: the high byte and
        the low byte of BF16.
    sign, exponent, mantissa, sign_and_mantissa, mantissa_given_exponent : float or None
        Entropies of the fields. None for integers; those of mantissas, also for values of more than
        16 bits.
    all_bits : float or None
        The entropy of whole values; None if they have more than 16 bits.
    """

    payload: float
    payload_given_previous: float
    bytes: tuple[float, ...]
    sign: float | None = None
    exponent: float | None = None
    mantissa: float | None = None
    sign_and_mantissa: float | None = None
    mantissa_given_exponent: float | None = None
    all_bits: float | None = None


@dataclass(frozen=True)
class Prediction:
    """How well a neighbour predicts a value, in bits per value.

    Attributes
    ----------
    neighbour : str
        ``"left"``, the value before it, or ``"upper"``, the one above it in its column.
    of : str
        The predicted part of the value: ``"high byte"``, ``"exponent byte"`` (of the value rotated
        left by one bit), or ``"all bits"``.
    alone : float
        Its entropy.
    given : float or None
        Its conditional entropy given the neighbour: with much data, no predictor from that
        neighbour gets below. None for all bits, which have too many pairs to count.
    delta, xor : float
        The entropies of the difference to the neighbour, and of the exclusive or of both. They
        exceed `alone` where neighbours have little to do with each other, since the residual of
        two independent values is spread wider than either.
    """

    neighbour: str
    of: str
    alone: float
    given: float | None
    delta: float
    xor: float


@dataclass(frozen=True)
class Change:
    """Differences to a base.

    Attributes
    ----------
    values : int
        The number of compared values.
    changed : float
        The part of them that differs.
    xor, difference : float
        Entropies in bits per value of the exclusive or, and of the difference: that of bit
        patterns in the order of the numbers for floats, modulo their range for integers. For
        values of more than 16 bits, the sums over their 16-bit words.
    flipped : tuple of float
        For each bit, the most significant one first, the part of the values in which it differs.
    """

    values: int
    changed: float
    xor: float
    difference: float
    flipped: tuple[float, ...]


@dataclass(frozen=True)
class Statistics:
    """Statistics of values of one dtype.

    Attributes
    ----------
    dtype : str
        The name of the dtype in safetensors.
    values : int
        The number of values that were analyzed.
    nbytes : int
        Their size in bytes.
    entropies : Entropies
        Entropies of bytes, fields and whole values.
    exponents : tuple of int
        How often each exponent occurs; empty for integers.
    byte_counts : tuple of tuple of int
        How often each value of each byte occurs, the most significant byte first.
    set_bits : tuple of float
        For each bit, the most significant one first, the part of the values in which it is set.
    predictions : tuple of Prediction
        How well neighbours predict a value. Empty for values of one byte, and without neighbours.
    change : Change or None
        The differences to the base; None without a base.
    """

    dtype: str
    values: int
    nbytes: int
    entropies: Entropies
    exponents: tuple[int, ...]
    byte_counts: tuple[tuple[int, ...], ...]
    set_bits: tuple[float, ...]
    predictions: tuple[Prediction, ...]
    change: Change | None = None


def statistics_of(dtype: str, counts: Counts) -> Statistics:
    """Return the statistics of counted values of one dtype."""
    fields = _field_counts(dtype, counts)
    pairs, planes = counts.pairs(), _byte_counts(counts, "word")
    entropies = Entropies(
        payload=entropy(sum(planes)),  # type: ignore[arg-type]
        payload_given_previous=conditional_entropy(pairs),
        bytes=tuple(map(entropy, planes)),
        all_bits=entropy(counts.words()) if counts.item_size <= 2 else None,
        **({} if fields is None else _field_entropies(fields, counts.item_size <= 2)),
    )
    return Statistics(
        dtype=dtype,
        values=counts.items,
        nbytes=counts.items * counts.item_size,
        entropies=entropies,
        exponents=() if fields is None else tuple(fields.sum((0, 2)).tolist()),
        byte_counts=tuple(tuple(plane.tolist()) for plane in planes),
        set_bits=_set_bits(planes),
        predictions=_predictions(counts, entropies.all_bits),
        change=_change_of(counts) if counts.compared else None,
    )


def _change_of(counts: Counts) -> Change:
    words = range(max(1, counts.item_size // 2))
    return Change(
        values=counts.compared,
        changed=counts.changed / max(1, counts.compared),
        xor=sum(entropy(counts.words(word, "XOR")) for word in words),
        difference=sum(entropy(counts.words(word, "difference")) for word in words),
        flipped=_set_bits(_byte_counts(counts, "XOR")),
    )


def _field_counts(dtype: str, counts: Counts) -> NDArray[np.uint64] | None:
    """Return counts by sign, exponent and the top bits of the mantissa; None for integers."""
    fields = FIELDS.get(dtype)
    if fields is None:
        return None
    return fields.split(counts.words())


def _field_entropies(fields: NDArray[np.uint64], is_whole: bool) -> dict[str, float]:
    """Return the entropies of the fields; those of mantissas need all of their bits."""
    by_exponent = fields.sum((0, 2))
    found = {"sign": entropy(fields.sum((1, 2))), "exponent": entropy(by_exponent)}
    if is_whole:
        found |= {
            "mantissa": entropy(fields.sum((0, 1))),
            "sign_and_mantissa": entropy(fields.sum(1)),
            "mantissa_given_exponent": conditional_entropy(fields.sum(0)),
        }
    return found


def _byte_counts(counts: Counts, of: str) -> list[NDArray[np.uint64]]:
    """Return the counts of each byte's values, the most significant byte first."""
    if counts.item_size == 1:
        return [counts.words(0, of)]
    words = (counts.words(n, of).reshape(256, 256) for n in range(counts.item_size // 2))
    return [word.sum(axis) for word in words for axis in (1, 0)]


def _set_bits(planes: Iterable[NDArray[np.uint64]]) -> tuple[float, ...]:
    """Return the share of values in which each bit is set, the most significant bit first."""
    parts = [plane @ _BITS / max(1, plane.sum()) for plane in planes]
    return tuple(np.concatenate(parts).tolist())


def _predictions(counts: Counts, all_bits: float | None) -> tuple[Prediction, ...]:
    found = []
    for side in NEIGHBOURS:
        for plane in PLANES:
            pairs = counts.neighbours(side, plane)
            if pairs is not None and pairs.any():
                found.append(_prediction(side, plane, pairs))
        delta, xor = counts.residuals(side, "delta"), counts.residuals(side, "XOR")
        if delta is not None and xor is not None and all_bits is not None and delta.any():
            residuals = entropy(delta), entropy(xor)
            found.append(Prediction(side, "all bits", all_bits, None, *residuals))
    return tuple(found)


def _prediction(side: str, plane: str, pairs: NDArray[np.uint64]) -> Prediction:
    indices = np.flatnonzero(pairs.reshape(-1) > 0)  # few: most of the table is empty
    found = pairs.reshape(-1)[indices]
    neighbour, value = indices >> 8, indices & 0xFF
    known = np.bincount(neighbour, found)
    return Prediction(
        neighbour=side,
        of=plane,
        alone=entropy(np.bincount(value, found)),
        given=max(0.0, entropy(found) - entropy(known)),
        delta=entropy(np.bincount((value - neighbour) % 256, found)),
        xor=entropy(np.bincount(value ^ neighbour, found)),
    )
