"""What people read: text on one line, sizes with their units."""

from __future__ import annotations

__all__ = ["format_rate", "format_size", "printable"]


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
