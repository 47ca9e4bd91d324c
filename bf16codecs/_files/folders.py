"""Folders that are held open: no link in them, and no later owner of their path, is followed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from bf16codecs._base.limits import MAX_DEPTH
from bf16codecs._base.paths import absolute
from bf16codecs._files.hub_cache import blob_of
from bf16codecs._files.reading import READ_FLAGS, require_regular
from bf16codecs.errors import StoreError

__all__ = ["Entry", "Folder", "walk", "walk_tree"]

# Why an entry of a stranger's folder is not opened, and what to do.
_LINK_REFUSAL = (
    "a symbolic link, which could lead anywhere, and is not followed: if you trust the folder,"
    " cp -RL makes a copy without links"
)

# Whether the system knows names relative to a folder that is open.
_HAS_AT = {os.open, os.stat, os.unlink, os.rename, os.link} <= os.supports_dir_fd
# How systems refuse a link: ENOTDIR where a folder was expected, EMLINK on FreeBSD.
_REFUSED_LINK = {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}
# Workers of a cluster may still put files into a folder that is being removed.
_REMOVALS = 3

Entry: TypeAlias = "os.DirEntry[str]"


class Folder:
    """A folder that is held open, and through which nothing outside of it is ever reached.

    Files of a snapshot in huggingface_hub's cache count as inside: see `hub_cache`.

    Where the system knows no names relative to a folder that is open, as on Windows, each step
    makes sure first that the path is still this folder's.

    Parameters
    ----------
    path
        The folder.
    follow
        Whether it may be a symbolic link, as where the caller has named it. In it, none are
        followed.
    lists
        Whether its names may be listed. Otherwise, the right to list them is not needed where the
        system has O_PATH.

    Raises
    ------
    OSError
        If it is not a folder, or cannot be opened.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, follow: bool = False, lists: bool = True
    ) -> None:
        self.path = Path(absolute(path))
        self._follow = follow
        self._descriptor: int | None = None
        if _HAS_AT:
            flags = READ_FLAGS | os.O_DIRECTORY | (0 if follow else os.O_NOFOLLOW)
            if not lists:
                flags |= getattr(os, "O_PATH", 0)
            self._descriptor = os.open(self.path, flags)
            self._status = os.fstat(self._descriptor)
        else:
            self._status = os.stat(self.path, follow_symlinks=follow)
            if not stat.S_ISDIR(self._status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def close(self) -> None:
        """Close the folder."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # nothing was written through it
                os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()

    def is_ours(self) -> bool:
        """Tell whether this user owns the folder."""
        return not hasattr(os, "geteuid") or self._status.st_uid == os.geteuid()

    def is_current(self) -> bool:
        """Tell whether the path is still this folder's."""
        try:
            named = os.stat(self.path, follow_symlinks=self._follow)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, self._status)

    def check(self) -> None:
        """Raise FileNotFoundError if the path is no longer this folder's."""
        if not self.is_current():
            raise FileNotFoundError(errno.ENOENT, "It was replaced or removed", str(self.path))

    @contextmanager
    def at(self, name: str) -> Iterator[tuple[Any, int | None]]:
        """Yield a path and the `dir_fd` that it is relative to; errors get the whole path."""
        whole = str(self.path / name)
        if self._descriptor is None:
            self.check()
        try:
            yield (whole if self._descriptor is None else name), self._descriptor
        except OSError as e:
            if e.filename == name:
                e.filename = whole
            raise

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of a name, of a link itself; None if nothing has the name."""
        with self.at(name) as (path, folder):
            try:
                return os.stat(path, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        """Return the names in the folder."""
        if self._descriptor is None:
            self.check()
            return os.listdir(self.path)
        return os.listdir(self._descriptor)

    def open(self, key: str, flags: int = os.O_RDONLY) -> int:
        """Open a regular file by its path below the folder, with slashes; return its descriptor.

        StoreError is raised if it is something else, or in a folder that is a symbolic link.
        """
        *folders, name = parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in key:
            raise StoreError(f"{key!r:.80} is not a path in the store")
        try:
            if self._descriptor is None:
                return self._open_by_path(key, flags)
            return self._open_at(self._descriptor, folders, name, flags)
        except OSError as e:
            if e.errno in _REFUSED_LINK:
                blob = self._blob(key)
                if blob is not None and flags == os.O_RDONLY:
                    return Folder(blob.parent).open(blob.name)
                self.refuse_links(key)
            if e.filename is not None:
                e.filename = str(self.path / key)
            raise

    def find(self, key: str) -> int | None:
        """Open a file to read it, as `open` does; return None if it does not exist.

        StoreError is also raised if another folder has taken the path of this one.
        """
        try:
            return self.open(key)
        except NotADirectoryError:
            return None
        except FileNotFoundError:
            if self.is_current():
                return None
            text = "the store was replaced or removed while it was open: open it again"
            raise StoreError(text) from None

    def refuse_links(self, key: str) -> None:
        """Raise StoreError if a path below the folder is, or is in, a symbolic link."""
        if self._has_link(key.split("/")):
            raise StoreError(f"{key} is, or is in, {_LINK_REFUSAL}") from None

    def _has_link(self, parts: list[str]) -> bool:
        return any(self.path.joinpath(*parts[:n]).is_symlink() for n in range(1, len(parts) + 1))

    def _blob(self, key: str) -> Path | None:
        """Return the file that a link in huggingface_hub's cache stands for, if a path is one."""
        *folders, _ = key.split("/")
        return None if self._has_link(folders) else blob_of(self._real / key)

    @property
    def _real(self) -> Path:
        """The path, of the folder itself where a link was named."""
        return Path(os.path.realpath(self.path)) if self._follow else self.path

    def size_below(self, path: str) -> int:
        """Return the size of all regular files below a path in the folder.

        StoreError is raised for symbolic links on that path, and for folders that are nested too
        deep.
        """
        if path:
            self.refuse_links(path)
        return sum(s.st_size for s in self._statuses(path) if stat.S_ISREG(s.st_mode))

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if it exists, as far as possible; raise the first error."""
        errors: list[OSError] = []

        def note(function: Any, path: str, info: Any) -> None:
            error = info[1]
            if not isinstance(error, FileNotFoundError):
                error.filename = str(self.path / path)
                errors.append(error)

        for _ in range(_REMOVALS):
            errors.clear()
            found = self.stat(name)
            if found is None:
                return
            with self.at(name) as (path, folder):
                if stat.S_ISDIR(found.st_mode):
                    shutil.rmtree(path, onerror=note, dir_fd=folder)
                else:
                    try:
                        os.unlink(path, dir_fd=folder)
                    except OSError as e:
                        note(None, path, (None, e))
            if not errors:
                return
        raise errors[0]

    def _statuses(self, path: str) -> Iterator[os.stat_result]:
        """Yield the status of every entry but folders, below a path in the folder."""
        real = self._real  # found once: it takes a call to the system for each folder above
        if self._descriptor is not None and hasattr(os, "fwalk"):
            top = path or "."
            with suppress(FileNotFoundError):
                status = os.stat(top, dir_fd=self._descriptor, follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode):
                    return  # fwalk() would open a pipe, and wait
            for folder, folders, names, here in os.fwalk(top, dir_fd=self._descriptor):
                self._refuse_depth(folder[len(top) :], folders)
                for name in names:
                    with suppress(FileNotFoundError):
                        status = os.stat(name, dir_fd=here, follow_symlinks=False)
                        yield _status(status, real, folder, name)
            return
        top = str(real / path)
        for folder, folders, names in os.walk(top):
            self._refuse_depth(folder[len(top) :], folders)
            for name in names:
                with suppress(FileNotFoundError):
                    yield _status(os.lstat(os.path.join(folder, name)), real, folder, name)

    def _refuse_depth(self, below: str, folders: list[str]) -> None:
        """Refuse folders that are nested too deep, before they are walked through."""
        if folders and below.count(os.sep) >= MAX_DEPTH:
            raise StoreError(
                f"{self.path}: has more than {MAX_DEPTH} levels of folders, as no store has"
            )

    def _open_at(self, top: int, folders: list[str], name: str, flags: int) -> int:
        here = top
        try:
            for folder in folders:
                there = os.open(folder, READ_FLAGS | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                if here != top:
                    os.close(here)
                here = there
            flags |= READ_FLAGS | os.O_NOFOLLOW
            return require_regular(os.open(name, flags, 0o666, dir_fd=here))
        finally:
            if here != top:
                os.close(here)

    def _open_by_path(self, key: str, flags: int) -> int:
        if os.path.islink(self.path / key):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), key)
        self.refuse_links(key)
        descriptor = require_regular(os.open(self.path / key, READ_FLAGS | flags, 0o666))
        try:
            self.check()
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _status(status: os.stat_result, top: Path, folder: str, name: str) -> os.stat_result:
    """Return the status of a file; of a link in huggingface_hub's cache, that of its file."""
    blob = blob_of(top / folder / name) if stat.S_ISLNK(status.st_mode) else None
    return status if blob is None else os.lstat(blob)


