"""Paths as callers give them."""

from __future__ import annotations

import os

__all__ = ["given_path"]


def given_path(path: str | os.PathLike[str], of: str) -> str:
    """Return a path, or an address, as text.

    An empty one, as from a variable of the shell that is not set, would be the current folder.

    Parameters
    ----------
    path
        What the caller gave.
    of
        What is there, for the message.

    Raises
    ------
    ValueError
        If it is empty.
    """
    text = os.fspath(path)
    if not text:
        raise ValueError(f'the path of the {of} is empty (write "." for the current folder)')
    return text
