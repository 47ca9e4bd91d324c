"""The root of a published run, which a writer replaces to add or drop steps.

docs/published_runs.md, "Publishing", says in which order.
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bf16codecs._base.messages import damaged, one_line
from bf16codecs.errors import BF16CodecsError, LeftoverWarning, StoreError
from bf16codecs.store.layout import ATTRIBUTES_KEY, StoreInfo
from bf16codecs.store.published.layout import PublishedInfo
from bf16codecs.store.published.storage import is_published, published_info
from bf16codecs.store.zarr.metadata import OTHER_GROUP

__all__ = [
    "CHOOSE",
    "ROOT",
    "STEPS",
    "Place",
    "Where",
    "commit",
    "info_of_root",
    "new_step_key",
    "root_document",
]

#: The key of the root's document, and the folder of all steps.
ROOT, STEPS = "zarr.json", "steps"
#: Advice about a store of another kind at the place.
CHOOSE = "publish to another path"


@dataclass(frozen=True)
class Where:
    """A path, or an address with the options of its object store; other processes can open it."""

    target: Path | str
    options: Mapping[str, Any] | None = None
    #: Whether files are flushed to the disk.
    durable: bool = True

    def __str__(self) -> str:
        return str(self.target)


class Place(Protocol):
    """A published run that is written, or the place of a new one."""

    where: Where
    #: What the root says; None if there is no run yet.
    info: PublishedInfo | None

    def put(self, key: str, content: bytes) -> None:
        """Write something that does not exist."""

    def commit(self, info: PublishedInfo) -> None:
        """Replace the root by one with other steps, unless another process has replaced it.

        Raises StoreError if it has.
        """

    def folders(self) -> list[str]:
        """Return the keys of the folders of all steps, of those that are not listed too."""

    def remove(self, keys: Iterable[str]) -> None:
        """Remove plans, and folders of steps, some of which may not exist."""

    def close(self) -> None:
        """Let other processes publish."""


def new_step_key(number: int) -> str:
    """Return a key for the packs of a step that no other writer takes."""
    return f"{STEPS}/{number}-{secrets.token_hex(4)}"


def commit(place: Place, info: PublishedInfo) -> None:
    """Replace the root of a run, and remove the steps and the plan that it names no more.

    At the first step of a group, what dead writers have left is removed as well. A warning says
    what could not be removed.
    """
    before, kept = place.info, {step.key for step in info.steps}
    gone: set[str] = set()
    if before is not None:
        gone = {step.key for step in before.steps} - kept
        gone |= {before.plan} - {info.plan}
    if info.slot(len(info.steps) - 1) == 0:
        # Looked at before the root is replaced: who begins later takes the new root for the last.
        last = info.numbers[-1]
        gone |= {key for key in place.folders() if key not in kept and _is_dead(key, last)}
    place.commit(info)
    try:
        place.remove(sorted(gone))
    except (BF16CodecsError, OSError) as e:
        text = f"{place.where}: packs of steps that were dropped are still there: {one_line(e)}"
        warnings.warn(text, LeftoverWarning, stacklevel=2)


def _is_dead(key: str, last: int) -> bool:
    """Tell whether nobody can list a folder any more, since its step is not after the last one."""
    number = key.rpartition("/")[2].partition("-")[0]
    return number.isdecimal() and int(number) <= last


def root_document(info: PublishedInfo) -> bytes:
    """Return the root's document."""
    attributes = {ATTRIBUTES_KEY: info.to_attributes()}
    root = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    return json.dumps(root, separators=(",", ":")).encode()


def info_of_root(where: object, document: bytes, advice: str) -> PublishedInfo:
    """Return what a root says; raise StoreError unless it is that of a published run.

    `where` and `advice` are for the error about a store of another kind.
    """
    try:
        content = json.loads(document)
        attributes = content["attributes"]
        if not isinstance(attributes, dict):
            raise TypeError("attributes are not an object")
    except (KeyError, TypeError, ValueError, RecursionError) as e:
        raise StoreError(f"{where}: {damaged(f'{ROOT} is invalid: {one_line(e)}')}") from e
    if not is_published(attributes):
        StoreInfo.from_attributes(attributes, str(where), OTHER_GROUP)
        raise StoreError(f"{where}: a model store, or a run that conversions made: {advice}")
    return published_info(str(where), attributes)
