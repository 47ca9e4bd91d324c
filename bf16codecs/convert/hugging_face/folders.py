"""Lists the files and folders in a model's folder, and opens them, with or without links."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from bf16codecs._base.limits import MAX_DEPTH
from bf16codecs._files.folders import LINK_REFUSAL, Folder
from bf16codecs._files.publish import is_working_name
from bf16codecs._files.reading import open_to_read
from bf16codecs.errors import StoreError

__all__ = ["Tree", "list_tree"]


@dataclass(frozen=True)
class Tree:
    """The files and folders below a folder, by their paths from there, with slashes."""

    files: dict[str, Path] = field(default_factory=dict)
    #: Parents come before what is in them.
    folders: list[str] = field(default_factory=list)
    #: What opens the files where no link is followed, whatever takes their places meanwhile.
    held: Folder | None = None

    def open(self, name: str) -> FileIO:
        """Open a file to read it.

        Raises
        ------
        StoreError
            If it is a regular file no longer.
        OSError
            If it cannot be opened.
        """
        path = self.files[name]
        try:
            descriptor = open_to_read(path) if self.held is None else self.held.find(name)
        except StoreError as e:
            raise StoreError(f"{path}: {e}") from None
        except OSError as e:
            e.filename = str(path)  # without links, a name is opened in a descriptor
            raise
        if descriptor is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return FileIO(descriptor)


def list_tree(top: Path, *, own: bool, without: Collection[str] = ()) -> Tree:
    """List what is in a folder and in those below.

    Parameters
    ----------
    top
        The folder, which may be a link.
    own
        Whether it is the caller's own, as it is when it is packed. Then links to files are what
        they lead to, as in the cache of huggingface_hub. In a stranger's they could lead anywhere,
        and are refused. Links to folders always are: a few of them can make paths without end.
    without
        Paths of folders in it that are left out.

    Raises
    ------
    ValueError
        If something is neither a file nor a folder, such as a pipe, or is a link that is refused,
        or is nested too deep. It is a StoreError unless the folder is the caller's own.
    OSError
        If something cannot be read, or a link leads nowhere.
    """
    tree = Tree(held=None if own else Folder(top, follow=True))
    refusal = ValueError if own else StoreError

    def walk(folder: Path, prefix: str) -> None:
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            name, path = prefix + entry.name, Path(entry.path)
            fault = _fault(entry, name, own)
            if fault:
                raise refusal(f"{path}: {fault}")
            if name in without:
                continue
            if entry.is_dir():
                # What a conversion that was killed has left is nothing of the model.
                if not is_working_name(entry.name):
                    tree.folders.append(name)
                    walk(path, f"{name}/")
            else:
                tree.files[name] = path

    walk(top, "")
    return tree


def _fault(entry: os.DirEntry[str], name: str, own: bool) -> str:
    """Say why something is neither packed nor restored; nothing if it is."""
    if entry.is_symlink():
        if not own:
            return LINK_REFUSAL
        if entry.is_dir():
            return (
                "a symbolic link to a folder, which is not followed: put a copy of the folder in"
                " its place (cp -RL), or remove the link"
            )
        if not os.path.exists(entry.path):
            raise FileNotFoundError(errno.ENOENT, "A link that leads nowhere", entry.path)
    if not entry.is_dir() and not entry.is_file():
        return "neither a file nor a folder"
    if name.count("/") >= MAX_DEPTH:
        return f"in more than {MAX_DEPTH} levels of folders, as no model is"
    return ""
