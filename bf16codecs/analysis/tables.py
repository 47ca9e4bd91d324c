"""Tables and sentences that present an analysis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from bf16codecs._base.fields import FIELDS
from bf16codecs._base.messages import counted, quantised_lines
from bf16codecs.analysis.coded_sizes import CODECS, DIFFERENCE
from bf16codecs.analysis.results import Analysis, GroupAnalysis, StepAnalysis, TensorAnalysis
from bf16codecs.analysis.statistics import Change, Prediction

__all__ = [
    "CHANGES",
    "KINDS",
    "STEPS",
    "Percent",
    "change_row",
    "kind_row",
    "reasons",
    "shown",
    "step_row",
    "summary",
]

#: A table cell: a name, a count, a number of bits, or empty.
Cell = str | int | float | None

_CODECS = ("Huffman", "arithmetic", "best")
#: Titles of `kind_row`, `change_row` and `step_row`.
KINDS = (
    *("tensors of", "dtype", "count", "values"),
    *("high byte", "low byte", "exponent", "sign, mantissa"),
    *_CODECS,
)
CHANGES = ("changes of", "changed", "XOR", "difference", *_CODECS)
STEPS = ("step", "exponent", *_CODECS, "changed", *(f"difference, {name}" for name in _CODECS))


class Percent(float):
    """A fraction that is shown in percent."""


def shown(cell: Cell) -> str:
    """Return the text of a cell."""
    if cell is None:
        return ""
    if isinstance(cell, Percent):
        return f"{100 * cell:.2f} %"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def kind_row(group: GroupAnalysis) -> tuple[Cell, ...]:
    """Return the entropies and coded sizes of tensors of a kind."""
    statistics, found = group.statistics, group.statistics.entropies
    return (
        _kind(group),
        statistics.dtype,
        group.tensors,
        statistics.values,
        found.bytes[0],
        found.bytes[-1],
        found.exponent,
        found.sign_and_mantissa,
        *_reached(group),
    )


def change_row(group: GroupAnalysis, change: Change) -> tuple[Cell, ...]:
    """Return the changes in tensors of a kind."""
    return (
        _kind(group),
        Percent(change.changed),
        change.xor,
        change.difference,
        *_reached(group, DIFFERENCE),
    )


def step_row(step: StepAnalysis) -> tuple[Cell, ...]:
    """Return the coded sizes of a checkpoint, and its changes since the one before it."""
    statistics = step.model.statistics
    change = statistics.change
    return (
        step.step,
        statistics.entropies.exponent,
        *_reached(step.model),
        None if change is None else Percent(change.changed),
        *_reached(step.model, DIFFERENCE),
    )


def _kind(group: GroupAnalysis) -> str:
    return "any kind" if group.kind == "all" else group.kind


def _reached(group: GroupAnalysis, prefix: str = "") -> Iterator[Any]:
    return (group.bits.get(prefix + name) for name in CODECS)


# A smaller gain in bits per value is shown as none.
_LEAST_GAIN = 0.005


def reasons(group: GroupAnalysis | TensorAnalysis) -> Iterator[str]:
    """Yield sentences that explain the compressed size of a group of tensors, or of one."""
    statistics, found = group.statistics, group.statistics.entropies
    if isinstance(group, TensorAnalysis) and group.grid is not None:
        yield f"These weights were quantised once, and multiplied out again: {group.grid}."
    fields = FIELDS.get(statistics.dtype)
    if fields is None or found.exponent is None:
        yield (
            f"{statistics.dtype} numbers have no exponent: only what repeats among them can be"
            " saved."
        )
        return
    occurring = sum(count > 0 for count in statistics.exponents)
    is_uneven = math.log2(max(1, occurring)) - found.exponent >= 0.005
    text = (
        f"Exponents: {occurring} of {len(statistics.exponents)} occur"
        f"{', unevenly' if is_uneven else ''}: they hold {found.exponent:.2f} bits of"
        f" {fields.exponent}"
    )
    if isinstance(group, GroupAnalysis) and group.tensors > 1 and group.exponent_per_tensor:
        text += f"; {group.exponent_per_tensor:.2f} with a table for each tensor"
    yield f"{text}."
    not_finite = sum(statistics.exponents[fields.normal.stop :])
    if not_finite:
        yield f"{100 * not_finite / statistics.values:.2g} % of the values are infinite or NaN."
    if found.sign_and_mantissa is not None:
        yield (
            f"Signs and mantissas hold {found.sign_and_mantissa:.2f} of their"
            f" {fields.sign + fields.mantissa} bits."
        )
    # After a rotation by one bit, the most significant byte is the exponent if that has 8 bits.
    plane, name = "exponent byte", "exponent"
    if fields.exponent != 8:
        plane = name = "high byte"
    for prediction in statistics.predictions:
        given, alone = prediction.given, prediction.alone
        if prediction.of == plane and given is not None:
            yield (
                f"The {prediction.neighbour} neighbour tells {max(0, alone - given):.2f} bits of"
                f" the {name}. Predicted from it, the {name} takes {prediction.delta:.2f} (delta)"
                f" or {prediction.xor:.2f} bits (XOR) instead of {alone:.2f}:"
                f" {_verdict(prediction)}."
            )


def _verdict(prediction: Prediction) -> str:
    gain = prediction.alone - min(prediction.delta, prediction.xor)
    if abs(gain) < _LEAST_GAIN:
        return "no gain"
    return "it helps" if gain > 0 else "worse"


def summary(found: Analysis) -> Iterator[str]:
    """Yield lines about the model and the model that it was compared with."""
    values = sum(group.statistics.values for group in found.dtypes)
    tensors, noun = counted(len(found.tensors), "tensor"), "value" if values == 1 else "values"
    yield f"{found.path}: {tensors}, {values:,} {noun} looked at"
    if found.share < 1:
        yield f"looked at: {100 * found.share:.1f} % of the bytes"
    if found.base is not None:
        yield f"compared with: {found.base}{_compared(found)}"
    yield from quantised_lines((tensor.grid for tensor in found.tensors), len(found.tensors))
    if found.steps:
        yield f"the last of {len(found.steps)} checkpoints, each compared with the one before it"


def _compared(found: Analysis) -> str:
    """Return how many tensors were compared, if not all: a pair has equal name, dtype and shape."""
    count = sum(tensor.statistics.change is not None for tensor in found.tensors)
    if count == len(found.tensors):
        return ""
    return f" ({count} of {len(found.tensors)} tensors: the others are not there, or not alike)"
