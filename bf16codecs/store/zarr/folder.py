"""The files of a run in a folder, as an append reads and changes them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from bf16codecs._arrays.storage import FolderStorage, LocalChunk
from bf16codecs._files.folders import Folder
from bf16codecs._files.locks import LifeLock, refuse_taken, take_lock
from bf16codecs._files.reading import write_all
from bf16codecs.errors import StoreError
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.runs.writer import Write
from bf16codecs.store.zarr.metadata import leads_elsewhere
from bf16codecs.store.zarr.sinks import make_folder

__all__ = ["APPENDING", "LOCK", "RunFolder", "refuse_appends"]

#: The folder of an append's files. It is in the array of step numbers, where Zarr libraries do not
#: look for arrays and groups.
APPENDING = f"{STEP_PATH}/.appending"
#: A file in it that the appending process locks while it is alive.
LOCK = "lock"


class RunFolder(FolderStorage):
    """A run in a folder that is not trusted: links in it are not followed.

    The folder is held open, so that nothing that takes its path later is mistaken for the run.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self._lock: LifeLock | None = None

    def take(self) -> None:
        """Lock out other appends until it is closed; raise BlockingIOError if one is under way."""
        while self._lock is None:
            path = self.path(APPENDING)
            make_folder(self.root, APPENDING)
            # Another process may finish, and remove the folder.
            with suppress(FileNotFoundError):
                self._lock = take_lock(Folder(path), LOCK, str(self.root))

    def close(self) -> None:
        """Let others append."""
        super().close()
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError):  # if others have it by now; without its lock, it does no harm
                lock.remove()
                self.path(APPENDING).rmdir()

    def check(self) -> None:
        """Refuse to write if another folder has the path of this one."""
        if not self.is_current():
            raise StoreError(f"{self.root}: was replaced or removed meanwhile")

    def path(self, key: str) -> Path:
        """Return a key's path; raise StoreError if it leads out of the run, or through a link."""
        if leads_elsewhere(key):
            raise StoreError(f"{self.root}: {key!r:.80} is not a path in the store")
        path = self.root
        for part in key.split("/"):
            path /= part
            if path.is_symlink():
                raise StoreError(f"{path}: a symbolic link, through which nothing is written")
        return path

    def remove(self, key: str) -> None:
        """Remove a file or a folder, if it exists."""
        self.path(key)  # through no link
        self._folder.remove(key)

    def find(self, key: str) -> LocalChunk | None:
        """Open a file for reading, or return None if it is missing."""
        with self._named(key):
            return super().find(key)

    def read_part(self, key: str, offset: int, size: int) -> bytes | None:
        """Read at most `size` bytes from an offset in a file; return None if it is missing."""
        chunk = self.find(key)
        if chunk is None:
            return None
        with chunk:
            return chunk.read([(offset, offset + size)])[0].tobytes()

    def write(self, key: str, content: bytes, how: int = os.O_TRUNC) -> Path:
        """Replace a file's content, append to it (`O_APPEND`), or make it anew (`O_EXCL`)."""
        path = self.path(key)
        make_folder(self.root, key.rpartition("/")[0])
        with self._open(key, os.O_WRONLY | os.O_CREAT | how) as file:
            write_all(file, content)
        return path

    def write_parts(self, key: str, parts: Iterable[Write], size: int | None = None) -> Path:
        """Write parts of an existing file, let it have a size, and return its path."""
        with self._open(key, os.O_RDWR) as file:
            for at, content in parts:
                file.seek(at)
                write_all(file, content)
            if size is not None:
                file.truncate(size)
        return self.root / key

    def _open(self, key: str, flags: int) -> FileIO:
        with self._named(key):
            descriptor = self._folder.open(key, flags)
        return FileIO(descriptor, "r+" if flags & os.O_RDWR else "w")

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        """Give errors the whole path of a key."""
        try:
            yield
        except StoreError as e:
            raise StoreError(f"{self.root / key}: {e}") from e
        except OSError as e:
            e.filename = str(self.root / key)
            raise


def refuse_appends(path: Path) -> None:
    """Raise BlockingIOError if a process appends to the run that a folder may be."""
    try:
        folder = Folder(RunFolder(path).path(APPENDING))
    except (OSError, StoreError):  # not a run, or no append is under way
        return
    refuse_taken(folder, LOCK, str(path))
