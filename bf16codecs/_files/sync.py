"""Flushing: written data survive a loss of power only when the disk has them."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from bf16codecs._base.threads import run_all
from bf16codecs._files.folders import walk

try:
    from fcntl import F_FULLFSYNC, fcntl  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # macOS alone has it
    F_FULLFSYNC = None

__all__ = ["flush", "make_folders", "sync", "sync_files", "sync_names", "sync_tree"]

# How many files are flushed at a time: the disk's queue, not the processor, does the work.
_CONCURRENT = 16
# How many one job flushes. Handing each to a thread took as long as flushing it: a store with 970
# files 63 ms in memory instead of 47, on ext4 276 instead of 191. An interruption waits for the
# jobs that run.
_FILES_OF_JOB = 8


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    is_folder = os.path.isdir(path)
    if is_folder and os.name == "nt":
        return  # Windows has no call for it; NTFS keeps a journal of names
    flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
    try:
        flush(descriptor)
    except OSError as e:
        # Some network file systems have no such call for folders.
        if not (is_folder and e.errno in (errno.EINVAL, errno.ENOTSUP)):
            e.filename = os.fspath(path)
            raise
    finally:
        os.close(descriptor)


def flush(descriptor: int) -> None:
    """Wait until the content of an open file, or the names in a folder, are on the disk."""
    if F_FULLFSYNC is not None:
        # Where that exists, fsync() leaves data in the disk's own memory.
        try:
            fcntl(descriptor, F_FULLFSYNC)
            return
        except OSError:  # a file system that does not know it
            pass
    os.fsync(descriptor)


def make_folders(path: str | os.PathLike[str], durable: bool) -> None:
    """Make a folder and those that it is in, where they are missing.

    If they are `durable`, a loss of power does not take the new names away.
    """
    folder, made = Path(path), []
    while not folder.exists() and folder.parent != folder:
        made.append(folder)
        folder = folder.parent
    os.makedirs(path, exist_ok=True)
    if durable:
        for new in made:
            sync(new.parent)


def sync_tree(path: Path) -> None:
    """Wait until a file, or a folder with all its content, is on the disk."""
    if not path.is_dir():
        sync(path)
        return
    files: list[str] = []
    folders: dict[int, list[str]] = {}
    for root, _, names in walk(path):
        files.extend(os.path.join(root, name) for name in names)
        folders.setdefault(root.count(os.sep), []).append(root)
    # A name without its file on the disk is useless: files first, inner folders before outer ones.
    sync_files(files)
    for depth in sorted(folders, reverse=True):
        sync_files(folders[depth])


def sync_files(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Wait until files, or the names in folders, are on the disk, several at a time."""
    rest = iter(paths)
    parts = iter(lambda: list(itertools.islice(rest, _FILES_OF_JOB)), [])
    run_all((partial(_sync_each, part) for part in parts), _CONCURRENT)


def _sync_each(paths: Sequence[str | os.PathLike[str]]) -> None:
    for path in paths:
        sync(path)


def sync_names(root: Path, paths: Iterable[Path]) -> None:
    """Wait until the names of paths, and of their folders below a root, are on the disk.

    The paths may be gone.
    """
    folders: dict[int, set[Path]] = {}
    for path in paths:
        while path != root:
            path = path.parent
            folders.setdefault(len(path.parts), set()).add(path)
    for depth in sorted(folders, reverse=True):
        sync_files(path for path in folders[depth] if path.exists())
