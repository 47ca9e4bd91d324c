"""Results as CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bf16codecs.bench.host import Machine
from bf16codecs.bench.measure import Failure, Result
from bf16codecs.bench.plan import Plan, PlannedStudy

__all__ = ["Measured", "to_csv", "to_json"]


@dataclass(frozen=True)
class Measured:
    """Results of a planned study, and its other figures by name."""

    planned: PlannedStudy
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    figures: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Return results as JSON objects."""
        labels = {"system": self.planned.system, "dtype": self.planned.data.dtype}
        return [asdict(result) | {"ratio": result.ratio} | labels for result in self.results]


def to_csv(tables: Sequence[Measured]) -> str:
    """Return results as CSV text, one line for each contender."""
    text = io.StringIO()
    rows = [row for table in tables for row in table.rows()]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_json(tables: Sequence[Measured], plan: Plan, machine: Machine) -> dict[str, Any]:
    """Return results, failures and what was left out, and why, as a JSON object."""
    return {
        "machine": asdict(machine),
        "dtype": tables[0].planned.data.dtype,
        "results": [row for table in tables for row in table.rows()],
        "figures": {name: value for table in tables for name, value in table.figures.items()},
        "failures": [
            {"system": table.planned.system, **asdict(failure)}
            for table in tables
            for failure in table.failures
        ],
        "left_out": plan.left_out | dict.fromkeys(plan.slow, "takes minutes for a large model"),
        "not_installed": [peer.package for peer in plan.absent if not peer.reason],
    }
