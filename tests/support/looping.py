"""Loops over cases in one test, instead of one test for each case of parametrize."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def noted(*names: object) -> Iterator[None]:
    """Add the names of a case to an assertion or error in it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(str(name)[:200] for name in names)}")
        raise


def for_each(
    names: str, values: Iterable[Any] | Callable[[], Iterable[Any]], ids: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each value in turn, as one test; the failing case is noted.

    A skipped case does not stop the rest, and is warned of; if all are, the test is skipped.

    The arguments are those of `pytest.mark.parametrize`; stacked decorators form a product, too. A
    function gives the values when the test runs: nothing is computed while tests are collected.
    """
    own = [name.strip() for name in names.split(",")]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def loop(*args: Any, **fixtures: Any) -> None:
            cases = list(values() if callable(values) else values)
            assert cases, f"no case of {names}"
            skipped = []
            for number, case in enumerate(cases):
                given = dict(zip(own, case if len(own) > 1 else (case,), strict=True))
                try:
                    with noted(f"{names} = {ids[number] if ids else repr(case)[:200]}"):
                        test(*args, **fixtures, **given)
                except pytest.skip.Exception as skip:
                    skipped.append(skip)
            if len(skipped) == len(cases):
                raise skipped[0]
            if skipped:
                text = f"skipped {len(skipped)} of {len(cases)} cases of {names}: {skipped[0]}"
                warnings.warn(text, stacklevel=2)

        # Fixtures remain; pytest looks for them here.
        signature = inspect.signature(test)
        left = [p for name, p in signature.parameters.items() if name not in own]
        loop.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return loop

    return decorate
