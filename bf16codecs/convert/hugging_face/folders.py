"""The files and folders in a model's folder, read with or without following links."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from bf16codecs._files.folders import Entry, Folder, walk_tree
from bf16codecs._files.publish import is_working_name
from bf16codecs._files.reading import open_to_read
from bf16codecs.errors import StoreError

__all__ = ["Tree", "list_tree"]


@dataclass(frozen=True)
class Tree:
    """The files and folders below a folder, by relative paths with slashes."""

    files: dict[str, Path] = field(default_factory=dict)
    #: Parents come before their members.
    folders: list[str] = field(default_factory=list)
    #: Opens the files without following links, even if links replace files meanwhile.
    held: Folder | None = None

    def open(self, name: str) -> FileIO:
        """Open a file for reading; raise StoreError if it is no longer a regular file."""
        path = self.files[name]
        try:
            descriptor = open_to_read(path) if self.held is None else self.held.find(name)
        except StoreError as e:
            raise StoreError(f"{path}: {e}") from None
        except OSError as e:
            e.filename = str(path)  # the name was opened relative to a descriptor
            raise
        if descriptor is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return FileIO(descriptor)


def list_tree(top: Path, *, follow: bool, without: Collection[str] = ()) -> Tree:
    """List a folder, except `without`; with `follow`, links to files are files: see `walk_tree`."""

    def skip(name: str, entry: Entry) -> bool:
        # Working folders of killed conversions do not belong to the model.
        return name in without or (is_working_name(entry.name) and entry.is_dir())

    tree = Tree(held=None if follow else Folder(top, follow=True))
    for name, entry in walk_tree(top, follow=follow, skip=skip):
        if entry.is_dir():
            tree.folders.append(name)
        else:
            tree.files[name] = Path(entry.path)
    return tree
