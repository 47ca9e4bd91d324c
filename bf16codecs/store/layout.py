"""What a model store says of itself: the attributes of its group.

docs/store.md is the normative description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bf16codecs._version import __version__
from bf16codecs.errors import StoreError, UnsupportedVersionError
from bf16codecs.safetensors import is_plain_name

__all__ = ["ATTRIBUTES_KEY", "LAYOUT_VERSION", "StoreInfo", "StoredFile"]

LAYOUT_VERSION = 1
ATTRIBUTES_KEY = "bf16codecs"


@dataclass(frozen=True)
class StoredFile:
    """An original file: its header's array, and the size and SHA-256 to restore."""

    name: str
    size: int
    sha256: str
    #: Array of its header, or of the index's whole content.
    path: str


@dataclass(frozen=True)
class StoreInfo:
    """The contents of the root group's attributes."""

    files: tuple[StoredFile, ...]
    index: StoredFile | None
    paths: Mapping[str, str]

    def to_attributes(self) -> dict[str, Any]:
        """Return the group's attributes."""

        def entry(file: StoredFile, key: str) -> dict[str, Any]:
            return {"name": file.name, "size": file.size, "sha256": file.sha256, key: file.path}

        content: dict[str, Any] = {
            "layout": LAYOUT_VERSION,
            "writer": f"bf16codecs {__version__}",
            "files": [entry(f, "header") for f in self.files],
        }
        if self.index is not None:
            content["index"] = entry(self.index, "path")
        content["tensors"] = dict(self.paths)
        return {ATTRIBUTES_KEY: content}

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any], where: str) -> StoreInfo:
        """Check a group's attributes.

        Raises
        ------
        StoreError
            If the group is not a model store, or its attributes are invalid.
        UnsupportedVersionError
            If its layout is newer than this release.
        """
        content = attributes.get(ATTRIBUTES_KEY)
        if not isinstance(content, Mapping) or type(content.get("layout")) is not int:
            raise StoreError(f"{where}: not a model store: no {ATTRIBUTES_KEY!r} attribute")
        if content["layout"] > LAYOUT_VERSION:
            raise UnsupportedVersionError(
                f"{where}: store layout {content['layout']} is newer than this release of"
                f" bf16codecs reads ({LAYOUT_VERSION}): upgrade bf16codecs"
            )
        try:
            if content["layout"] < 1:
                raise ValueError(f"there is no layout {content['layout']}")
            if not isinstance(content["files"], list) or not isinstance(
                content["tensors"], Mapping
            ):
                raise TypeError("files are not a list, or tensors not an object")
            files = tuple(_stored_file(entry, "header") for entry in content["files"])
            index = _stored_file(content["index"], "path") if "index" in content else None
            if index is not None and not index.name.endswith(".json"):
                raise ValueError(f"{index.name!r:.80} is not the name of an index")
            paths = dict(content["tensors"])
            if not all(isinstance(path, str) for path in paths.values()):
                raise ValueError("an array path is not a string")
            names = [f.name for f in files] + ([index.name] if index else [])
            if len(set(names)) != len(names):
                raise ValueError("two files have the same name")
        except (KeyError, TypeError, ValueError) as e:
            raise StoreError(f"{where}: damaged store attributes: {e}") from None
        return cls(files, index, paths)


def _stored_file(entry: Mapping[str, Any], key: str) -> StoredFile:
    file = StoredFile(entry["name"], entry["size"], entry["sha256"], entry[key])
    if not all(isinstance(text, str) for text in (file.name, file.sha256, file.path)):
        raise TypeError("a file's name, digest or path is not a string")
    if type(file.size) is not int or file.size < 0:
        raise ValueError(f"{file.size!r:.80} is not a file size")
    # Restoring must not write outside the target.
    if not is_plain_name(file.name):
        raise ValueError(f"{file.name!r:.80} is not a plain file name")
    return file
