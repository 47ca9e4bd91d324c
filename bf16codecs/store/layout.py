"""The attributes of a model store's root group.

docs/store.md is the normative description.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bf16codecs._base.cached import cached_property
from bf16codecs._base.half import HalfLoss
from bf16codecs._base.messages import damaged
from bf16codecs._base.version import __version__
from bf16codecs.errors import StoreError, UnsupportedVersionError
from bf16codecs.safetensors import SAFETENSORS
from bf16codecs.store.attributes import (
    ROUNDED,
    BaseReference,
    Difference,
    StoredFile,
    base_entry,
    base_reference,
    difference_entry,
    file_entry,
    loss_entry,
    stored_files,
    stored_loss,
    tensor_path,
)
from bf16codecs.store.checkpoint import CheckpointPaths
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.runs.layout import RunInfo

__all__ = ["ATTRIBUTES_KEY", "LAYOUT_VERSION", "WRITING_KEY", "StoreInfo"]

#: The newest layout; `StoreInfo.layout` is the one that a store needs.
LAYOUT_VERSION = 3
ATTRIBUTES_KEY = "bf16codecs"
#: A note on who is writing the store; without a layout beside it, the store is not complete.
WRITING_KEY = "writing"
# Keys of files in layout 2.
_LATER_KEYS = {"blake3", "restored_blake3", "restored_sha256", "outline", "kind"}


@dataclass(frozen=True)
class StoreInfo:
    """The contents of the root group's attributes."""

    files: tuple[StoredFile, ...]
    index: StoredFile | None
    #: The path of each tensor's array, or of its stand-in: see `ROUNDED` and `differences`.
    paths: Mapping[str, str]
    base: BaseReference | None = None
    #: Tensors that are stored as differences, by path.
    differences: Mapping[str, Difference] = field(default_factory=dict)
    #: The contents of a run, which has its files and paths step by step.
    run: RunInfo | None = None
    #: The loss of all tensors of a lossy store.
    loss: HalfLoss | None = None
    #: The paths of a training job's checkpoint beside tensors.
    checkpoint: CheckpointPaths | None = None

    @cached_property
    def tensors(self) -> dict[str, str]:
        """The tensor of each array, by path; in a run, that of any step."""
        named = [(path, name) for name, path in self.paths.items()]
        if self.run is not None:
            tensors = self.run.tensors.items()
            named += [(p.path, name) for name, placements in tensors for p in placements]
        return dict(reversed(named))  # of tensors that share an array, the first

    @cached_property
    def labels(self) -> dict[str, str]:
        """Descriptions of arrays, by path, for messages."""
        labels = {path: f"tensor {name!r:.300}" for path, name in self.tensors.items()}
        labels |= {file.path: f"{_part(file)} of {file.name!r:.300}" for file in self.files}
        return labels if self.checkpoint is None else labels | self.checkpoint.labels

    @property
    def arrays(self) -> set[str]:
        """The paths of all arrays, of tensors and others."""
        if self.run is not None:
            files = [file for step in self.run.steps for file in (*step.files, step.index)]
            paths = {STEP_PATH, *self.run.arrays}
        else:
            files = [*self.files, self.index]
            paths = {path.removesuffix(ROUNDED) for path in self.paths.values()}
        paths |= {file.path for file in files if file is not None}
        return paths if self.checkpoint is None else paths | self.checkpoint.labels.keys()

    @property
    def layout(self) -> int:
        """The oldest layout that can describe this store."""
        is_shared = len(set(self.paths.values())) < len(self.paths)
        is_rounded = any(path.endswith(ROUNDED) for path in self.paths.values())
        later = self.base, self.run, self.loss, self.checkpoint
        is_whole = all(part is None for part in later)
        of_files = [file.digests.kinds for file in (*self.files, self.index) if file is not None]
        is_known = all(kinds == ("sha256",) for kinds in of_files)
        is_known = is_known and all(file.kind == SAFETENSORS for file in self.files)
        return 1 if is_whole and is_known and not is_shared and not is_rounded else 2

    def to_attributes(self) -> dict[str, Any]:
        """Return the group's attributes.

        Raises StoreError if readers would reject them: a run with such attributes could no
        longer be opened.
        """
        content = self._content()
        try:
            self._from_content(json.loads(json.dumps(content)))
        except (KeyError, TypeError, ValueError) as e:
            raise StoreError(f"readers would reject these attributes: {e}") from None
        return {ATTRIBUTES_KEY: content}

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "layout": self.layout,
            "writer": f"bf16codecs {__version__}",
        }
        if self.run is not None:
            return {**content, **self.run.to_content()}
        content |= {
            "files": [file_entry(f, "header") for f in self.files],
        }
        if self.index is not None:
            content["index"] = file_entry(self.index, "path")
        if self.base is not None:
            content["base"] = base_entry(self.base)
        if self.loss is not None:
            content["lossy"] = loss_entry(self.loss)
        if self.checkpoint is not None:
            content["checkpoint"] = self.checkpoint.to_entry()
        content["tensors"] = {name: self._tensor_entry(name) for name in self.paths}
        return content

    def _tensor_entry(self, name: str) -> str | dict[str, Any]:
        path = self.paths[name]
        if path.endswith(ROUNDED):
            return {"rounded": path.removesuffix(ROUNDED)}
        difference = self.differences.get(path)
        if difference is None or difference.tensor != name:
            return path
        return difference_entry(path, difference)

    @classmethod
    def from_attributes(
        cls, attributes: Mapping[str, Any], where: str, otherwise: str = "a group"
    ) -> StoreInfo:
        """Check a group's attributes; `otherwise` describes a group that is not a model store.

        Raises StoreError if the group is not a model store, or its attributes are invalid;
        UnsupportedVersionError if its layout is newer than this release.
        """
        content = attributes.get(ATTRIBUTES_KEY)
        if isinstance(content, Mapping) and "layout" not in content and WRITING_KEY in content:
            note = content[WRITING_KEY]
            by = f" by {note['by']!r:.200}" if isinstance(note, Mapping) and "by" in note else ""
            raise StoreError(f"{where}: not complete: it is being written{by}, or was abandoned")
        if not isinstance(content, Mapping) or type(content.get("layout")) is not int:
            raise StoreError(
                f"{where}: not a model store (no {ATTRIBUTES_KEY!r} attribute), but {otherwise}"
            )
        if content["layout"] > LAYOUT_VERSION:
            raise UnsupportedVersionError(
                f"{where}: store layout {content['layout']} is newer than this release of"
                f" bf16codecs reads ({LAYOUT_VERSION}): upgrade bf16codecs"
            )
        try:
            return cls._from_content(content)
        except (KeyError, TypeError, ValueError) as e:
            why = e if isinstance(e, KeyError) else str(e)
            raise StoreError(f"{where}: {damaged(why, 'damaged store attributes')}") from None

    @classmethod
    def _from_content(cls, content: Mapping[str, Any]) -> StoreInfo:
        layout = content["layout"]
        if layout < 1:
            raise ValueError(f"there is no layout {layout}")
        if layout == 1:
            content = _of_layout_1(content)
        if "run" in content:
            if "lossy" in content:
                raise ValueError("it is a run, and lossy")
            # No process has seen all of a step that was published: its files have no digests.
            return cls((), None, {}, run=RunInfo.from_content(content, with_digests=layout < 3))
        if layout == 3:
            raise ValueError("it is not a run, as all stores of layout 3 are")
        tensors = content["tensors"]
        if not isinstance(tensors, Mapping):
            raise TypeError("tensors are not an object")
        files, index = stored_files(content)
        differences: dict[str, Difference] = {}
        paths = {name: tensor_path(name, entry, differences) for name, entry in tensors.items()}
        base = base_reference(content["base"]) if "base" in content else None
        if differences and base is None:
            raise ValueError("there are differences, and no base")
        loss = stored_loss(content["lossy"]) if "lossy" in content else None
        if loss is not None and base is not None:
            raise ValueError("it is lossy, and has a base")
        checkpoint = None
        if "checkpoint" in content:
            checkpoint = CheckpointPaths.from_entry(content["checkpoint"])
        return cls(files, index, paths, base, differences, loss=loss, checkpoint=checkpoint)


def _part(file: StoredFile) -> str:
    return "header" if file.kind == SAFETENSORS else "outline"


def _of_layout_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that layout 1 has: later ones are ignored in it."""
    tensors, files = content["tensors"], content["files"]
    if isinstance(tensors, Mapping) and not all(isinstance(p, str) for p in tensors.values()):
        raise ValueError("an array path is not a string")
    if isinstance(files, list):
        files = list(map(_file_of_layout_1, files))
    index = {"index": _file_of_layout_1(content["index"])} if "index" in content else {}
    return {**index, "files": files, "tensors": tensors}


def _file_of_layout_1(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    return {key: value for key, value in entry.items() if key not in _LATER_KEYS}
