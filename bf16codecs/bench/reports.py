"""Results as text for other programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from bf16codecs.bench.host import Machine
from bf16codecs.bench.measure import Result

__all__ = ["to_csv", "to_json"]


def to_csv(results: Sequence[Result]) -> str:
    """Return results as CSV text, one line a contender."""
    text = io.StringIO()
    rows = [asdict(result) | {"ratio": result.ratio} for result in results]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_json(
    results: Sequence[Result], where: Machine, figures: Mapping[str, str] | None = None
) -> str:
    """Return machine, results, and figures of other kinds, as JSON text."""
    rows = [asdict(result) | {"ratio": result.ratio} for result in results]
    return json.dumps(
        {"machine": asdict(where), "results": rows, "figures": dict(figures or {})}, indent=2
    )
