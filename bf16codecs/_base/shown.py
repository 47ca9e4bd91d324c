"""Text for people, on one line and with units, and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

__all__ = ["format_rate", "format_size", "json_parts", "printable"]

# Of JSON, how many numbers, names and signs are joined.
_TOKENS = 1 << 16


def printable(text: object) -> str:
    """Return text on one line, with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def format_size(nbytes: float) -> str:
    """Return a size in decimal units (1 MB is 1,000,000 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} TB"


def format_rate(nbytes: float, seconds: float) -> str:
    """Return a rate."""
    return f"{format_size(nbytes / max(seconds, 1e-9))}/s"


def json_parts(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of a JSON object, with a line feed; ValueError for numbers that JSON lacks.

    In one piece, that of thousands of tensors takes hundreds of megabytes.
    """
    tokens = json.JSONEncoder(indent=2, allow_nan=False).iterencode(document)
    tokens = chain(tokens, "\n")
    while part := "".join(islice(tokens, _TOKENS)):
        yield part
