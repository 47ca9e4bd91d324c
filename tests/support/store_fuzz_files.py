"""Makes files of a store in a folder missing, swapped, or something else than files."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store_fuzz_mutations import Content, Family, Mutant
from store_fuzz_truth import Seed


def _folder(path: Path) -> None:
    path.mkdir()


def _link(target: str | Callable[[Path], str]) -> Callable[[Path], None]:
    return lambda path: os.symlink(target if isinstance(target, str) else target(path), path)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link_to_a_pipe(path: Path) -> None:
    pipe = Path(tempfile.gettempdir(), "pipe")
    if not pipe.exists():
        os.mkfifo(pipe)
    os.symlink(pipe, path)


def _doubling(path: Path) -> None:
    """Make a folder with two links to itself: it has 2^n paths of n folders."""
    path.mkdir()
    for name in ("a", "b"):
        os.symlink(".", path / name)


def _hollow(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except OSError:  # only root can
        os.symlink("/dev/zero", path)


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:  # the whole path may be too long for a socket's name
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _unreadable(content: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(content)
        path.chmod(0)

    return make


def _outside(content: bytes) -> Callable[[Path], None]:
    """Make a link to a file outside of the store that could be one of its files."""

    def make(path: Path) -> None:
        secret = Path(tempfile.gettempdir(), "secret")
        secret.write_bytes(content)
        os.symlink(secret, path)

    return make


_SPECIAL: dict[str, Content] = {
    "missing": None,
    "empty": b"",
    "one byte": b"{",
    "folder": _folder,
    "link to itself": _link(lambda path: path.name),
    "link to nowhere": _link("nowhere"),
    "link to its folder": _link("."),
    "link to the root": _link("/"),
    "link to zeros": _link("/dev/zero"),
    "link to the terminal": _link("/dev/tty"),
    "link to memory": _link("/proc/self/mem"),
    "link to status": _link("/proc/self/status"),
    "pipe": _fifo,
    "link to a pipe": _link_to_a_pipe,
    "folder of itself": _doubling,
    "hollow": _hollow,
    "device": _device,
    "socket": _socket,
}
_OTHERS = ("copy of", "link to", "link outside to", "swapped with")
_DISTANCES = (1, 2, 3, 7)
_OPERATIONS = [
    *_SPECIAL,
    *((name, distance) for name in _OTHERS for distance in _DISTANCES),
    *("a hundred times", "its own link", "unreadable", "folder is missing", "folder is a file"),
    *("folder is a link", "folder is a pipe"),
]


class Files(Family):
    """Every file of a folder."""

    def __init__(self, seed: Seed) -> None:
        self._seed, self._paths = seed, list(seed.files)
        super().__init__(len(self._paths), _OPERATIONS)

    def make(self, place: int, operation: Any) -> Mutant:
        """Put something else where a file is."""
        path = self._paths[place]
        raw = self._seed.files[path]
        tensors = self._seed.chunk_files
        if isinstance(operation, tuple):
            name, distance = operation
            other = self._paths[(place + distance) % len(self._paths)]
            content = self._seed.files[other]
            # Frames do not tell which chunk they are.
            ours = frozenset[str]().union(*(tensors[p] for p in (path, other) if p in tensors))
            if name == "swapped with":
                changes: dict[str, Content] = {path: content, other: raw}
                return Mutant(f"{path} {name} {other}", changes, ours)
            if name == "copy of":
                return Mutant(f"{path}: {name} {other}", {path: content}, ours)
            relative = os.path.relpath(other, os.path.dirname(path))
            link = _link(relative) if name == "link to" else _outside(content)
            return Mutant(f"{path}: {name} {other}", {path: link})
        if operation in _SPECIAL:
            return Mutant(f"{path}: {operation}", {path: _SPECIAL[operation]})
        if operation == "a hundred times":
            return Mutant(f"{path}: {operation}", {path: raw * 100})
        if operation == "its own link":
            return Mutant(f"{path}: {operation}", {path: _outside(raw)})
        if operation == "unreadable":
            return Mutant(f"{path}: {operation}", {path: _unreadable(raw)})
        folder = path.rpartition("/")[0]
        made: dict[str, Content] = {
            "folder is missing": None,
            "folder is a file": b"x",
            "folder is a link": _link("/"),
            "folder is a pipe": _fifo,
        }
        return Mutant(f"{folder or path}: {operation}", {folder or path: made[operation]})
