"""Reads and writes the contents of folders."""

from __future__ import annotations

from pathlib import Path

#: Contents of files, and None for folders, by their paths.
Files = dict[str, bytes | None]


def content_of(path: Path) -> Files | bytes:
    """Return the contents of all files in a folder, or of one file."""
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
    """Return the paths of everything below a folder."""
    return {
        str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes()
        for p in sorted(folder.rglob("*"))
    }


def copy_of(source: Path, target: Path) -> Path:
    """Copy a file or a folder to a path, or into a folder; the copy is writable."""
    path = target / source.name if target.is_dir() else target
    if source.is_dir():
        return write_files(files_in(source), path)
    path.write_bytes(source.read_bytes())
    return path
