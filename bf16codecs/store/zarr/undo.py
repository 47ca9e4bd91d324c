"""Undoes an unfinished append to a run in a folder.

docs/runs.md, "Appending", is the normative description.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import Zstd

from bf16codecs._files.folders import Folder
from bf16codecs._files.sync import sync, sync_files, sync_names
from bf16codecs.codecs.growing import directory_nbytes
from bf16codecs.errors import StoreError
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.runs.layout import STEPS_CHUNK, RunInfo
from bf16codecs.store.runs.writer import shrink
from bf16codecs.store.zarr.documents import as_json, read_copies
from bf16codecs.store.zarr.folder import APPENDING, LOCK, RunFolder
from bf16codecs.store.zarr.metadata import GROUP_DOCUMENTS, chunk_key

__all__ = ["BYTES_CODEC", "Begun", "steps_chunk", "undo"]

#: The codec of headers, and of the numbers of steps.
BYTES_CODEC = Zstd(level=3, checksum=True)

_NEW = "new"


class Begun:
    """The contents of a run's folder `APPENDING`, held while appending.

    It names the new arrays, and holds the documents that will replace others. If it is `durable`,
    it survives a loss of power between any two steps.
    """

    def __init__(self, folder: RunFolder, durable: bool) -> None:
        self._folder, self._durable = folder, durable
        self._staged: list[tuple[Path, str]] = []

    def note(self, arrays: Iterable[str]) -> None:
        """Note arrays before they are made: from now on, `undo` has something to do."""
        text = "".join(f"{path}\n" for path in arrays)
        path = self._folder.write(f"{APPENDING}/{_NEW}", text.encode(), os.O_APPEND)
        if self._durable:
            sync(path)
            sync_names(self._folder.root, [path])

    def noted(self) -> list[str] | None:
        """Return the noted arrays; None if no append was begun."""
        text = self._folder.read(f"{APPENDING}/{_NEW}")
        if text is None:
            return None
        # Nothing was made yet for an incomplete line.
        lines = text.tobytes().split(b"\n")[:-1]
        return [line.decode(errors="replace") for line in lines if line]

    def stage(self, key: str, content: bytes) -> None:
        """Write the new content of a key beside it."""
        name = f"{APPENDING}/{len(self._staged)}"
        self._staged.append((self._folder.write(name, content, os.O_EXCL), key))

    def replace(self) -> None:
        """Replace keys by their staged contents, in order, each atomically."""
        staged, self._staged = self._staged, []
        if self._durable:
            sync_files(path for path, _ in staged)
        targets = []
        for path, key in staged:
            targets.append(self._folder.path(key))
            targets[-1].parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, targets[-1])
        if self._durable:
            sync_names(self._folder.root, targets)

    def remove(self, *kept: str) -> None:
        """Remove all but the lock and some names: the append is done, or undone."""
        folder = Folder(self._folder.path(APPENDING))
        for name in folder.names():
            if name not in (LOCK, *kept):
                folder.remove(name)


def steps_chunk(numbers: Sequence[int], zarr_format: int) -> tuple[str, bytes]:
    """Return the key and the content of the chunk with the last of the steps' numbers."""
    group = (len(numbers) - 1) // STEPS_CHUNK
    chunk = np.zeros(STEPS_CHUNK, "<i8")
    last = numbers[group * STEPS_CHUNK :]
    chunk[: len(last)] = last
    return f"{STEP_PATH}/{chunk_key(zarr_format)((group,))}", BYTES_CODEC.encode(chunk)


def undo(folder: RunFolder, zarr_format: int, durable: bool) -> None:
    """Restore a run to the state in its root, undoing an append that did not finish."""
    begun, root = Begun(folder, durable), folder.root
    begun.remove(_NEW)
    noted = begun.noted()
    if noted is None:
        return
    attributes, documents = read_copies(str(root), folder, zarr_format)
    run = StoreInfo.from_attributes(attributes, str(root)).run
    if run is None:
        raise StoreError(
            f"{root}: not a run, but it has files of an unfinished append to one: take another copy"
        )
    new = [path for path in noted if path not in documents]
    changed = [
        *_remove_arrays(folder, new, documents),
        *_cut_chunks(folder, chunk_key(zarr_format), run),
    ]
    for key, document in _documents(documents, attributes, zarr_format):
        if _content(folder, key) != document:
            begun.stage(key, as_json(document))
    begun.stage(*steps_chunk(run.numbers, zarr_format))
    if durable:
        sync_files(path for path in changed if path.exists())
        sync_names(root, changed)
    begun.replace()
    begun.remove()


def _remove_arrays(
    folder: RunFolder, paths: Iterable[str], documents: Collection[str]
) -> Iterator[Path]:
    """Remove arrays, and groups that have nothing else; yield the removed paths."""
    for path in paths:
        folder.remove(path)
        yield folder.root / path
        while (path := path.rpartition("/")[0]) and path not in documents:
            group = folder.path(path)
            for name in (*GROUP_DOCUMENTS[2], *GROUP_DOCUMENTS[3]):
                (group / name).unlink(missing_ok=True)
            try:
                group.rmdir()
            except FileNotFoundError:
                continue
            except OSError as e:
                if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                break
            yield group


def _cut_chunks(folder: RunFolder, key: Any, run: RunInfo) -> Iterator[Path]:
    """Cut the step behind the last one off chunks; yield the paths of changed chunks."""
    group, slot = divmod(len(run.steps), run.group)
    grown, name = run.grown(), key((group,))
    for array in run.arrays:
        path = folder.path(array)
        # Only chunks that exist, which may be fewer than those of the shape.
        for chunk in sorted(os.listdir(path) if path.is_dir() else ()):
            if chunk != name and not chunk.startswith(f"{name}."):
                continue
            if array not in grown:
                (path / chunk).unlink()
                yield path / chunk
            elif _cut_chunk(folder, f"{array}/{chunk}", slot, run.group):
                yield path / chunk


def _cut_chunk(folder: RunFolder, key: str, slot: int, room: int) -> bool:
    """Cut off versions from `slot` on; return whether any existed."""
    with folder.open(key) as chunk:
        size = chunk.size
        directory = chunk.read([(0, directory_nbytes(room))])[0].tobytes()
    shrunk = shrink(directory, slot, room)
    if shrunk is None:
        return False
    end = min(size, shrunk.end)
    if not any(directory[shrunk.entries.at :]) and size == end:
        return False
    folder.write_parts(key, [shrunk.entries], end)
    return True


def _documents(
    documents: dict[str, dict[str, dict[str, Any]]], attributes: dict[str, Any], zarr_format: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all keys that the root has a copy of."""
    for path, node in documents.items():
        for name, document in node.items():
            yield f"{path}/{name}", document
    if zarr_format == 2:
        yield ".zattrs", attributes


def _content(folder: RunFolder, key: str) -> Any:
    text = folder.read(key)
    try:
        return None if text is None else json.loads(text.tobytes())
    except ValueError:
        return None
