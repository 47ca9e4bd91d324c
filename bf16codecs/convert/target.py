"""Targets of conversions, which get their name only when they are complete."""

from __future__ import annotations

import errno
import os
import re
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.cluster import ClusterError, NotSeenError
from bf16codecs._base.messages import DAMAGE_ADVICE, FILES_ADVICE, counted, one_line
from bf16codecs._base.paths import absolute, names_folder, require_folder_of, resolved
from bf16codecs._files.folders import walk
from bf16codecs._files.journal import journal_of, settle_journal
from bf16codecs._files.publish import WORKING_PREFIX, WorkingFolder, recover
from bf16codecs._files.sync import sync_tree
from bf16codecs.convert.foreign import foreign_name
from bf16codecs.errors import BF16CodecsError, LeftoverWarning
from bf16codecs.store.kinds import (
    FOREIGN_SUFFIXES,
    ZARR_MARKERS,
    Kind,
    detect,
    maker_of,
    suffix_of,
)
from bf16codecs.store.opening import names_published_run, names_run, open_run_store, split_step
from bf16codecs.store.published.layout import PUBLISHED
from bf16codecs.store.zarr.folder import refuse_appends

__all__ = [
    "absolute_target",
    "check_store_name",
    "check_suffix",
    "is_free_folder",
    "new_target",
    "other_kind",
    "other_names",
    "other_than_model",
    "other_than_store",
    "target_errors",
]

#: Advice on system errors.
_ADVICE = {
    errno.ENOSPC: "free some space, or choose another disk",
    errno.EDQUOT: "free some space, or choose another disk",
    errno.EMFILE: FILES_ADVICE,
    errno.EFBIG: "choose a file system or a limit that allows larger files",
    # The target is a mount point, or an overlay has it from the image below.
    errno.EXDEV: "it cannot be renamed: remove it first, or choose another name",
    errno.EBUSY: "it cannot be renamed: remove it first, or choose another name",
    # /proc takes no files.
    errno.ENOENT: "its folder was moved or removed meanwhile, or takes no files",
    errno.EIO: "the disk or its file system may be failing: check it before you try again",
}


def absolute_target(
    target: str | os.PathLike[str], sources: Iterable[Path], what: str = "source"
) -> Path:
    """Return the absolute path of a target that must not be or contain any of `sources`."""
    text = os.fspath(target)
    if "://" in text:
        raise ValueError(f"{text}: targets must be local; upload the finished one")
    path = Path(absolute(text))
    run, step = split_step(str(path))
    if step is not None and os.path.lexists(run):
        raise ValueError(
            f"{text}: reads as step {step} of {run}: choose another name, or leave out @{step}"
        )
    for source in sources:
        source_path = resolved(source)
        if resolved(path) == source_path or resolved(path) in source_path.parents:
            raise ValueError(f"{text}: would replace the {what}, {source}")
    return path


def other_kind(path: Path, kind: Kind) -> str:
    """Say what a path is instead of a store of one kind; empty if it is such a store."""
    try:
        found = detect(path)
    except OSError as e:  # a broken link, or a file that cannot be read
        return f"cannot be read ({e.strerror})"
    if found is kind:
        return ""
    verb = f"is {found.value}, not" if found else "is not"
    return f"{verb} {kind.value}: choose another name"


def other_than_model(path: Path, kind: Kind) -> str:
    """Say why a store of one model may not replace a path; empty if it may.

    It may not replace a run: the user has probably forgotten the option that appends.
    """
    why = other_kind(path, kind) or _published(path)
    if why:
        return why
    end = "to replace it by one model, remove it first"
    try:
        if not names_run(path):
            return _added_by_user(path, kind)
    except (BF16CodecsError, OSError) as e:
        return f"may be a run, which cannot be opened ({_reason(path, e)}): {end}"
    try:
        with closing(open_run_store(path)) as run:
            count = counted(len(run.run.steps), "step")
    except (BF16CodecsError, OSError) as e:
        return f"is a run that cannot be opened ({_reason(path, e)}): {end}"
    append = for_caller("append_to_run adds to it", "--append adds to it")
    return f"is a run of {count}: {append}; {end}"


