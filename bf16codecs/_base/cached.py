"""Properties that are computed once, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["cached_property"]

T = TypeVar("T")


class cached_property(Generic[T]):
    """A property that keeps its first value in the instance, as functools has it from 3.12 on.

    In Python 3.11, that one has a lock for each class. A child that is forked while another thread
    computes the property of any instance waits for that lock for ever. Without one, two threads
    may compute a value at once; one of the two is kept, and both get it.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        kept: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        return kept
