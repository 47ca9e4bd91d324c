"""Arguments of functions, checked where they are given, and named as callers know them."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

__all__ = [
    "argument",
    "as_integer",
    "as_options",
    "for_caller",
    "named_as_options",
    "one_of",
    "positive",
    "seconds",
]

# One for the process, since any of its threads may make messages.
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


def as_integer(name: str, value: Any, allowed: range | None = None) -> int:
    """Return an argument as an int.

    TypeError is raised if it is not an integer, or is True or False; ValueError if it is not one of
    those that are allowed, when they are given.
    """
    limits = f"between {allowed[0]} and {allowed[-1]}" if allowed else ""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        kind, expected = type(value).__name__, f"an integer, {limits}" if limits else "an integer"
        raise TypeError(f"{name} must be {expected}, not {value!r:.80} ({kind})") from None
    if allowed is not None and number not in allowed:
        raise ValueError(f"{name} must be {limits}, not {number}")
    return number


def as_options(options: Any) -> dict[str, Any]:
    """Return `storage_options`, which may be None; raise TypeError unless they are a mapping."""
    if options is not None and not isinstance(options, Mapping):
        kind = type(options).__name__
        raise TypeError(f"storage_options must be a dict, not {options!r:.80} ({kind})")
    return dict(options or {})


def positive(name: str, value: Any) -> int:
    """Return an argument as an int, as `as_integer` does; raise ValueError if it is below 1."""
    number = as_integer(name, value)
    if number < 1:
        raise ValueError(f"{name} must be positive, not {number}")
    return number


def seconds(name: str, value: Any) -> float | None:
    """Return an argument as a number of seconds, or None for no limit.

    Raises TypeError if it is no number, and ValueError if it is negative or NaN.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        kind = type(value).__name__
        raise TypeError(f"{name} must be a number of seconds, not {value!r:.80} ({kind})")
    number = float(value)
    if not number >= 0:
        raise ValueError(f"{name} must be a number of seconds, and not {number:g}")
    return number


def one_of(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Return a parameter's value; raise TypeError or ValueError unless it is one of some names."""
    names = list(allowed)
    listed = " or ".join(map(repr, names)) if len(names) == 2 else f"one of {', '.join(names)}"
    if not isinstance(value, str):
        kind = type(value).__name__
        raise TypeError(f"{name} must be a string, {listed}, not {value!r:.80} ({kind})")
    if value not in names:
        near = difflib.get_close_matches(value[:80], names, 1, 0.65)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"{name} must be {listed}, not {value!r:.80}{hint}")
    return value
