"""Where the keys of a Zarr store are written: a folder, or a ZIP file."""

from __future__ import annotations

import os
import secrets
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol

from bf16codecs._base.cluster import NotSeenError
from bf16codecs._base.forks import make_lock
from bf16codecs._files.folders import Folder
from bf16codecs._files.reading import reserve, write_all
from bf16codecs._files.sync import sync

__all__ = ["FolderSink", "SharedFolder", "Sink", "ZipSink", "make_folder"]


class Sink(Protocol):
    """Target of a Zarr store's keys, which several threads write.

    Attributes
    ----------
    concurrency
        How many keys at a time to write pays off, beyond one for each processor.
    """

    concurrency: int

    def put(self, key: str, data: Any) -> None:
        """Write the value of a key: a chunk or a document."""

    def remove(self, path: str) -> None:
        """Remove all keys below a path."""

    def shared(self) -> Sink:
        """Return the target for other processes to write keys to, until this one is closed.

        Raises ValueError if only one process can write it.
        """

    def close(self) -> None:
        """Finish writing."""


class FolderSink:
    """Keys as files in an existing folder; other processes flush each file if `flush` is true."""

    concurrency = 1

    def __init__(self, path: Path, flush: bool = False) -> None:
        self._root, self._flush = path, flush

    def put(self, key: str, data: Any) -> None:
        """Write a file."""
        make_folder(self._root, os.path.dirname(key))
        _write_file(os.path.join(self._root, key), data)

    def remove(self, path: str) -> None:
        """Remove all keys below a path."""
        Folder(self._root).remove(path)

    def shared(self) -> SharedFolder:
        """Return this folder for other processes to write keys to, until it is closed."""
        (self._root / SharedFolder.UNFINISHED).mkdir(exist_ok=True)
        return SharedFolder(self._root, self._flush)

    def close(self) -> None:
        """Let no other process write from now on."""
        unfinished = self._root / SharedFolder.UNFINISHED
        if unfinished.exists():
            # Renamed in one step: from now on no process can write a key.
            revoked = unfinished.rename(unfinished.with_name(".revoked"))
            Folder(self._root).remove(revoked.name)


class SharedFolder:
    """Keys as files in a folder, written by processes that may die or be abandoned."""

    concurrency = 1
    UNFINISHED = ".unfinished"

    def __init__(self, root: Path, flush: bool) -> None:
        self._root, self._flush = root, flush

    def put(self, key: str, data: Any) -> None:
        """Write a file."""
        # It gets its name when it is complete. Once the folder of unfinished files is gone the
        # store is finished, and a process that still writes does no harm.
        unfinished = os.path.join(self._root, self.UNFINISHED, secrets.token_hex(8))
        try:
            _write_file(unfinished, data)
        except FileNotFoundError as e:
            raise NotSeenError.at(str(self._root)) from e
        if self._flush:
            # Here, since no other machine can: it has nothing of the file in its memory.
            sync(unfinished)
        make_folder(self._root, os.path.dirname(key))
        os.replace(unfinished, os.path.join(self._root, key))

    def remove(self, path: str) -> None:
        """Remove all keys below a path."""
        Folder(self._root).remove(path)

    def shared(self) -> SharedFolder:
        """Return this."""
        return self

    def close(self) -> None:
        """Do nothing: every file is complete."""


def make_folder(root: Path, path: str) -> None:
    """Make a folder below the root, and those above it.

    Never the root itself: if it is missing, it was moved, with everything written into it.
    """
    if not path:
        return
    whole = os.path.join(root, path)
    with suppress(FileExistsError):
        try:
            os.mkdir(whole)
        except FileNotFoundError:
            make_folder(root, os.path.dirname(path))
            os.mkdir(whole)


def _write_file(path: str, data: Any) -> None:
    with open(path, "wb", buffering=0) as file:
        reserve(file.fileno(), len(data))
        write_all(file, data)


class ZipSink:
    """Keys as the uncompressed members of a ZIP file."""

    concurrency = 1

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path, "x", zipfile.ZIP_STORED)
        self._lock = make_lock()

    def put(self, key: str, data: Any) -> None:
        """Write a member."""
        # ZipInfo's default date is constant: with one thread, equal stores make equal files.
        member = zipfile.ZipInfo(key)
        member.file_size = len(data)
        member.external_attr = 0o644 << 16
        with self._lock, self._zip.open(member, "w") as file:
            file.write(data)

    def remove(self, path: str) -> NoReturn:
        """Raise ValueError: members stay where they are."""
        raise ValueError(f"{path}: nothing can be removed from a ZIP file that is being written")

    def shared(self) -> NoReturn:
        """Raise ValueError: members follow each other."""
        raise ValueError("several processes cannot write one ZIP file; use a folder as the target")

    def close(self) -> None:
        """Write the directory, and close the file."""
        with self._lock:
            self._zip.close()
