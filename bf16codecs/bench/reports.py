"""Results as text for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

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
    results: Sequence[Result],
    where: Machine,
    dtype: str,
    figures: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return machine, dtype, results, and figures of other kinds, as JSON has them."""
    rows = [asdict(result) | {"ratio": result.ratio} for result in results]
    return {
        "machine": asdict(where),
        "dtype": dtype,
        "results": rows,
        "figures": dict(figures or {}),
    }