def other_than_store(path: Path, kind: Kind) -> str:
    """Say why a store of a model or a run may not replace a path; empty if it may."""
    return other_kind(path, kind) or _published(path) or _added_by_user(path, kind)


def _published(path: Path) -> str:
    """Say that a store is a published run; empty if it is another one, or damaged."""
    with suppress(BF16CodecsError, OSError):
        if names_published_run(path):
            return PUBLISHED
    return ""


def _added_by_user(path: Path, kind: Kind) -> str:
    """Name something that a user has put into a store; empty if there is nothing."""
    try:
        foreign = foreign_name(path, kind)
    except (OSError, zipfile.BadZipFile) as e:
        return f"cannot be read ({_reason(path, e)})"
    return foreign and f"contains {foreign!r:.200}, which is not the store's: move it away first"


def _reason(path: Path, error: Exception) -> str:
    return one_line(error).removeprefix(f"{path}: ").removesuffix(f"; {DAMAGE_ADVICE}")


def check_store_name(given: str | os.PathLike[str], target: Path, kind: Kind) -> None:
    """Raise ValueError for a store named as another kind of model (see `check_suffix`) or a folder.

    `given` is the path as the caller gave it, and `target` the same, absolute.
    """
    if kind is not Kind.FOLDER and names_folder(given):
        raise ValueError(f"{given}: a folder, but {kind.value} is to be made: leave out the slash")
    check_suffix(target, kind, ".h5" if kind is Kind.HDF5 else ".zarr")


def check_suffix(target: Path, kind: Kind, example: str) -> None:
    """Raise ValueError for a target with a suffix of another model, or of files that are no models.

    An existing store of the right kind may have any name. The message suggests suffix `example`.
    """
    suffix, found = suffix_of(target.name)
    maker = f"{found.value}, which {maker_of(found)} makes" if found else ""
    if found is None:
        suffix = target.suffix if target.suffix.lower() in FOREIGN_SUFFIXES else ""
        maker = f"a file of another kind, {suffix}, and {kind.value} is to be made"
    if not suffix or found is kind or not other_kind(target, kind):
        return
    stem = target.name[: -len(suffix)].removesuffix(".zarr") or "model"
    raise ValueError(f"{target}: by its name {maker}: choose another name, such as {stem}{example}")


def is_free_folder(path: Path) -> bool:
    """Return whether a path is an empty folder to replace: no link, not the working folder."""
    try:
        is_empty = not path.is_symlink() and path.is_dir() and not any(path.iterdir())
        return is_empty and not _is_working_folder(path)
    except OSError:
        return False


def _is_working_folder(path: Path) -> bool:
    return os.path.samefile(path, os.curdir)


def other_names(path: Path, names: Sequence[str]) -> str:
    """Say why a path is not a folder with only `names` and their folders; empty if it is one."""
    known = {*map(Path, names), *(Path(name).parent for name in names)}
    try:
        if not path.is_dir():
            return "is a file, where a folder has to be made: choose another name"
        for folder, folders, files in walk(path):
            for name in sorted(files + folders):
                found = Path(folder, name).relative_to(path)
                if found not in known:
                    shown = f"{str(found)!r:.200}"
                    return f"contains {shown}, which is not restored: choose another name"
    except OSError as e:
        return f"cannot be read ({e.strerror})"
    return ""


def _content(path: Path) -> str:
    """Name the files of a folder that is not a store, for the end of a message."""
    names: list[str] = []
    with suppress(OSError):  # a file, or a folder that another writer has replaced
        names = sorted(os.listdir(path))
    if not names or not ZARR_MARKERS.isdisjoint(names):
        return ""
    others = f" and {counted(len(names) - 1, 'other')}" if len(names) > 1 else ""
    return f", with {names[0]!r:.80}{others}"


