"""Replaces functions of a library by ours, while they have users."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from bf16codecs._base.forks import make_lock
from bf16codecs._base.messages import from_extra

__all__ = ["Patch", "Replacement"]


class Patch(NamedTuple):
    """The replacement of a function in a module of a library by ours.

    `name` may begin with a class. `needed` are the parameters that ours relies on, the function's
    first one at the front. `wrap` makes ours from the original and its signature. Releases may lack
    the function if it `is_optional`.
    """

    module: str
    name: str
    needed: tuple[str, ...]
    wrap: Callable[[Callable[..., Any], inspect.Signature], Callable[..., Any]]
    is_optional: bool = False

    @property
    def current(self) -> Any:
        """The function that the name now refers to; None if this release lacks it."""
        return getattr(self._owner, self.name.rpartition(".")[2], None)

    def assign(self, function: Callable[..., Any]) -> None:
        """Let the name refer to a function."""
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

    def signature(self) -> inspect.Signature | None:
        """Return the function's signature; None if it lacks parameters in `needed`."""
        function = self.current
        if function is not None:
            try:
                signature = inspect.signature(function)  # of a wrapper, the wrapped function's
            except ValueError:  # a function of an extension module
                return _loose_signature(*self.needed)
            if signature.parameters.keys() >= set(self.needed):
                return signature
            with suppress(TypeError):
                signature.bind(**dict.fromkeys(self.needed))
                return _loose_signature(*self.needed)
        return None


def _loose_signature(first: str, *others: str) -> inspect.Signature:
    """Return the signature of a function of any arguments, with the parameters that ours needs."""
    parameter = inspect.Parameter
    return inspect.Signature(
        [
            parameter(first, parameter.POSITIONAL_OR_KEYWORD),
            parameter("args", parameter.VAR_POSITIONAL),
            *(parameter(name, parameter.KEYWORD_ONLY, default=None) for name in others),
            parameter("kwargs", parameter.VAR_KEYWORD),
        ]
    )


class Replacement:
    """Assigns our functions for the first user, and the originals again after the last.

    `tried` names the releases of the library that were tried. A function that another library has
    since put around ours stays, with ours in it: without users, ours only calls the original, and
    for the next user, ours is put around it all again.
    """

    def __init__(self, library: str, tried: str, patches: Sequence[Patch]) -> None:
        self._library, self._tried = library, tried
        self._patches, self._lock = patches, make_lock()
        self._users: dict[object, bool] = {}
        self._ours: list[tuple[Patch, Callable[..., Any], Callable[..., Any]]] = []

    @property
    def lasts(self) -> bool:
        """Whether a user wants the replacement until its removal, not for a block of code alone."""
        return any(self._users.values())

    def add(self, user: object, lasts: bool = True) -> None:
        """Replace all functions, or none; raise ImportError without a supported library."""
        with from_extra(self._library, f"models of {self._library}"):
            importlib.import_module(self._library)
            importlib.import_module(self._patches[0].module)
        with self._lock:
            missing = [patch for patch in self._patches if not self._is_ours(patch.current)]
            signatures = [(patch, self._signature(patch)) for patch in missing]
            for patch, signature in signatures:
                if signature is not None:
                    original = patch.current
                    ours = patch.wrap(original, signature)
                    self._ours.append((patch, ours, original))
                    patch.assign(ours)
            self._users[user] = lasts

    def remove(self, user: object) -> None:
        """Assign the originals again, unless another user remains."""
        with self._lock:
            self._users.pop(user, None)
            if self._users:
                return
            for patch, ours, original in reversed(self._ours):
                if patch.current is ours:
                    patch.assign(original)
            self._ours.clear()

    def _is_ours(self, function: Any) -> bool:
        """Tell whether a function is one of ours, or wraps one."""
        while function is not None:
            if any(function is ours for _, ours, _ in self._ours):
                return True
            function = getattr(function, "__wrapped__", None)
        return False

    def _signature(self, patch: Patch) -> inspect.Signature | None:
        signature = patch.signature()
        if signature is None and not patch.is_optional:
            version = importlib.import_module(self._library).__version__
            raise ImportError(
                f"{self._library} {version} loads models in a way that this release of bf16codecs"
                f" does not know: {self._tried} were tried: install one of these",
                name=self._library,
            )
        return signature
