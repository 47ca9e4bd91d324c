"""Source code of the kernels, which NVRTC compiles for the GPU at hand."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from bf16codecs.errors import DeviceError

__all__ = ["NVRTC_HEADERS", "PREFIX", "Sources", "kernel_names", "kernel_sources", "read_sources"]

#: Prefix of the kernels' names. The rest of a name is that of the kernel's file.
PREFIX = "bf16codecs_"

_HERE = Path(__file__).resolve().parent
_INSTALLED, _CHECKOUT = _HERE / "source", _HERE.parent / "_native"
_FOLDER = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT

#: Stand-ins for the standard headers that the sources include: NVRTC has none.
NVRTC_HEADERS = _FOLDER / "cuda" / "nvrtc"

_INCLUDE = re.compile(rb'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


class Sources(NamedTuple):
    """A source file and the files that it includes."""

    #: Folder that names are relative to.
    folder: Path
    #: Name of the source file.
    name: str
    #: Contents by path, the source file first.
    files: dict[Path, bytes]

    @property
    def text(self) -> str:
        """Text of the source file."""
        return self.files[self.folder / self.name].decode()

    @property
    def digest(self) -> bytes:
        """Digest of all files."""
        digest = hashlib.sha256()
        for path, content in self.files.items():
            digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
        return digest.digest()


def kernel_names() -> list[str]:
    """Return the names of the package's kernels."""
    return sorted(f"{PREFIX}{path.stem}" for path in (_FOLDER / "cuda").glob("*.cu"))


def kernel_sources(kernel: str) -> Sources:
    """Read the source of one of the package's kernels; raise DeviceError if there is none."""
    if kernel not in kernel_names():
        raise DeviceError(f"{kernel}: the package has no such kernel")
    return read_sources(f"cuda/{kernel.removeprefix(PREFIX)}.cu", _FOLDER)


def read_sources(name: str, folder: Path) -> Sources:
    """Read a source file in `folder`, and all files that it includes, under any condition."""
    files: dict[Path, bytes] = {}
    todo = [folder / name]
    while todo:
        path = todo.pop()
        if path in files:
            continue
        files[path] = content = path.read_bytes()
        for included in _INCLUDE.findall(content):
            candidates = (parent / included.decode() for parent in (folder, NVRTC_HEADERS))
            todo += [candidate for candidate in candidates if candidate.is_file()]
    return Sources(folder, name, files)
