"""What an append to a run in a folder has begun, and how that is undone.

docs/runs.md, "Appending", is the normative description.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import Zstd

from bf16codecs._files import write_all
from bf16codecs._growing import directory_nbytes
from bf16codecs._messages import named_errors
from bf16codecs._sync import sync, sync_files, sync_names
from bf16codecs.errors import StoreError
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.run_layout import RunInfo
from bf16codecs.store.run_writer import cut_off
from bf16codecs.store.zarr_documents import ROOT_DOCUMENTS, as_json, read_documents
from bf16codecs.store.zarr_metadata import chunk_key, leads_elsewhere

__all__ = ["BYTES_CODEC", "STEPS_CHUNK", "Begun", "path_in", "steps_chunk", "undo", "write_parts"]

#: How many numbers of steps a chunk has: all of them, but of the longest runs.
STEPS_CHUNK = 1 << 16
#: Of these, and of headers.
BYTES_CODEC = Zstd(level=3, checksum=True)

_NEW = "new"


class Begun:
    """The folder that is in a run while a step is added to it.

    It says which arrays are new, and holds what will replace documents. It is in the folder of the
    steps' numbers, where no Zarr library looks for arrays and groups.

    Parameters
    ----------
    root
        The run.
    durable
        Whether a loss of power may come between any two steps.
    """

    def __init__(self, root: Path, durable: bool) -> None:
        self.path = path_in(root, f"{STEP_PATH}/.appending")
        self._root, self._durable = root, durable
        self._staged: list[tuple[Path, str]] = []

    def note(self, arrays: Iterable[str]) -> None:
        """Make the folder if it is not there, and note arrays in it before they are made."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / _NEW, "ab", buffering=0) as file:
            write_all(file, "".join(f"{path}\n" for path in arrays).encode())
        if self._durable:
            sync(self.path / _NEW)
            sync_names(self._root, [self.path / _NEW])

    def noted(self) -> list[str]:
        """Return the arrays that were noted."""
        try:
            text = (self.path / _NEW).read_bytes()
        except FileNotFoundError:
            return []
        # Of a line that is not whole, nothing was made yet.
        return [line.decode(errors="replace") for line in text.split(b"\n")[:-1] if line]

    def stage(self, key: str, content: bytes) -> None:
        """Write what will replace a key."""
        path = self.path / str(len(self._staged))
        with open(path, "wb", buffering=0) as file:
            write_all(file, content)
        self._staged.append((path, key))

    def replace(self) -> None:
        """Let what was written replace its keys, in order, each in one step."""
        staged, self._staged = self._staged, []
        if self._durable:
            sync_files(path for path, _ in staged)
        targets = []
        for path, key in staged:
            targets.append(path_in(self._root, key))
            targets[-1].parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, targets[-1])
        if self._durable:
            sync_names(self._root, targets)

    def remove(self) -> None:
        """Remove the folder: what was begun is done, or undone."""
        _remove_folder(self.path)


def path_in(root: Path, key: str) -> Path:
    """Return the path of a key in a run, below which nothing is but files and folders.

    Raises
    ------
    StoreError
        If it leads out of it, as one in a run from a stranger may.
    """
    if leads_elsewhere(key):
        raise StoreError(f"{root}: {key!r:.80} is not a path in the store")
    path = root
    for part in key.split("/"):
        path /= part
        if path.is_symlink():
            raise StoreError(f"{path}: a symbolic link, through which nothing is written")
    return path


def write_parts(path: Path, parts: Iterable[tuple[int, bytes]]) -> None:
    """Write parts of a file that is there, given by where they belong."""
    with open(path, "r+b", buffering=0) as file:
        for at, content in parts:
            file.seek(at)
            write_all(file, content)


def steps_chunk(numbers: Sequence[int], zarr_format: int) -> tuple[str, bytes]:
    """Return the key and the content of the chunk with the last of the steps' numbers."""
    group = (len(numbers) - 1) // STEPS_CHUNK
    chunk = np.zeros(STEPS_CHUNK, "<i8")
    last = numbers[group * STEPS_CHUNK :]
    chunk[: len(last)] = last
    return f"{STEP_PATH}/{chunk_key(zarr_format)((group,))}", BYTES_CODEC.encode(chunk)


def undo(root: Path, zarr_format: int, durable: bool) -> None:
    """Leave a run as its root says that it is, whatever an append that did not finish has done.

    Raises
    ------
    StoreError, CodecError
        If the run is damaged.
    OSError
        If something cannot be changed.
    """
    begun = Begun(root, durable)
    if not begun.path.exists():
        return
    attributes, documents = read_documents(root, zarr_format)
    run = StoreInfo.from_attributes(attributes, str(root)).run
    if run is None:
        raise StoreError(f"{root}: not a run, and has what an append to one has left")
    changed = [
        *_remove_arrays(root, [path for path in begun.noted() if path not in documents], documents),
        *_cut_chunks(root, chunk_key(zarr_format), run),
    ]
    for key, document in _documents(documents, attributes, zarr_format):
        if _content(path_in(root, key)) != document:
            begun.stage(key, as_json(document))
    begun.stage(*steps_chunk(run.numbers, zarr_format))
    if durable:
        sync_files(path for path in changed if path.exists())
        sync_names(root, changed)
    begun.replace()
    begun.remove()


def _remove_arrays(root: Path, paths: Iterable[str], documents: Collection[str]) -> Iterator[Path]:
    """Remove arrays, and groups that have nothing else; yield where something is gone."""
    for path in paths:
        _remove_folder(path_in(root, path))
        yield root / path
        while (path := path.rpartition("/")[0]) and path not in documents:
            folder = path_in(root, path)
            for name in ROOT_DOCUMENTS:
                (folder / name).unlink(missing_ok=True)
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # it has others
                break
            yield folder


def _remove_folder(folder: Path) -> None:
    """Remove a folder, if it is there; errors have whole paths, unlike those of rmtree()."""
    for here, _, names in os.walk(folder, topdown=False, onerror=_raise_if_there):
        for name in names:
            os.unlink(os.path.join(here, name))
        os.rmdir(here)


def _raise_if_there(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _cut_chunks(root: Path, key: Any, run: RunInfo) -> Iterator[Path]:
    """Cut off what chunks hold of the step behind the last one; yield those that have changed."""
    group, slot = divmod(len(run.steps), run.group)
    grown, name = run.grown(), key((group,))
    for array in run.arrays:
        folder = path_in(root, array)
        # Those that are there: there may be fewer than the shape says.
        for found in sorted(os.listdir(folder) if folder.is_dir() else ()):
            if found != name and not found.startswith(f"{name}."):
                continue
            path = path_in(root, f"{array}/{found}")
            if array not in grown:
                path.unlink()
                yield path
            elif _cut_chunk(path, slot, run.group):
                yield path


def _cut_chunk(path: Path, slot: int, room: int) -> bool:
    """Cut off versions from a place on; tell whether there were any."""
    with open(path, "rb") as file:
        directory = file.read(directory_nbytes(room))
    with named_errors(str(path)):
        cut, _, end = cut_off(directory, slot, room)
    if not cut and path.stat().st_size == end:
        return False
    write_parts(path, cut)
    with open(path, "r+b", buffering=0) as file:
        file.truncate(end)
    return True


def _documents(
    documents: dict[str, dict[str, dict[str, Any]]], attributes: dict[str, Any], zarr_format: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all keys that the root has a copy of."""
    for path, own in documents.items():
        for name, document in own.items():
            yield f"{path}/{name}", document
    if zarr_format == 2:
        yield ".zattrs", attributes


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
