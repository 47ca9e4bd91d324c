"""The interface of the folder of a series of checkpoints, on a disk or in an object store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from bf16codecs.errors import StoreError
from bf16codecs.store.attributes import BaseReference
from bf16codecs.store.bases import identity, location_of

__all__ = ["Attributes", "SeriesFolder", "attributes_in", "forget_others"]

Result = TypeVar("Result")


class Attributes(NamedTuple):
    """The attributes of a store that retention needs.

    `base` is the path or address of the store's base, if it has one.
    """

    is_model: bool
    is_checkpoint: bool
    base: str | None


class SeriesFolder(Protocol):
    """The folder that a checkpoint is in, or will be; locations are paths or addresses.

    Attributes
    ----------
    target
        The location of the checkpoint, with all links followed.
    options
        Options of its object store.
    """

    target: str
    options: Mapping[str, Any] | None

    def each(self, work: Callable[[str], Result], locations: Iterable[str]) -> list[Result]:
        """Call a function for each of some locations; return the results in their order."""

    def may_look_at(self, location: str) -> bool:
        """Return whether the attributes of a base elsewhere can be read."""

    def locations(self) -> list[str]:
        """Return the locations of all that is in the folder, without links and hidden work."""

    def attributes(self, location: str) -> Attributes:
        """Return the attributes of a model store, in this folder or elsewhere.

        Raises FileNotFoundError if it is gone, other OSErrors and BF16CodecsError if they cannot be
        read.
        """

    def has_lost_store(self, location: str) -> bool:
        """Return whether something in the folder, not a model, is a folder that was one."""

    def foreign_name(self, location: str) -> str:
        """Return the name of something that a user has put into a store; "" if there is nothing."""

    def rebase(self, location: str, onto: str | None) -> None:
        """Rewrite a store on another base, or on none."""

    def remove(self, location: str) -> None:
        """Remove a store whose attributes were read; no part of it is ever seen under its name."""

    def leftovers(self) -> list[str]:
        """Return the locations of what writers have left that certainly died."""

    def remove_leftovers(self, location: str) -> None:
        """Remove what a dead writer left."""


def forget_others(known: dict[str, Any], folder: str, locations: Iterable[str]) -> None:
    """Forget what is known of locations in a folder, except of those that are there."""
    kept = set(locations)
    for gone in [p for p in list(known) if p not in kept and os.path.dirname(p) == folder]:
        known.pop(gone, None)  # another thread may have popped it


def attributes_in(document: Mapping[str, Any], location: str) -> Attributes:
    """Return what retention needs of this package's attributes of a store, in any layout."""
    is_model, is_checkpoint, base = bool(document), "checkpoint" in document, document.get("base")
    if base is None:
        return Attributes(is_model, is_checkpoint, None)
    reference = base.get("path") if isinstance(base, Mapping) else None
    if not isinstance(reference, str):
        raise StoreError(f"{location}: its attributes name a base without its path")
    path = location_of(BaseReference(reference, None, ()), location)
    return Attributes(is_model, is_checkpoint, identity(path))
