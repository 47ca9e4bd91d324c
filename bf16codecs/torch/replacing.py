"""Replaces functions of transformers by ours, as long as there are users of them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from bf16codecs._base.forks import make_lock
from bf16codecs._base.messages import from_extra

__all__ = ["Place", "Replacement"]

#: Releases of transformers that were tried.
_TRIED = "5.0, 5.23 and 5.24"


class Place(NamedTuple):
    """A function of transformers that ours replaces; with `is_optional`, releases may lack it.

    `name` may begin with a class. `needed` are the parameters that ours relies on, and begin with
    the function's first one. `wrap` makes ours of the original and its signature.
    """

    module: str
    name: str
    needed: tuple[str, ...]
    wrap: Callable[[Callable[..., Any], inspect.Signature], Callable[..., Any]]
    is_optional: bool = False

    @property
    def function(self) -> Any:
        """The function that is in the place; None if there is none."""
        return getattr(self._owner, self.name.rpartition(".")[2], None)

    def put(self, function: Callable[..., Any]) -> None:
        """Put a function in the place."""
        setattr(self._owner, self.name.rpartition(".")[2], function)

    @property
    def _owner(self) -> Any:
        try:
            owner: Any = importlib.import_module(self.module)
        except ModuleNotFoundError:
            owner = None
        for name in self.name.split(".")[:-1]:
            owner = getattr(owner, name, None)
        return owner

    def signature(self) -> inspect.Signature:
        """Return the function's signature; raise ImportError if it lacks parameters in `needed`."""
        function = self.function
        if function is not None:
            try:
                signature = inspect.signature(function)  # of the wrapped function, if there is one
            except ValueError:  # of extensions
                return _loose_signature(*self.needed)
            if signature.parameters.keys() >= set(self.needed):
                return signature
            with suppress(TypeError):
                signature.bind(**dict.fromkeys(self.needed))
                return _loose_signature(*self.needed)
        import transformers

        raise ImportError(
            f"transformers {transformers.__version__} loads models in a way that this release does"
            f" not know: {_TRIED} were tried: install one of these",
            name="transformers",
        )


def _loose_signature(first: str, *others: str) -> inspect.Signature:
    """Return the signature of a wrapper of any arguments, with the names that ours needs."""
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            kinds(first, kinds.POSITIONAL_OR_KEYWORD),
            kinds("args", kinds.VAR_POSITIONAL),
            *(kinds(name, kinds.KEYWORD_ONLY, default=None) for name in others),
            kinds("kwargs", kinds.VAR_KEYWORD),
        ]
    )


class Replacement:
    """Puts our functions in place for the first user, and the originals back after the last.

    What others have put on top stays, and so does ours below it: without users, ours does
    nothing, and the next user gets ours on top again.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places, self._lock = places, make_lock()
        self._users: set[object] = set()
        self._ours: list[tuple[Place, Callable[..., Any], Callable[..., Any]]] = []

    def is_wanted_by(self, user: object) -> bool:
        """Tell whether there is a user."""
        return user in self._users

    def add(self, user: object) -> None:
        """Replace all functions, or none; raise ImportError without a supported transformers."""
        with from_extra("transformers", "models of transformers"):
            from transformers import modeling_utils  # noqa: F401
        with self._lock:
            missing = [place for place in self._places if not self._is_ours(place.function)]
            found = [(place, self._signature(place)) for place in missing]
            for place, signature in found:
                if signature is not None:
                    original = place.function
                    ours = place.wrap(original, signature)
                    self._ours.append((place, ours, original))
                    place.put(ours)
            self._users.add(user)

    def remove(self, user: object) -> None:
        """Put the originals back, unless there is another user."""
        with self._lock:
            self._users.discard(user)
            if self._users:
                return
            for place, ours, original in reversed(self._ours):
                if place.function is ours:
                    place.put(original)
            self._ours.clear()

    def _is_ours(self, function: Any) -> bool:
        """Tell whether a function is one of ours, or wraps one."""
        while function is not None:
            if any(function is ours for _, ours, _ in self._ours):
                return True
            function = getattr(function, "__wrapped__", None)
        return False

    @staticmethod
    def _signature(place: Place) -> inspect.Signature | None:
        try:
            return place.signature()
        except ImportError:
            if place.is_optional:
                return None
            raise
