"""The kernels' source: NVRTC compiles it where it is used, for the GPU that is there."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from bf16codecs.errors import DeviceError

__all__ = ["NVRTC_HEADERS", "PREFIX", "Sources", "kernel_names", "kernel_sources", "read_sources"]

#: What the kernels' names begin with. Each has a file of its own, called by the rest.
PREFIX = "bf16codecs_"

_HERE = Path(__file__).resolve().parent
_INSTALLED, _CHECKOUT = _HERE / "source", _HERE.parent / "_native"
_FOLDER = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT

#: The headers of the standard library that the source includes, of which NVRTC has none.
NVRTC_HEADERS = _FOLDER / "cuda" / "nvrtc"

_INCLUDE = re.compile(rb'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


class Sources(NamedTuple):
    """A source file, and all that it includes."""

    #: What the names are relative to.
    folder: Path
    #: The file's own name.
    name: str
    #: What is in them, by path, the file itself first.
    files: dict[Path, bytes]

    @property
    def text(self) -> str:
        """The file itself."""
        return self.files[self.folder / self.name].decode()

    @property
    def digest(self) -> bytes:
        """A digest of the kernels' sources."""
        digest = hashlib.sha256()
        for path, content in self.files.items():
            digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
        return digest.digest()


def kernel_names() -> list[str]:
    """Return the names of the package's kernels."""
    return sorted(f"{PREFIX}{path.stem}" for path in (_FOLDER / "cuda").glob("*.cu"))


def kernel_sources(kernel: str) -> Sources:
    """Read the source of one of the package's kernels.

    Raises
    ------
    DeviceError
        If there is no such kernel.
    """
    if kernel not in kernel_names():
        raise DeviceError(f"{kernel}: the package has no such kernel")
    return read_sources(f"cuda/{kernel.removeprefix(PREFIX)}.cu", _FOLDER)


def read_sources(name: str, folder: Path) -> Sources:
    """Read a source file and what it includes, in whichever case.

    Parameters
    ----------
    name
        The file.
    folder
        What its name and those of its own headers are relative to.
    """
    files: dict[Path, bytes] = {}
    todo = [folder / name]
    while todo:
        path = todo.pop()
        if path in files:
            continue
        files[path] = content = path.read_bytes()
        for included in _INCLUDE.findall(content):
            places = (parent / included.decode() for parent in (folder, NVRTC_HEADERS))
            todo += [place for place in places if place.is_file()]
    return Sources(folder, name, files)
