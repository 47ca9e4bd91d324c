"""The file system that shows a store as its original files."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.forks import make_lock
from bf16codecs._base.limits import CACHE_BYTES, LEAST_CACHE
from bf16codecs._base.messages import from_extra, one_line
from bf16codecs._base.paths import given_path
from bf16codecs._base.threads import codec_threads
from bf16codecs.errors import MountError
from bf16codecs.mount.cache import Cache
from bf16codecs.mount.sources import MountedTree, Source
from bf16codecs.mount.tree import Directory, File

__all__ = ["mount"]

# Parts that are decoded before they are asked for: at a server, several requests pay off.
_AHEAD, _AHEAD_REMOTE = 2, 8
# By which the system lists mounts: fuse.bf16codecs.
_SUBTYPE = "bf16codecs"
# Threads of libfuse that answer requests.
_THREADS = 10
# How often to look whether the source was written meanwhile.
_SECONDS_BETWEEN = 1.0
# Different errors that are reported; a damaged store may have any number.
_MOST_REPORTED = 1000
_BLOCK = 512

_log = logging.getLogger(__name__)


def mount(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    base: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    threads: int | None = None,
    cache_bytes: int = CACHE_BYTES,
    allow_other: bool = False,
    ready: Callable[[], None] | None = None,
    report: Callable[[str], None] = _log.error,
) -> None:
    """Show the original files of a store in a folder, until it is unmounted.

    Files are read-only, and decoded as they are read. A step of a run is a folder, such as
    ``step-600``; steps that are appended appear. This returns after ``fusermount3 -u FOLDER``,
    ``umount FOLDER``, or a signal that ends processes (in the main thread).

    Parameters
    ----------
    source
        The path or address of a model store of any kind, a run, a step of one, or a packed folder.
    folder
        An empty folder. What it has is hidden meanwhile.
    base
        The base of the store, if it is not where the store says.
    storage_options
        Options of the file system of an address: credentials, endpoints, timeouts.
    max_bytes
        The largest chunk to decode: see `bf16codecs.open_model`.
    threads
        Number of threads of the codecs; by default `bf16codecs.get_num_threads()`.
    cache_bytes
        How many decoded bytes to keep, at least 32 MiB.
    allow_other
        Let other users read. Unless this is root, the system's ``/etc/fuse.conf`` has to allow it.
    ready
        Called once the files are there.
    report
        Called with a line for each damaged block, or other reason why a read failed. The reader
        gets the error EIO.

    Raises
    ------
    MountError
        If the folder is not empty, or is a mount that is dead; if the system has no libfuse, does
        not allow mounting, or fails to.
    ImportError
        If the extra ``mount`` is not installed.
    FileNotFoundError, bf16codecs.store.StoreError, ValueError
        See `bf16codecs.open_model`.
    """
    if cache_bytes < LEAST_CACHE:
        raise ValueError(f"cache_bytes must be at least {LEAST_CACHE}, not {cache_bytes}")
    fuse, place = _library(), _checked(folder)
    opened = Source.of(source, base=base, storage_options=storage_options, max_bytes=max_bytes)
    _refuse_inside(opened, place, folder)
    cache = Cache(cache_bytes, _AHEAD_REMOTE if opened.path is None else _AHEAD)
    with (
        codec_threads(threads),
        _Operations(opened, place, cache, ready, report) as files,
        _plain_signals(),
    ):
        for text in files.losses:
            report(text)
        _interrupt.check()
        options: dict[str, Any] = {
            "fsname": _shown(source),
            "subtype": _SUBTYPE,
            "ro": True,
            "default_permissions": True,
            "auto_cache": True,
            "allow_other": allow_other,
            # Without this program, or in a race with it, a mount outlives a killed process.
            "auto_unmount": shutil.which("fusermount3") is not None,
        }
        if (fuse.fuse_version_major, fuse.fuse_version_minor) >= (3, 12):
            # As by default; without it, 3.14 prints a line about it.
            options["max_idle_threads"] = _THREADS
        try:
            fuse.FUSE(files, str(place), foreground=True, **options)
        except RuntimeError as e:
            if not files.was_ready:
                raise MountError(
                    f"{folder}: the system's FUSE library could not mount there: it has printed"
                    " why, unless it was a signal"
                ) from e
            # Ended by a signal, for which libfuse has no number of its own.
        if files.failure is not None:
            raise files.failure


def _refuse_inside(source: Source, place: Path, folder: str | os.PathLike[str]) -> None:
    """Refuse a folder in the source: who looks at the source would wait for the mount."""
    path = None if source.path is None else Path(os.path.realpath(source.path))
    if path is not None and (path == place or path in place.parents):
        raise MountError(f"{folder}: lies in {source.text}: choose a folder outside of it")


def _shown(source: str | os.PathLike[str]) -> str:
    """Return a source as all users may see it, as an option of libfuse: without passwords."""
    text = re.sub(r"(?<=://)[^/@]*@", "", os.fspath(source).partition("?")[0])
    return text.replace("\\", "\\\\").replace(",", "\\,")


def _library() -> Any:
    """Import mfusepy, with version 3 of libfuse."""
    # By itself, it prefers version 2.
    os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")
    with from_extra("mount", "mounting stores"):
        try:
            import mfusepy
        except OSError as e:
            raise MountError(
                "mounting needs the library libfuse 3, which is not there: install the package"
                " fuse3 of your system (Debian, Fedora), or fuse (Alpine, Arch)"
            ) from e
    if not os.path.exists("/dev/fuse"):
        raise MountError(
            "this system has no /dev/fuse: load the kernel's module fuse, or start the container"
            " with --device /dev/fuse --cap-add SYS_ADMIN"
        )
    return mfusepy


def _checked(folder: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a folder to mount on; raise MountError if it is unfit."""
    place = Path(os.path.realpath(given_path(folder, "folder")))
    try:
        names = _names_in(place)
    except OSError as e:
        if e.errno == errno.ENOTCONN:
            raise MountError(
                f"{folder}: a mount whose process was killed: remove it with"
                f" `fusermount3 -u {folder}`, or as root with `umount {folder}`"
            ) from e
        if e.errno == errno.ENOENT:
            raise FileNotFoundError(
                errno.ENOENT, "No such folder: make it first", str(folder)
            ) from None
        raise
    if names:
        raise MountError(
            f"{folder}: not empty: it has {min(names)!r:.80}, which the mount would hide: choose an"
            " empty folder"
        )
    return place


