"""Arguments of functions, checked where they are given, and named as callers know them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["argument", "as_integer", "for_caller", "named_as_options"]

# Of the process, since messages may be made in any of its threads.
_are_options = False


@contextmanager
def named_as_options() -> Iterator[None]:
    """Let messages name arguments as the options of a command, as long as it runs."""
    global _are_options
    before, _are_options = _are_options, True
    try:
        yield
    finally:
        _are_options = before


def for_caller(python: str, command: str) -> str:
    """Return what a message says to the caller of a function, or to the user of a command."""
    return command if _are_options else python


def argument(name: str) -> str:
    """Return an argument's name for a message: ``max_bytes``, or ``--max-bytes``."""
    return for_caller(name, f"--{name.replace('_', '-')}")


def as_integer(name: str, value: Any, limits: str = "") -> int:
    """Return an argument as an int; raise TypeError if it is not an integer, or is True or False.

    `limits` is what else the message says of it, such as ``", between 1 and 22"``.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        kind = type(value).__name__
        text = f"{name} must be an integer{limits}, not {value!r:.80} ({kind})"
        raise TypeError(text) from None
