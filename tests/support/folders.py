"""What is in a folder."""

from __future__ import annotations

from pathlib import Path

#: Contents of files, and None for folders, by their paths.
Files = dict[str, bytes | None]


def names_in(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def files_in(folder: Path) -> Files:
    """Return all that is in a folder and the folders below it."""
    return {
        str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes()
        for p in sorted(folder.rglob("*"))
    }
