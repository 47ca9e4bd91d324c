"""Arguments of functions, checked where they are given."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["as_integer"]


def as_integer(name: str, value: Any, limits: str = "") -> int:
    """Return an argument as an int.

    Parameters
    ----------
    name, value
        The argument.
    limits
        What else a message says of it, such as ``", between 1 and 22"``.

    Raises
    ------
    TypeError
        If it is no integer; True and False are none.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        kind = type(value).__name__
        text = f"{name} must be an integer{limits}, not {value!r:.80} ({kind})"
        raise TypeError(text) from None
