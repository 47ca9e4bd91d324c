"""Results of an analysis: plain dataclasses, a table, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bf16codecs.analysis.coded_sizes import DIFFERENCE
from bf16codecs.analysis.histogram import Histogram
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
        Its name, and its kind, which follows from the name: ``"attention"``, for example.
    layer : int or None
        The number of its layer, from its name.
    shape : tuple of int
        Its shape.
    statistics : Statistics
        Entropies and counts.
    bits : dict
        Bits per value that each codec takes, by its name.
    blocks : dict
        Spreads of the bits per value of whole 64 KiB blocks, by the names of codecs, and by
        ``"entropy"`` for the sum of the entropies of a block's bytes.
    scales : Scales or None
        Scales of rows and columns; None for integers, and for fewer than two dimensions.
    histogram : Histogram or None
        Histogram of the values; None if no value is finite, and for complex numbers.
    grid : str or None
        What the values were quantised to before they were multiplied out again, such as ``"FP8
        E4M3, tiles of 128 x 128"``; None if they lie on no grid that is known.
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
    grid: str | None = None


@dataclass(frozen=True)
class GroupAnalysis:
    """The analysis of all tensors of one dtype, or of those of one kind among them.

    Attributes
    ----------
    kind : str
        The kind, or ``"all"``.
    tensors : int
        The number of tensors.
    statistics : Statistics
        Entropies and counts of the values of all tensors together.
    exponent_per_tensor : float or None
        The mean of the tensors' exponent entropies, weighted by their numbers of values: the bits
        that an exponent takes with a code for each tensor. None for integers.
    bits, blocks : dict
        See `TensorAnalysis`.
    """

    kind: str
    tensors: int
    statistics: Statistics
    exponent_per_tensor: float | None
    bits: dict[str, float]
    blocks: dict[str, Spread]


@dataclass(frozen=True)
class StepAnalysis:
    """The analysis of a checkpoint in a series, with its changes since the one before it.

    Attributes
    ----------
    step : str
        The number of the step, or the name of the file.
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
        The path or address of the model.
    base : str or None
        That of the model that it was compared with.
    share : float
        The part of the model's bytes that was analyzed.
    model : GroupAnalysis
        All tensors of the floating-point dtype that has most of the bytes; of any dtype if the
        model has no floating-point numbers.
    dtypes, kinds : list of GroupAnalysis
        All tensors of each dtype, and those of each dtype and kind.
    tensors : list of TensorAnalysis
        The tensors, in the order of their data.
    steps : list of StepAnalysis
        The checkpoints of a series, each compared with the one before it.
    damage : tuple of Damage
        The parts that could not be read, which no other result includes.
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
            Columns for ``pandas.DataFrame(...)`` or ``polars.DataFrame(...)``. Entropies and coded
            sizes are in bits per value; `payload` and `payload_given_previous` in bits per byte.
        """
        return _columns([{"name": t.name, **_row(t)} for t in self.tensors])

    def to_json(self) -> dict[str, Any]:
        """Return the analysis as a JSON document, without the byte counts of single tensors."""
        found = {**asdict(self), "damage": [part._asdict() for part in self.damage]}
        for tensor in found["tensors"]:
            # With thousands of tensors, these are half of the text.
            del tensor["statistics"]["byte_counts"]
        return found


def _row(tensor: TensorAnalysis) -> dict[str, Any]:
    statistics, found = tensor.statistics, tensor.statistics.entropies
    row: dict[str, Any] = {
        "kind": tensor.kind,
        "layer": tensor.layer,
        "dtype": statistics.dtype,
        "shape": list(tensor.shape),
        "grid": tensor.grid,
        "values": statistics.values,
        "nbytes": statistics.nbytes,
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
    if statistics.change is not None:
        row |= {
            "changed": statistics.change.changed,
            "xor": statistics.change.xor,
            "difference": statistics.change.difference,
        }
    return row


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns, with None where a row lacks a name."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
