"""The tables that people read of an analysis: titles and rows, on terminals and in reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bf16codecs.analysis.reach import CODECS, DIFFERENCE
from bf16codecs.analysis.results import GroupAnalysis, StepAnalysis
from bf16codecs.analysis.statistics import Change

__all__ = [
    "CHANGES",
    "KINDS",
    "STEPS",
    "Percent",
    "change_row",
    "kind_row",
    "shown",
    "step_row",
]

#: A cell: a name, a count, a figure, or nothing.
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
    """A part, which is shown in percent."""


def shown(cell: Cell) -> str:
    """Return a cell as people read it."""
    if cell is None:
        return ""
    if isinstance(cell, Percent):
        return f"{100 * cell:.2f} %"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def kind_row(group: GroupAnalysis) -> tuple[Cell, ...]:
    """Return what is in tensors of a kind, and what codecs reach."""
    own, found = group.statistics, group.statistics.entropies
    return (
        _kind(group),
        own.dtype,
        group.tensors,
        own.values,
        found.bytes[0],
        found.bytes[-1],
        found.exponent,
        found.sign_and_mantissa,
        *_reached(group),
    )


def change_row(group: GroupAnalysis, change: Change) -> tuple[Cell, ...]:
    """Return what changed in tensors of a kind."""
    return (
        _kind(group),
        Percent(change.changed),
        change.xor,
        change.difference,
        *_reached(group, DIFFERENCE),
    )


def step_row(step: StepAnalysis) -> tuple[Cell, ...]:
    """Return what a checkpoint of a series takes, and what changed since the one before it."""
    own = step.model.statistics
    return (
        step.step,
        own.entropies.exponent,
        *_reached(step.model),
        None if own.change is None else Percent(own.change.changed),
        *_reached(step.model, DIFFERENCE),
    )


def _kind(group: GroupAnalysis) -> str:
    return "any kind" if group.kind == "all" else group.kind


def _reached(group: GroupAnalysis, prefix: str = "") -> Iterator[Any]:
    return (group.bits.get(prefix + name) for name in CODECS)
