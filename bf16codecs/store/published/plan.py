"""The plan of a published run: docs/published_runs.md, "Plan"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bf16codecs._arrays.storage import KeyStorage
from bf16codecs._base.messages import damaged, named_errors, one_line
from bf16codecs.errors import StoreError
from bf16codecs.store.layout import ATTRIBUTES_KEY
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.plan import header_path
from bf16codecs.store.published.layout import LAYOUT, PublishedInfo
from bf16codecs.store.published.packs import PlannedArray
from bf16codecs.store.zarr.metadata import ParsedArray, growing_steps, parse_array, read_json

__all__ = ["HEADER_PATH", "Plan", "read_plan"]

#: The array of the header of the only file.
HEADER_PATH = header_path(0)

# Each step repeats the entry of the file.
_LARGEST_FILE = 1 << 12
_FIRST_KEY = "c.0"


class Plan:
    """The plan of a published run: a run store's root with the first step, and a header."""

    def __init__(self, where: str, content: Mapping[str, Any], group: int) -> None:
        with named_errors(where):
            try:
                self._read(content, group)
            except StoreError:
                raise
            except (KeyError, TypeError, AttributeError, ValueError) as e:
                why = e if isinstance(e, KeyError) else one_line(e)
                raise StoreError(damaged(why, "damaged plan")) from e

    def _read(self, content: Mapping[str, Any], group: int) -> None:
        self._root, header = content["root"], content["header"]
        self.header = header.encode()
        ours = self._root["attributes"][ATTRIBUTES_KEY]
        (step,) = ours["steps"]
        (file,) = step["files"]
        if len(json.dumps(file)) > _LARGEST_FILE:
            raise ValueError("the entry of its file is too large")
        self._files = [file]
        if ours["run"]["group"] != group:
            raise ValueError("its groups have another length")
        placements = (each for of_tensor in ours["tensors"].values() for each in of_tensor)
        paths = {each["path"] for each in placements if "path" in each}
        documents = self._root["consolidated_metadata"]["metadata"]
        for path in (STEP_PATH, HEADER_PATH):
            if _parsed(documents, path).codecs != ["bytes"]:
                raise ValueError(f"{path!r:.80} is compressed")
        #: The arrays of tensors by path, sorted.
        self.arrays = {path: _parsed(documents, path) for path in sorted(paths)}
        for path, parsed in self.arrays.items():
            if growing_steps(3, documents[path]) != group or parsed.chunks[:1] != (group,):
                raise ValueError(f"{path!r:.80} has no growing frames of {group} steps")
        self.planned = [
            PlannedArray(path, each.shape[1:], each.chunks[1:])
            for path, each in self.arrays.items()
        ]

    def root(self, info: PublishedInfo) -> bytes:
        """Return the document of the root of the run store with all steps of a published run."""
        documents = dict(self._root["consolidated_metadata"]["metadata"])
        for path in (*self.arrays, STEP_PATH):
            shape = [len(info.steps), *documents[path]["shape"][1:]]
            documents[path] = {**documents[path], "shape": shape}
        steps = [
            {
                "step": step.number,
                "files": self._files,
                "parent": index - 1 if info.slot(index) else None,
            }
            for index, step in enumerate(info.steps)
        ]
        ours = self._root["attributes"][ATTRIBUTES_KEY]
        root = {
            **self._root,
            "attributes": {ATTRIBUTES_KEY: {**ours, "layout": LAYOUT, "steps": steps}},
            "consolidated_metadata": {
                **self._root["consolidated_metadata"],
                "metadata": documents,
            },
        }
        return json.dumps(root).encode()


def _parsed(documents: Mapping[str, Any], path: str) -> ParsedArray:
    """Return an array's metadata; raise ValueError if only zarr could read it, or by other keys."""
    parsed = parse_array(3, documents[path])
    if parsed is None or parsed.key((0,)) != _FIRST_KEY:
        raise ValueError(f"{path!r:.80} is not an array as a plan has them")
    return parsed


def read_plan(where: str, storage: KeyStorage, info: PublishedInfo) -> Plan:
    """Read the plan of a run; raise StoreError if it is missing or damaged."""
    content = read_json(where, storage, info.plan)
    if content is None:
        raise StoreError(f"{where}: {damaged(f'{info.plan} is missing')}")
    return Plan(f"{where}: {info.plan}", content, info.group)
