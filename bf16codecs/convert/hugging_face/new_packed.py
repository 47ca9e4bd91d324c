"""Packed folders in the making, on a disk or in an object store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from bf16codecs._files.reading import disk_size
from bf16codecs.convert.hugging_face.folders import Tree
from bf16codecs.convert.hugging_face.note import note_of
from bf16codecs.convert.hugging_face.packed import (
    NOTE,
    Manifest,
    NotedFile,
    copy_noted,
    mode_of_store,
    set_modes,
    why_not_packed,
)
from bf16codecs.convert.new_store import Target
from bf16codecs.convert.summary import Progress
from bf16codecs.convert.target import new_target

__all__ = ["NewPacked", "new_packed"]


class NewPacked(Protocol):
    """A packed folder that is being made.

    Attributes
    ----------
    options
        Of the object store that it is in.
    """

    options: Mapping[str, Any] | None

    def copy(
        self, tree: Tree, kinds: Sequence[str], verify: bool, progress: Progress | None
    ) -> dict[str, NotedFile]:
        """Copy files and folders, and note the files, with digests of these kinds."""

    def location(self, store: str) -> Target:
        """Return the path or address of a store in it."""

    def finish(self, manifest: Manifest) -> None:
        """Write the note for readers, and the manifest, which makes it a packed folder."""

    def stored_nbytes(self) -> int:
        """Return the size of all that was written."""


class _PackedFolder:
    """A packed folder on a disk, at a temporary path."""

    options: Mapping[str, Any] | None = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def copy(
        self, tree: Tree, kinds: Sequence[str], verify: bool, progress: Progress | None
    ) -> dict[str, NotedFile]:
        """Copy files and folders, and note the files."""
        return copy_noted(tree, self._path, kinds, verify, progress)

    def location(self, store: str) -> Path:
        """Return the path of a store in it."""
        return self._path / store

    def finish(self, manifest: Manifest) -> None:
        """Write the note and the manifest, and give everything its mode."""
        manifest.write(self._path)
        note = note_of(manifest)
        if note:
            (self._path / NOTE).write_text(note, encoding="utf-8")
        for store, files in manifest.stores.items():
            (self._path / store).chmod(mode_of_store(files.values()))
        set_modes(self._path, manifest)

    def stored_nbytes(self) -> int:
        """Return the size of all files."""
        return disk_size(self._path)


@contextmanager
def new_packed(
    target: Target, options: Mapping[str, Any] | None, overwrite: bool, sync: bool
) -> Iterator[NewPacked]:
    """Yield a packed folder to fill; it is there at the end, and removed after a failure.

    Raises FileExistsError if something is there that may not be replaced; BlockingIOError if
    another process is writing it.
    """
    if isinstance(target, str):
        # Imported only for addresses: obstore.
        from bf16codecs.convert.hugging_face.remote_packed import new_remote_packed

        with new_remote_packed(target, options) as made:
            yield made
        return
    with new_target(target, overwrite, why_not_packed, sync, as_folder=True) as path:
        yield _PackedFolder(path)
