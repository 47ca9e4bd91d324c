"""The root of a published run, which a writer replaces to add or drop steps.

docs/published_runs.md, "Publishing", says in which order.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bf16codecs._base.limits import MAX_METADATA_BYTES
from bf16codecs._base.messages import damaged, one_line
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo
from bf16codecs.store.published.layout import PublishedInfo, is_published, published_info
from bf16codecs.store.zarr.metadata import OTHER_GROUP

__all__ = [
    "CHOOSE",
    "LOCK",
    "NEW_ROOT",
    "PLANS",
    "ROOT",
    "STEPS",
    "Place",
    "ReplacedError",
    "Sink",
    "UnreadableError",
    "Where",
    "commit",
    "dead_keys",
    "info_of_root",
    "is_foreign",
    "lists",
    "new_step_key",
    "read_root_of",
    "remove_keys",
    "root_document",
]

#: The key of the root's document, and the folders of all steps and of plans.
ROOT, STEPS, PLANS = "zarr.json", "steps", "plan"
#: In a folder on a disk: the file that the process locks which replaces the root, and the new root.
LOCK, NEW_ROOT = ".publishing", "zarr.json.new"
#: Advice about a store of another kind at the place.
CHOOSE = "publish to another path"
_OURS = {ROOT, STEPS, PLANS, LOCK, NEW_ROOT}
# How often a root is replaced anew after another process has dropped steps.
_TRIES = 5

#: Returns what a root is to be, given what it is: the same object if nothing is left to do.
Change = Callable[[PublishedInfo | None], PublishedInfo]


class ReplacedError(StoreError):
    """Another process has replaced the root, or what it lists."""

    @classmethod
    def at(cls, where: object) -> ReplacedError:
        """Return the error for a run."""
        return cls(
            f"{where}: another process has published to it meanwhile, or dropped steps: let one job"
            " publish to a run, or try again"
        )


class UnreadableError(StoreError):
    """The root is not the document of a Zarr group: it is damaged, or has not all arrived yet."""


def is_foreign(names: Iterable[str]) -> bool:
    """Tell whether a folder has other things than a run; names of folders may end in a slash."""
    found = {name.rstrip("/") for name in names}
    return ROOT not in found and not found <= _OURS


@dataclass(frozen=True)
class Where:
    """A path, or an address with the options of its object store; other processes can open it."""

    target: Path | str
    options: Mapping[str, Any] | None = None
    #: Whether files are flushed to the disk.
    durable: bool = True

    def __str__(self) -> str:
        return str(self.target)


class Sink(Protocol):
    """The folder of a published run, to which packs are added."""

    def put(self, key: str, content: bytes) -> None:
        """Write something that does not exist."""

    def close(self) -> None:
        """Close files."""


class Place(Sink, Protocol):
    """A published run whose root is replaced, or the place of a new one.

    Attributes
    ----------
    where
        Where it is.
    info
        The root's content; None if there is no run yet.
    fault
        Why the root of a published run cannot be read, if it cannot: then `info` is None.
    """

    where: Where
    info: PublishedInfo | None
    fault: StoreError | None

    def read_again(self) -> None:
        """Read the root again."""

    def commit(self, info: PublishedInfo, document: bytes) -> None:
        """Replace the root by one with other steps, whose document is given.

        Raises ReplacedError if another process has replaced it.
        """

    def may_list(self, key: str) -> bool:
        """Return False if the root certainly lists no step with a key, and will not.

        A request whose reply is missing may have replaced the root, or do so later.
        """

    def keys(self, is_thorough: bool) -> list[str]:
        """Return the keys of plans and of folders of steps, as far as it costs little.

        If `is_thorough`, all are returned, whatever that costs.
        """

    def remove(self, keys: Iterable[str]) -> None:
        """Remove plans, and folders of steps, some of which may not exist."""


def commit(place: Place, change: Change) -> set[str]:
    """Replace the root of a run by a changed one; return the keys that can be removed then.

    If another process replaces it first, what is there now is changed. Raises StoreError if others
    do so again and again.
    """
    gone: set[str] = set()
    for tries in range(_TRIES + 1):
        before, info = place.info, change(place.info)
        if info is before:  # perhaps since a try without a reply has succeeded
            return gone - _listed(info)
        if tries == _TRIES:
            break
        document = root_document(place.where, info)
        gone |= dead_keys(place, before, info)
        try:
            place.commit(info, document)
            return gone - _listed(info)
        except ReplacedError:
            place.read_again()
    raise StoreError(f"{place.where}: other processes replace its root all the time: try again")


def dead_keys(place: Place, before: PublishedInfo | None, info: PublishedInfo) -> set[str]:
    """Return the keys that nobody needs once the root has changed from one to another.

    They are those of steps that are dropped, and of what dead writers have left: whoever begins
    after this was called takes the new root for the last one.
    """
    last, gone = info.numbers[-1], set() if before is None else _listed(before)
    is_thorough = before is None or info.slot(len(info.steps) - 1) == 0
    found = {key for key in place.keys(is_thorough) if _is_dead(key, last)}
    return (gone | found) - _listed(info)


def _listed(info: PublishedInfo) -> set[str]:
    """Return the keys of a root's plan, and of the folders of its steps."""
    return {info.plan, *(step.key for step in info.steps)}


