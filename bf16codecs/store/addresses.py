"""What is an address, and what a path."""

from __future__ import annotations

__all__ = ["LOCAL_SCHEMES", "path_of"]

#: Of addresses that are paths.
LOCAL_SCHEMES = ("file", "local")


def path_of(text: str) -> str | None:
    """Return a local path, with or without a scheme before it; None for an address."""
    scheme, has_scheme, path = text.partition("://")
    if not has_scheme:
        return text
    return path if scheme.lower() in LOCAL_SCHEMES else None
