"""Paths as callers give them, and what names say."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

__all__ = [
    "absolute",
    "and_parents",
    "given_path",
    "index_stem",
    "index_suffix",
    "last_name",
    "names_folder",
    "require_folder_of",
    "resolved",
]

#: Of a variant, such as fp16, libraries put the name there, and before ``.safetensors`` elsewhere.
_INDEX = re.compile(r"\.safetensors\.index(\.[^./]+)?\.json\Z")


def given_path(path: str | os.PathLike[str], of: str) -> str:
    """Return a path, or an address, as text. `of` says in messages what is there.

    TypeError is raised if it is something else; ValueError if it is empty, as from a variable of
    the shell that is not set: it would be the current folder; NotADirectoryError if a slash at its
    end says that it is a folder, and it is a file.
    """
    if isinstance(path, bytes) or not isinstance(path, (str, os.PathLike)):
        kind = type(path).__name__
        raise TypeError(
            f"the path of the {of} must be a string or a path, not {path!r:.80} ({kind})"
        )
    text = os.fspath(path)
    if not text:
        raise ValueError(f'the path of the {of} is empty (write "." for the current folder)')
    if names_folder(text) and os.path.isfile(text.rstrip("/" + os.sep)):
        raise NotADirectoryError(errno.ENOTDIR, "It is a file: leave out the slash", text)
    return text


def names_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path says by a slash at its end that it is a folder's."""
    return os.fspath(path).endswith(("/", os.sep))


def index_suffix(name: str) -> str:
    """Return the end of a name that says that it is the index of safetensors files; else nothing.

    It is ``.safetensors.index.json``, or ``.safetensors.index.fp16.json`` of a variant.
    """
    match = _INDEX.search(name)
    return match[0] if match else ""


def index_stem(path: str) -> str | None:
    """Return the path of an index without its suffixes; None if it is not an index.

    ``model.safetensors.index.fp16.json`` gives ``model.fp16``, as ``model.fp16.safetensors`` would.
    """
    match = _INDEX.search(path)
    return match and path[: match.start()] + (match[1] or "")


def last_name(place: str) -> str:
    """Return the last part of a path or an address; all of it if it has none."""
    return os.path.basename(place.rstrip("/")) or place


def resolved(path: Path) -> Path:
    """Return a path without links; one that leads round in a circle ends in a link.

    `Path.resolve` raises a RuntimeError for such a path, up to Python 3.12. Opening it raises an
    OSError.
    """
    return Path(os.path.realpath(path))


def absolute(path: str | os.PathLike[str]) -> str:
    """Return an absolute path; its last part may be a symbolic link.

    Where `..` follows a symbolic link, it means what it means to the system, not to `abspath`.
    """
    text = os.fspath(path)
    if ".." not in Path(text).parts:
        return os.path.abspath(text)
    folder, name = os.path.split(text.rstrip("/" + os.sep))
    if name == "..":
        return os.path.realpath(text)
    return os.path.abspath(os.path.join(os.path.realpath(folder), name))


def require_folder_of(target: Path) -> None:
    """Raise FileNotFoundError if the folder in which a file is to be made is not there."""
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(target.parent))


def and_parents(path: str) -> list[str]:
    """Return a path with slashes, and those of all that it is below; the last one is empty."""
    parts = path.split("/") if path else []
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]