@contextmanager
def new_target(
    target: Path,
    overwrite: bool,
    obstacle: Callable[[Path], str],
    sync: bool,
    as_folder: bool,
) -> Iterator[Path]:
    """Yield a temporary path, and rename it to `target` at the end; remove it if the caller fails.

    `overwrite` lets `target` exist, unless `obstacle` returns why it may not be replaced. `sync`
    flushes the content before it gets its name, and then the name. With `as_folder`, the caller
    makes a folder, which may replace an empty one. Raises ValueError if the target lies in a Zarr
    store, whose next writer may replace or refuse it.
    """
    parent = resolved(target.parent)
    for folder in (parent, *parent.parents):
        if any(os.path.lexists(folder / name) for name in ZARR_MARKERS):
            raise ValueError(f"{target}: would lie in the store {folder}: choose another folder")
    recover(target.parent)
    check = partial(_check, target, overwrite, obstacle, as_folder)
    check(target)
    with _interrupt.shielded(), target_errors(target):
        working = WorkingFolder.make(target.parent, durable=sync)
        try:
            with _interrupt.exposed():
                yield working.new
                if as_folder and is_free_folder(target):
                    _take_mode(working.new, target)
                if sync:
                    sync_tree(working.new)
                _interrupt.check()
            working.publish(target, check)
            _interrupt.finish(str(target))
        finally:
            leftover = working.close()
            if leftover is not None:
                text = f"{working.path}: left behind, and may be removed: {leftover.strerror}"
                warnings.warn(text, LeftoverWarning, stacklevel=4)


@contextmanager
def target_errors(target: Path) -> Iterator[None]:
    """Make errors name the target, not the hidden folder beside it or no file, and advise."""
    hidden = re.compile(
        re.escape(f"{target.parent / WORKING_PREFIX}") + r"\w+\.tmp(?:[\\/](?:new|scratch))?"
    )
    try:
        yield
    except BF16CodecsError as e:
        raise type(e)(hidden.sub(lambda _: str(target), str(e))) from e
    except ClusterError:
        raise
    except NotSeenError as e:
        path = hidden.sub(lambda _: str(target), str(e.filename))
        raise NotSeenError(e.errno, e.strerror, path) from e
    except OSError as e:
        if e.errno is None:
            shown = hidden.sub(lambda _: str(target), str(e))
            if shown == str(e):
                raise
            raise OSError(shown) from e
        # An error of write(), as on a full disk, names no file; one of flushing, the folder.
        name = str(e.filename)
        if not (e.filename is None or hidden.match(name) or name == str(target.parent)):
            raise
        advice = _ADVICE.get(e.errno)
        # An inner target, made for this one, has already added the advice.
        is_complete = advice is None or str(e.strerror).endswith(advice)
        text = e.strerror if is_complete else f"{e.strerror}; {advice}"
        raise OSError(e.errno, text, str(target)) from e


def _take_mode(path: Path, target: Path) -> None:
    """Give a new folder the permissions of the empty one that it replaces."""
    with suppress(FileNotFoundError):  # another process has removed it
        # Without its owner's permissions it could not be renamed.
        path.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IRWXU)


def _check(
    target: Path,
    overwrite: bool,
    obstacle: Callable[[Path], str],
    as_folder: bool,
    path: Path,
) -> None:
    """Raise if the target may not be made; `path` is it, or where publishing moved the old one."""
    require_folder_of(target)
    if as_folder and is_free_folder(path):
        return  # nothing is lost
    while True:
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        with suppress(FileNotFoundError):  # another writer may have replaced it in between
            # A relative link is resolved from the target's folder, even if it was moved.
            is_link = stat.S_ISLNK(found.st_mode)
            why = obstacle(target.parent / os.readlink(path) if is_link else path)
            if not why:
                break
            if os.path.samestat(found, path.lstat()):
                if path.is_dir() and _is_working_folder(path):
                    why = "is the working folder: name one in it"
                elif path.is_dir() and not as_folder:
                    file = f"{target.name}/..."
                    why = f"is a folder, where a file has to be made: name one in it, {file}"
                text = f"exists and {why}"
                raise FileExistsError(errno.EEXIST, text, str(target))
    if not overwrite:
        option = for_caller("overwrite=True", "--overwrite")
        text = f"File exists ({option} replaces it{_content(path)})"
        raise FileExistsError(errno.EEXIST, text, str(target))
    if path.is_dir() and not path.is_symlink():
        # An append to the old run would go on in the new store.
        refuse_appends(path)
    elif not path.is_symlink() and os.path.lexists(journal_of(path)):
        settle_journal(path)  # an old append's journal must not be applied to the new file
