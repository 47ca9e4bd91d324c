"""Objects of a training job's checkpoint, and the nesting that its names come from.

docs/store.md, "Checkpoints", is the normative description.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bf16codecs.store.paths import RESERVED_ROOT

__all__ = ["CHECKPOINT_PATH", "OBJECTS_PATH", "Checkpoint", "CheckpointPaths", "check_names"]

CHECKPOINT_PATH = f"{RESERVED_ROOT}/checkpoint"
OBJECTS_PATH = f"{RESERVED_ROOT}/objects"

#: A key of a dictionary, or an index of a list.
Key = str | int

# PyTorch walks through nested dictionaries and lists by recursion.
_MOST_KEYS = 128
# A list has gaps where it has empty dictionaries, which lead to nothing.
_MOST_GAPS = 1 << 16


class CheckpointPaths(NamedTuple):
    """The paths of a checkpoint's text and objects, as a store's attributes have them."""

    text: str
    objects: str | None

    def to_entry(self) -> dict[str, str]:
        """Return the attributes' entry."""
        return {"path": self.text} | ({} if self.objects is None else {"objects": self.objects})

    @property
    def labels(self) -> dict[str, str]:
        """Descriptions of the arrays, by path, for messages."""
        objects = {} if self.objects is None else {self.objects: "objects of the checkpoint"}
        return {self.text: "text of the checkpoint", **objects}

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> CheckpointPaths:
        """Check the attributes' entry."""
        if not isinstance(entry, Mapping):
            raise TypeError(f"{entry!r:.80} is not the entry of a checkpoint")
        paths = cls(entry["path"], entry.get("objects"))
        if not isinstance(paths.text, str) or not isinstance(paths.objects, (str, type(None))):
            raise TypeError("the path of a checkpoint's text or objects is not a string")
        return paths


@dataclass(frozen=True)
class Checkpoint:
    """The objects of a checkpoint, and the keys that each name comes from.

    By name, `objects` has offset and size in the array of objects, in bytes, and `names` the keys
    that led to it.
    """

    objects: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    names: Mapping[str, tuple[Key, ...]] = field(default_factory=dict)

    def to_text(self) -> bytes:
        """Return the text that is stored."""
        content: dict[str, Any] = {"objects": self.objects}
        if self.names:
            content["names"] = self.names
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_text(cls, text: bytes, nbytes: int) -> Checkpoint:
        """Check a stored text beside `nbytes` of objects; raise ValueError if it is invalid."""
        content = json.loads(text.decode())
        if not isinstance(content, dict) or not isinstance(content.get("objects"), dict):
            raise ValueError("its text is not an object with objects")
        names = content.get("names", {})
        if not isinstance(names, dict):
            raise ValueError("its names are not an object")
        for name, extent in content["objects"].items():
            is_extent = isinstance(extent, list) and [type(n) for n in extent] == [int, int]
            if not is_extent or min(extent) < 0 or sum(extent) > nbytes:
                raise ValueError(f"{extent!r:.80} is not where object {name!r:.80} is")
        objects = {name: (start, size) for name, (start, size) in content["objects"].items()}
        if sum(size for _, size in objects.values()) > nbytes:
            raise ValueError(f"its objects are larger than the {nbytes} bytes that are there")
        for name, keys in names.items():
            if not isinstance(keys, list):
                raise ValueError(f"{keys!r:.80} is not a list of keys that leads to {name!r:.80}")
        paths = {name: tuple(keys) for name, keys in names.items()}
        check_names(paths)
        return cls(objects, paths)


def check_names(names: Mapping[str, Sequence[Any]]) -> None:
    """Refuse invalid keys, and ones that would make readers build far more than they justify.

    Raises ValueError if nested dictionaries and lists have no such keys, are too deep, or a list
    has a length that neither the keys nor gaps explain.
    """
    root, total, longest = _Container(), 0, (0, "")
    for name, keys in names.items():
        is_path = all(type(k) is str or (type(k) is int and k >= 0) for k in keys)
        if not is_path or not keys or type(keys[0]) is not str:
            raise ValueError(f"{keys!r:.80} is not a list of keys that leads to {name!r:.80}")
        if len(keys) > _MOST_KEYS:
            raise ValueError(f"{len(keys)} keys lead to {name!r:.80}: {_MOST_KEYS} may")
        node = root
        for depth, key in enumerate(keys):
            length = 0 if isinstance(key, str) else key + 1
            if node.items and (node.length == 0) != (length == 0):
                raise ValueError(
                    f"a container on the way to {name!r:.80} is both a dictionary and a list"
                )
            if length > node.length:
                total += length - node.length
                node.length = length
                longest = max(longest, (length, f"{list(keys[:depth])!r:.80}"))
            node = node.items.setdefault(key, _Container())
    if total > _MOST_GAPS + sum(map(len, names.values())):
        length, where = longest
        raise ValueError(f"the list at {where} would have {length} items, more than keys justify")


class _Container:
    """The items of a dictionary or a list, by key, and the length of a list."""

    __slots__ = ("items", "length")

    def __init__(self) -> None:
        self.items: dict[Key, _Container] = {}
        self.length = 0
