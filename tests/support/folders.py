"""Reads and writes the contents of folders."""

from __future__ import annotations

from pathlib import Path

#: Contents of files, and None for folders, by their paths.
Files = dict[str, bytes | None]


def content_of(path: Path) -> Files | bytes:
    """Return all that is in a folder, or in a file."""
    return files_in(path) if path.is_dir() else path.read_bytes()


def names_in(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def write_files(files: Files, folder: Path) -> Path:
    """Write files and folders below a new folder."""
    folder.mkdir(parents=True)
    for name, content in sorted(files.items()):
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
    return folder


def files_in(folder: Path) -> Files:
    """Return all that is in a folder and the folders below it."""
    return {
        str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes()
        for p in sorted(folder.rglob("*"))
    }