def _is_dead(key: str, last: int) -> bool:
    """Tell whether nobody can list a key any more, if no root does that is there already."""
    folder, _, name = key.partition("/")
    number = name.partition("-")[0]
    return folder == PLANS or (number.isdecimal() and int(number) <= last)


def lists(info: PublishedInfo | None, key: str) -> bool:
    """Tell whether a root lists a step with a key."""
    return info is not None and any(step.key == key for step in info.steps)


def remove_keys(place: Place, keys: Iterable[str]) -> None:
    """Remove keys, as far as that is possible: the next writer finds the rest."""
    with suppress(BF16CodecsError, OSError):
        place.remove(sorted(keys))


def new_step_key(number: int) -> str:
    """Return a key for the packs of a step that no other writer takes."""
    return f"{STEPS}/{number}-{secrets.token_hex(4)}"


def root_document(where: object, info: PublishedInfo) -> bytes:
    """Return the root's document; raise StoreError if readers would refuse it."""
    attributes = {ATTRIBUTES_KEY: info.to_attributes()}
    published_info(str(where), attributes)
    root = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    document = json.dumps(root, separators=(",", ":")).encode()
    if len(document) > MAX_METADATA_BYTES:
        raise StoreError(
            f"{where}: {len(info.steps)} steps take {len(document)} bytes in its root, more than"
            f" readers take ({MAX_METADATA_BYTES}): drop early ones (keep_last)"
        )
    return document


def info_of_root(where: object, document: bytes, advice: str) -> PublishedInfo:
    """Return the content of a root; raise StoreError unless it is that of a published run.

    It is an UnreadableError if the document is none of a Zarr group. `where` and `advice` are for
    the error about a store of another kind.
    """
    try:
        content = json.loads(document)
        attributes = content["attributes"]
        if not isinstance(attributes, dict):
            raise TypeError("attributes are not an object")
    except (KeyError, TypeError, ValueError, RecursionError) as e:
        raise UnreadableError(f"{where}: {damaged(f'{ROOT} is invalid: {one_line(e)}')}") from e
    if not is_published(attributes):
        StoreInfo.from_attributes(attributes, str(where), OTHER_GROUP)
        raise StoreError(f"{where}: a model store, or a run that conversions made: {advice}")
    return published_info(str(where), attributes)


def read_root_of(place: Place, document: bytes | None, advice: str) -> None:
    """Let a place have the content of a root, or its fault if it is damaged.

    Raises StoreError if the root is that of something else.
    """
    place.info = place.fault = None
    if document is None:
        return
    try:
        place.info = info_of_root(place.where, document, advice)
    except StoreError as e:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            if is_published(json.loads(document)["attributes"]):
                place.fault = e
        if place.fault is None:
            raise