def _widen_readahead(place: Path) -> None:
    """Let the system ask for 1 MiB at a time, and not for 128 KiB, as only root may.

    Each request takes Python 0.1 ms.
    """
    with suppress(OSError):
        for line in _lines_of("/proc/self/mountinfo"):
            _, _, device, _, where, *_ = line.split()
            if _named(where) == str(place):
                Path("/sys/class/bdi", device, "read_ahead_kb").write_text("1024")


def _names_in(place: Path) -> list[str]:
    """List a folder; a mount of ours whose process was killed is removed first."""
    try:
        return os.listdir(place)
    except OSError as e:
        program = shutil.which("fusermount3") or shutil.which("umount")
        if e.errno != errno.ENOTCONN or program is None or not _is_ours(place):
            raise
    option = ["-u"] if program.endswith("fusermount3") else []
    subprocess.run([program, *option, place], check=False, capture_output=True)
    return os.listdir(place)


def _is_ours(place: Path) -> bool:
    """Tell whether a folder is a mount of this package, dead or alive."""
    with suppress(OSError):
        for line in _lines_of("/proc/self/mounts"):
            _, where, kind, *_ = line.split()
            if kind == f"fuse.{_SUBTYPE}" and _named(where) == str(place):
                return True
    return False


def _lines_of(path: str) -> Iterator[str]:
    with open(path, errors="surrogateescape") as lines:
        yield from lines


def _named(text: str) -> str:
    """Return the path that lists of mounts have in octal where it has blanks."""
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), text)


