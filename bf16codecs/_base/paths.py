"""Paths as callers give them, and the meaning of names."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from itertools import islice
from pathlib import Path

from bf16codecs._base.messages import near_names

__all__ = [
    "absolute",
    "and_parents",
    "given_path",
    "index_stem",
    "index_suffix",
    "last_name",
    "missing_path",
    "names_folder",
    "require_folder_of",
    "require_path",
    "resolved",
]

#: Libraries put the name of a variant, such as fp16, here, and before ``.safetensors`` elsewhere.
_INDEX = re.compile(r"\.safetensors\.index(\.[^./]+)?\.json\Z")
# How alike near names are at least, without suffixes: at 0.6, "base" is near "absent".
_ALIKE = 0.65
# How many names of a folder are compared with a missing one at most.
_MOST_NAMES = 1000


def given_path(path: str | os.PathLike[str], of: str) -> str:
    """Return a path, or an address, as text; `of` names its content in messages.

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
        raise NotADirectoryError(errno.ENOTDIR, "a file: leave out the slash", text)
    return text


def missing_path(
    path: str | os.PathLike[str], text: str = os.strerror(errno.ENOENT), suggests: bool = True
) -> FileNotFoundError:
    """Return the error that nothing is at a local path; it suggests near names in the folder."""
    near = _near_paths(path) if suggests else ""
    return FileNotFoundError(errno.ENOENT, text + near, os.fspath(path))


def require_path(path: str | os.PathLike[str]) -> None:
    """Raise `missing_path` if nothing is at a local path; OSError if it cannot be looked at."""
    try:
        os.stat(path)
    except FileNotFoundError as e:
        raise missing_path(path) from e


def _near_paths(path: str | os.PathLike[str]) -> str:
    """Name files and folders that a missing path may mean, for the end of a message."""
    folder, name = os.path.split(absolute(path))
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder, name = os.path.split(folder)
    if os.path.lexists(os.path.join(folder, name)):
        return ""  # a link that leads nowhere
    names: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:
        names = sorted(entry.name for entry in islice(entries, _MOST_NAMES))
    visible = [other for other in names if not other.startswith(".")]
    suffix = os.path.splitext(name)[1]
    same = [other for other in visible if os.path.splitext(other)[1] == suffix]
    # Names are compared without suffixes, which make any two of them alike.
    near = near_names(name, same, _stem, _ALIKE) or near_names(name, visible, _stem, _ALIKE)
    # In parentheses, since Python shows the path after it.
    return near and f" ({near})"


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


def names_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path says by a slash at its end that it is a folder's."""
    return os.fspath(path).endswith(("/", os.sep))


def index_suffix(name: str) -> str:
    """Return the suffix of a name of an index of safetensors files; empty for other names.

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


def last_name(location: str) -> str:
    """Return the last part of a path or an address; all of it if it has none."""
    return os.path.basename(location.rstrip("/")) or location


def resolved(path: Path) -> Path:
    """Return a path without links; a circle of links stays a link.

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
    """Raise FileNotFoundError if the folder in which a file is to be made does not exist."""
    if not target.parent.is_dir():
        raise missing_path(target.parent, "No such folder: create it first")


def and_parents(path: str) -> list[str]:
    """Return a path with slashes and all its parents; the last one is empty."""
    parts = path.split("/") if path else []
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]
