"""Checkpoints in the making, on a disk or in an object store, seen once they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from bf16codecs._files.folders import walk
from bf16codecs.convert.new_store import Target
from bf16codecs.convert.options import Options
from bf16codecs.convert.target import new_target, other_than_model
from bf16codecs.store.kinds import Kind
from bf16codecs.store.opening import Opening, open_store
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.zarr.sinks import FolderSink
from bf16codecs.store.zarr.writer import ZarrWriter

__all__ = ["Draft", "new_draft"]


class Draft(Protocol):
    """A checkpoint that is being made.

    Attributes
    ----------
    path
        The folder on the disk that becomes it; None in an object store.
    replaces
        Whether it replaces another store.
    """

    path: Path | None
    replaces: bool

    def writer(self, options: Options) -> ZarrWriter:
        """Return its writer."""

    def declare(self, arrays: Iterable[str], base: str | None) -> None:
        """Announce the paths of all arrays, before other processes write chunks of them.

        `base` is the address of the base, if it has one.
        """

    def leave_note(self) -> None:
        """Let a note stay after a failure: other processes may write keys for a while."""

    def read(self, key: str, start: int, nbytes: int) -> bytes:
        """Return bytes of a key from an offset on, fewer at its end."""

    def keys(self) -> Iterable[str]:
        """Return all keys that were written."""

    def open(self, base: ModelReader | None) -> ModelReader:
        """Open it, once its metadata are written; `base` is the model of its differences."""


class _DraftFolder:
    """A checkpoint on a disk, at a temporary path."""

    def __init__(self, path: Path, replaces: bool) -> None:
        path.mkdir()
        self.path: Path | None = path
        self.replaces, self._path = replaces, path

    def writer(self, options: Options) -> ZarrWriter:
        """Return its writer."""
        return ZarrWriter(FolderSink(self._path), options.choice, options.zarr_format)

    def declare(self, arrays: Iterable[str], base: str | None) -> None:
        """Do nothing: all of the folder is removed after a failure."""

    def leave_note(self) -> None:
        """Do nothing: no other process finds the folder again."""

    def read(self, key: str, start: int, nbytes: int) -> bytes:
        """Return bytes of a file from an offset on, fewer at its end."""
        with open(self._path / key, "rb") as file:
            file.seek(start)
            return file.read(nbytes)

    def keys(self) -> Iterator[str]:
        """Yield the paths of all files."""
        for folder, _, files in walk(self._path):
            below = Path(folder).relative_to(self._path)
            yield from ((below / name).as_posix() for name in files)

    def open(self, base: ModelReader | None) -> ModelReader:
        """Open it, once its metadata are written."""
        return open_store(self._path, Kind.FOLDER, opening=Opening(base=base))


@contextmanager
def new_draft(target: Target, options: Options) -> Iterator[Draft]:
    """Yield a checkpoint to write; it gets its name at the end, and is removed after a failure.

    Raises FileExistsError if something is there that may not be replaced; BlockingIOError if
    another process is writing it.
    """
    if isinstance(target, str):
        # Imported only for addresses: zarr, obstore.
        from bf16codecs.convert.new_remote import new_remote

        with new_remote(target, options) as store:
            yield store
        return
    obstacle = partial(other_than_model, kind=Kind.FOLDER)
    with new_target(target, options.overwrite, obstacle, options.sync, as_folder=True) as path:
        yield _DraftFolder(path, os.path.lexists(target))
