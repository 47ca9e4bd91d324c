"""The attributes of a published run.

docs/published_runs.md is the normative description.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bf16codecs._base.limits import MAX_GROUP
from bf16codecs._base.messages import damaged, one_line
from bf16codecs._base.version import __version__
from bf16codecs.errors import StoreError
from bf16codecs.store.layout import ATTRIBUTES_KEY

__all__ = [
    "CHANGE",
    "LAYOUT",
    "PUBLISHED",
    "PUBLISHED_KEY",
    "WHOLE",
    "PublishedInfo",
    "PublishedStep",
    "is_published",
    "published_info",
]

#: The layout of published runs.
LAYOUT = 3
#: The key of the attributes that only published runs have.
PUBLISHED_KEY = "published"
#: The kinds of packs: with differences to the step before, and with all of a step.
CHANGE, WHOLE = "change", "whole"

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_MOST = 2**53


@dataclass(frozen=True)
class PublishedStep:
    """A step: its number, the folder of its packs, and their sizes by kind and name."""

    number: int
    key: str
    packs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def nbytes(self, kind: str) -> int:
        """Return the size of the packs of a kind."""
        return sum(self.packs.get(kind, {}).values())

    def keys(self, kind: str) -> dict[str, int]:
        """Return the keys of the packs of a kind, with their sizes."""
        return {f"{self.key}/{name}": size for name, size in self.packs.get(kind, {}).items()}


@dataclass(frozen=True)
class PublishedInfo:
    """The contents of the attributes of a published run."""

    plan: str
    group: int
    steps: tuple[PublishedStep, ...] = ()
    #: How many earlier steps were dropped, a multiple of `group`.
    dropped: int = 0

    @property
    def numbers(self) -> list[int]:
        """The numbers of the steps, ascending."""
        return [step.number for step in self.steps]

    def slot(self, index: int) -> int:
        """Return the place of a step in its group."""
        return (self.dropped + index) % self.group

    def with_step(self, step: PublishedStep) -> PublishedInfo:
        """Return this run with one more step."""
        return replace(self, steps=(*self.steps, step))

    def keeping(self, least: int) -> PublishedInfo:
        """Return this run without its first groups, with at least so many of the last steps.

        Two are always kept: whoever has the last step but one reads only what changed in the last.
        """
        count = max(0, len(self.steps) - max(2, least)) // self.group * self.group
        if not count:
            return self
        return replace(self, steps=self.steps[count:], dropped=self.dropped + count)

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes under the package's key."""
        return {
            "layout": LAYOUT,
            "writer": f"bf16codecs {__version__}",
            PUBLISHED_KEY: {"plan": self.plan, "group": self.group, "dropped": self.dropped},
            "steps": [
                {"step": step.number, "key": step.key}
                | {kind: dict(packs) for kind, packs in step.packs.items() if packs}
                for step in self.steps
            ],
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> PublishedInfo:
        """Check the attributes; raise KeyError, TypeError or ValueError if they are invalid."""
        published = content[PUBLISHED_KEY]
        group, dropped = published["group"], published["dropped"]
        if type(group) is not int or not 1 <= group <= MAX_GROUP:
            raise ValueError(f"{group!r:.80} is not the size of a group")
        if type(dropped) is not int or not 0 <= dropped < _MOST or dropped % group:
            raise ValueError(f"{dropped!r:.80} is not the number of steps of whole groups")
        if not isinstance(content["steps"], list) or not content["steps"]:
            raise TypeError("steps are not a list with at least one")
        steps = tuple(map(_step, content["steps"]))
        if any(a.number >= b.number for a, b in itertools.pairwise(steps)):
            raise ValueError("the steps do not ascend")
        info = cls(_key(published["plan"], "plan"), group, steps, dropped)
        for index, step in enumerate(steps):
            is_first = dropped + index == 0
            if info.slot(index) == 0 and WHOLE not in step.packs:
                raise ValueError(f"step {step.number} is the first of a group, and not whole")
            if info.slot(index) and WHOLE in step.packs:
                raise ValueError(f"step {step.number} is whole, and not the first of a group")
            if not is_first and CHANGE not in step.packs:
                raise ValueError(f"step {step.number} has no differences to the step before")
        return info


def _step(entry: Mapping[str, Any]) -> PublishedStep:
    number = entry["step"]
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError(f"{number!r:.80} is not the number of a step")
    packs = {kind: dict(_packs(entry[kind])) for kind in (CHANGE, WHOLE) if kind in entry}
    return PublishedStep(number, _key(entry["key"], "steps"), packs)


def _packs(entry: Any) -> Iterator[tuple[str, int]]:
    if not isinstance(entry, Mapping) or not entry:
        raise TypeError("packs are not an object with at least one")
    for name, size in entry.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r:.80} is not the name of a pack")
        if type(size) is not int or not 12 <= size < _MOST:
            raise ValueError(f"{size!r:.80} is not the size of a pack")
        yield name, size


def _key(value: Any, folder: str) -> str:
    """Check a key, which is the name of something in a folder."""
    first, _, name = str(value).partition("/")
    if not isinstance(value, str) or first != folder or not _NAME.fullmatch(name):
        raise ValueError(f"{value!r:.80} is not a key in {folder}")
    return value


#: Why nothing but `publish` writes to a path.
PUBLISHED = (
    "is a published run, which only publish adds to: choose another name, or remove it first"
)


def is_published(attributes: Mapping[str, Any]) -> bool:
    """Tell whether a root's attributes are those of a published run."""
    content = attributes.get(ATTRIBUTES_KEY)
    return isinstance(content, Mapping) and content.get("layout") == LAYOUT


def published_info(where: str, attributes: Mapping[str, Any]) -> PublishedInfo:
    """Return the content of the attributes of a published run; raise StoreError for damage."""
    try:
        return PublishedInfo.from_content(attributes[ATTRIBUTES_KEY])
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        why = e if isinstance(e, KeyError) else one_line(e)
        raise StoreError(f"{where}: {damaged(why, 'damaged store attributes')}") from e