@contextmanager
def _plain_signals() -> Iterator[None]:
    """Let libfuse handle the signals that end processes: it does where nobody else does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: old for n in numbers if (old := signal.getsignal(n)) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


class _Operations:
    """Answers libfuse, which asks by several threads; its methods raise OSError alone."""

    #: Times are whole nanoseconds.
    use_ns = True

    def __init__(
        self,
        source: Source,
        place: Path,
        cache: Cache,
        ready: Callable[[], None] | None,
        report: Callable[[str], None],
    ) -> None:
        self._source, self._place, self._cache = source, place, cache
        self._ready, self._report = ready, report
        self._reported: set[str] = set()
        self.was_ready = False
        #: The error of `ready`.
        self.failure: BaseException | None = None
        # libfuse goes to the root folder.
        self._folder = os.getcwd()
        self._lock = make_lock()
        self._tree = source.open(cache)
        self._state = self._tree.state()
        self._looked_at = time.monotonic()
        #: The state of the source when it could not be shown.
        self._left_state: Any = None
        self._handles: dict[int, tuple[MountedTree, File, str]] = {}
        self._numbers = itertools.count(1)
        self._owner = os.getuid(), os.getgid()

    def __enter__(self) -> _Operations:
        return self

    def __exit__(self, *exception: object) -> None:
        for tree in {id(tree): tree for tree, *_ in self._handles.values()}.values():
            tree.close(self._cache)
        self._tree.close(self._cache)
        self._cache.close()

    @property
    def losses(self) -> Sequence[str]:
        """The losses of lossy stores."""
        return self._tree.losses

    def init(self, path: str) -> None:
        """Note that the files are there."""
        self.was_ready = True
        try:
            os.chdir(self._folder)
            if self._ready is not None:
                self._ready()
        except BaseException as e:
            self.failure = e
            self._end()

    def _end(self) -> None:
        """Let libfuse end, which it notices at the next request."""
        import mfusepy

        mfusepy.fuse_exit()
        threading.Thread(target=os.path.exists, args=[self._place], daemon=True).start()

    # --- what is there ----------------------------------------------------------------------------

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """Return the status of a file or a folder."""
        found = self._found(path) if fh is None else self._handles[fh][1]
        try:
            status = found.status
        except Exception as e:  # a copied file that is gone
            self._note(e)
            raise _error(errno.EIO) from e
        is_folder = isinstance(found, Directory)
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), status.mtime_ns)
        return {
            "st_mode": (stat.S_IFDIR if is_folder else stat.S_IFREG) | status.rights,
            "st_nlink": 2 if is_folder else 1,
            "st_size": status.size,
            "st_blocks": -(-status.size // _BLOCK),
            "st_uid": self._owner[0],
            "st_gid": self._owner[1],
            **times,
        }

    def readdir(self, path: str, fh: int) -> list[str]:
        """Return the names in a folder."""
        found = self._found(path)
        if not isinstance(found, Directory):
            raise _error(errno.ENOTDIR)
        return [".", "..", *found.members]

    def statfs(self, path: str) -> dict[str, int]:
        """Return the total size of the files; no space is free."""
        with self._lock:
            root = self._current().root
        nbytes, count = root.total()
        size = 4096
        return {
            "f_bsize": size,
            "f_frsize": size,
            "f_blocks": -(-nbytes // size),
            "f_files": count + 1,
            "f_namemax": 255,
        }

    def _found(self, path: str) -> Directory | File:
        with self._lock:
            return _member(self._current(), path)

    def _current(self) -> MountedTree:
        """Return the tree; it is opened again if the source was written. The lock is held."""
        now, old = time.monotonic(), self._tree
        if now - self._looked_at < _SECONDS_BETWEEN:
            return old
        self._looked_at, state = now, old.state()
        if not state or state in (self._state, self._left_state):
            return old
        try:
            new = self._source.open(self._cache, old)
        except Exception as e:
            # It may be half written; what was there can still be read.
            self._left_state = state
            self._note(e)
            return old
        if not self._can_be(new):
            self._left_state = state
            new.close(self._cache)
            return old
        self._tree, self._state, self._left_state = new, new.state(), None
        self._reported.clear()
        if not old.users:
            old.close(self._cache)
        return new

    def _can_be(self, new: MountedTree) -> bool:
        """Tell whether all files that are open have the same content in another tree, or are gone.

        The system keeps pages by name: with another file, who reads one would get parts of both.
        """
        for _, file, path in self._handles.values():
            other = new.root.find(path)
            if other is not None and (not isinstance(other, File) or other.content != file.content):
                return False
        return True

    # --- reading ----------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        """Open a file, and return its handle."""
        with self._lock:
            tree = self._current()
            found = _member(tree, path)
            if isinstance(found, Directory):
                raise _error(errno.EISDIR)
            handle = next(self._numbers)
            if handle == 1:  # once the system has set up the mount
                _widen_readahead(self._place)
            self._handles[handle] = tree, found, path
            tree.users += 1
        return handle

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Return bytes of a file."""
        try:
            return self._handles[fh][1].read(offset, size)
        except Exception as e:
            self._note(e)
            raise _error(errno.EIO) from e

    def release(self, path: str, fh: int) -> None:
        """Close a file."""
        with self._lock:
            tree, *_ = self._handles.pop(fh)
            tree.users -= 1
            self._left_state = None  # it may be shown now
            if not tree.users and tree is not self._tree:
                tree.close(self._cache)

    def _note(self, error: Exception) -> None:
        """Report why something could not be read, once."""
        text = one_line(error)
        if text in self._reported or len(self._reported) > _MOST_REPORTED:
            return
        is_last = len(self._reported) == _MOST_REPORTED
        with suppress(Exception):  # the terminal may have gone, or the disk be full
            self._report(f"{text}; further errors are not reported" if is_last else text)
            self._reported.add(text)


def _member(tree: MountedTree, path: str) -> Directory | File:
    found = tree.root.find(path)
    if found is None:
        raise _error(errno.ENOENT)
    return found


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
