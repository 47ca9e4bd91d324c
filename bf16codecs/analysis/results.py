"""Results of an analysis: plain dataclasses, a table, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bf16codecs.analysis.histogram import Histogram
from bf16codecs.analysis.reach import DIFFERENCE
from bf16codecs.analysis.scales import Scales
from bf16codecs.analysis.statistics import Spread, Statistics
from bf16codecs.errors import Damage

__all__ = ["Analysis", "GroupAnalysis", "StepAnalysis", "TensorAnalysis"]


@dataclass(frozen=True)
class TensorAnalysis:
    """The analysis of a tensor.

    Attributes
    ----------
    name, kind : str
        Its name, and the kind that this means: ``"attention"``, for one.
    layer : int or None
        The number in its name.
    shape : tuple of int
        Its shape.
    statistics : Statistics
        Entropies and counts.
    bits : dict
        Bits a value that each codec reaches, by its name.
    blocks : dict
        How whole 64 KiB blocks differ in bits a value: ``"entropy"``, and by the names of codecs.
    scales : Scales or None
        Of tensors of floating-point numbers with at least two dimensions.
    histogram : Histogram or None
        Of the values; None if there are none.
    """

    name: str
    kind: str
    layer: int | None
    shape: tuple[int, ...]
    statistics: Statistics
    bits: dict[str, float]
    blocks: dict[str, Spread]
    scales: Scales | None
    histogram: Histogram | None


@dataclass(frozen=True)
class GroupAnalysis:
    """The analysis of all tensors of one dtype, or of those of one kind among them.

    Attributes
    ----------
    kind : str
        The kind, or ``"all"``.
    tensors : int
        How many there are.
    statistics : Statistics
        Entropies and counts of all of their values together.
    exponent_per_tensor : float or None
        The mean of the tensors' own entropies of exponents, weighted by values: how many bits
        exponents take with a code for each tensor. None for integers.
    bits, blocks : dict
        As for tensors.
    """

    kind: str
    tensors: int
    statistics: Statistics
    exponent_per_tensor: float | None
    bits: dict[str, float]
    blocks: dict[str, Spread]


@dataclass(frozen=True)
class StepAnalysis:
    """The analysis of a checkpoint in a series; `changes` are those since the one before it.

    Attributes
    ----------
    step : str
        Its number, or the name of its file.
    model : GroupAnalysis
        All tensors of the dtype that has most of the bytes.
    kinds : list of GroupAnalysis
        The kinds among them.
    """

    step: str
    model: GroupAnalysis
    kinds: list[GroupAnalysis]


@dataclass(frozen=True)
class Analysis:
    """The analysis of a model; of a series, that of its last checkpoint.

    Attributes
    ----------
    path : str
        The model.
    base : str or None
        What it was compared with.
    share : float
        The part of its bytes that was looked at.
    model : GroupAnalysis
        All tensors of the floating-point dtype that has most of the bytes; of whatever dtype, if
        none has such numbers.
    dtypes, kinds : list of GroupAnalysis
        All tensors of each dtype, and those of each dtype and kind.
    tensors : list of TensorAnalysis
        In the order of their data.
    steps : list of StepAnalysis
        Of a series, each checkpoint, compared with the one before it.
    damage : tuple of Damage
        What could not be read: all else is without it.
    """

    path: str
    base: str | None
    share: float
    model: GroupAnalysis
    dtypes: list[GroupAnalysis]
    kinds: list[GroupAnalysis]
    tensors: list[TensorAnalysis]
    steps: list[StepAnalysis] = field(default_factory=list)
    damage: tuple[Damage, ...] = ()

    def table(self) -> dict[str, list[Any]]:
        """Return a row for each tensor, as columns by name.

        Returns
        -------
        dict of list
            What ``pandas.DataFrame(...)`` and ``polars.DataFrame(...)`` take. Bits are bits a
            value; `payload` is bits a byte.
        """
        return _columns([{"name": t.name, **_row(t)} for t in self.tensors])

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON has it, but the byte counts of single tensors."""
        found = {**asdict(self), "damage": [own._asdict() for own in self.damage]}
        for tensor in found["tensors"]:
            # With thousands of tensors, these are half of the text.
            del tensor["statistics"]["byte_counts"]
        return found


def _row(tensor: TensorAnalysis) -> dict[str, Any]:
    own, found = tensor.statistics, tensor.statistics.entropies
    row: dict[str, Any] = {
        "kind": tensor.kind,
        "layer": tensor.layer,
        "dtype": own.dtype,
        "shape": list(tensor.shape),
        "values": own.values,
        "nbytes": own.nbytes,
        "payload": found.payload,
        "payload_given_previous": found.payload_given_previous,
        "high_byte": found.bytes[0],
        "low_byte": found.bytes[-1],
        "sign": found.sign,
        "exponent": found.exponent,
        "mantissa": found.mantissa,
        "sign_and_mantissa": found.sign_and_mantissa,
        "mantissa_given_exponent": found.mantissa_given_exponent,
        "all_bits": found.all_bits,
    }
    for name, bits in tensor.bits.items():
        row[name.replace(DIFFERENCE, "difference_").replace(" ", "_")] = bits
    if "entropy" in tensor.blocks:
        row["block_entropy"] = tensor.blocks["entropy"].mean
    if tensor.scales is not None:
        for axis, spread in (("row", tensor.scales.rows), ("column", tensor.scales.columns)):
            row[f"{axis}_scale_deviation"] = None if spread is None else spread.deviation
    if own.change is not None:
        row |= {
            "changed": own.change.changed,
            "xor": own.change.xor,
            "difference": own.change.difference,
        }
    return row


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns; None where a row lacks one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