def walk(top: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder as `os.walk` does, and raise an error where `os.walk` skips a folder."""

    def fail(error: OSError) -> None:
        raise error

    return os.walk(os.fspath(top), onerror=fail)


def walk_tree(
    top: Path, *, follow: bool, skip: Callable[[str, Entry], bool] = lambda name, entry: False
) -> Iterator[tuple[str, Entry]]:
    """Yield all files and folders below a folder, and their paths from there, with slashes.

    Names are in order, and folders come before their entries.

    Parameters
    ----------
    top
        The folder, which may be a link.
    follow
        Whether all links to files count as the files. Otherwise only those in the cache of
        huggingface_hub do: in a stranger's folder, others could lead anywhere. Links to folders are
        always refused: a few of them can make paths without end.
    skip
        Returns whether to leave out an entry.

    Raises
    ------
    StoreError
        If something is neither a file nor a folder, such as a pipe, or is a link that is refused,
        or is nested too deep.
    OSError
        If something cannot be read, or a link leads nowhere.
    """
    real = Path(os.path.realpath(top))

    def below(folder: str | Path, prefix: str) -> Iterator[tuple[str, Entry]]:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            name = prefix + entry.name
            if fault := _fault(entry, real, name, follow):
                raise StoreError(f"{entry.path}: {fault}")
            if not skip(name, entry):
                yield name, entry
                if entry.is_dir():
                    yield from below(entry.path, f"{name}/")

    return below(top, "")


def _fault(entry: Entry, real: Path, name: str, follow: bool) -> str:
    """Say why an entry is neither read nor written; empty if it may be."""
    if entry.is_symlink():
        if not follow and blob_of(real / name) is None:
            return _LINK_REFUSAL
        if entry.is_dir():
            return (
                "a symbolic link to a folder, which is not followed, as it could lead anywhere: put"
                " a copy of the folder in its place (cp -RL) if you trust it, or remove the link"
            )
        if not os.path.exists(entry.path):
            raise FileNotFoundError(errno.ENOENT, "A link that leads nowhere", entry.path)
    if not entry.is_dir() and not entry.is_file():
        return "neither a file nor a folder"
    if name.count("/") >= MAX_DEPTH:
        return f"in more than {MAX_DEPTH} levels of folders, as no model is"
    return ""
