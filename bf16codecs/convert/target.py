"""Targets that get their name only when they are complete."""

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
from bf16codecs._base.messages import DAMAGE_ADVICE, FILES_ADVICE, counted, one_line
from bf16codecs._base.paths import absolute, names_folder, require_folder_of, resolved
from bf16codecs._files.journal import journal_of, settle_journal
from bf16codecs._files.publish import WORKING_PREFIX, WorkingFolder, recover
from bf16codecs._files.sync import sync_tree
from bf16codecs.convert.foreign import foreign_name
from bf16codecs.errors import BF16CodecsError, LeftoverWarning
from bf16codecs.store.kinds import (
    FOREIGN_SUFFIXES,
    MAKERS,
    ZARR_MARKERS,
    Kind,
    detect,
    suffix_of,
)
from bf16codecs.store.opening import names_run, open_run_store, split_step
from bf16codecs.store.zarr.folder import refuse_appends

__all__ = [
    "absolute_target",
    "check_store_name",
    "check_suffix",
    "is_free_folder",
    "is_kind",
    "new_target",
    "other_kind",
    "other_names",
    "other_than_model",
    "other_than_store",
    "target_errors",
]

#: What to do about errors of the system.
_ADVICE = {
    errno.ENOSPC: "free some space, or choose another disk",
    errno.EDQUOT: "free some space, or choose another disk",
    errno.EMFILE: FILES_ADVICE,
    errno.EFBIG: "choose a file system or a limit that allows larger files",
    # Of a target that somebody has mounted, or that an overlay has from the image below it.
    errno.EXDEV: "it cannot be renamed: remove it first, or choose another name",
    errno.EBUSY: "it cannot be renamed: remove it first, or choose another name",
    # As /proc does.
    errno.ENOENT: "its folder was moved or removed meanwhile, or takes no files",
    errno.EIO: "the disk or its file system may be failing: check it before you try again",
}


def absolute_target(
    target: str | os.PathLike[str], sources: Iterable[Path], what: str = "source"
) -> Path:
    """Return the target's absolute path; it must not be or contain any of `sources`."""
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
        own = resolved(source)
        if resolved(path) == own or resolved(path) in own.parents:
            raise ValueError(f"{text}: would replace the {what}, {source}")
    return path


def other_kind(path: Path, kind: Kind) -> str:
    """Say what a path is, if it is no model store of one kind: "is a run of 3 steps"."""
    try:
        found = detect(path)
    except OSError as e:  # a link that leads nowhere, or what cannot be read
        return f"cannot be read ({e.strerror})"
    if found is kind:
        return ""
    what = f"is {found.value}, not" if found else "is not"
    return f"{what} {kind.value}: choose another name"


def other_than_model(path: Path, kind: Kind) -> str:
    """Say why a path is nothing that a store of one model may replace; nothing if it is.

    A run is none: who would replace it has forgotten to say that it is to grow.
    """
    why = other_kind(path, kind)
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
    """Say why a path is nothing that a store may replace, be it of one model or a run."""
    return other_kind(path, kind) or _added_by_user(path, kind)


def _added_by_user(path: Path, kind: Kind) -> str:
    """Name something in a store that a user has put there; nothing if there is nothing."""
    try:
        foreign = foreign_name(path, kind)
    except (OSError, zipfile.BadZipFile) as e:
        return f"cannot be read ({_reason(path, e)})"
    return foreign and f"contains {foreign!r:.200}, which is not the store's: move it away first"


def _reason(path: Path, error: Exception) -> str:
    return one_line(error).removeprefix(f"{path}: ").removesuffix(f"; {DAMAGE_ADVICE}")


def is_kind(path: Path, kind: Kind) -> bool:
    """Tell whether a path is a model store of one kind."""
    return not other_kind(path, kind)


def check_store_name(given: str | os.PathLike[str], target: Path, kind: Kind) -> None:
    """Refuse a store with the name of something else, as `check_suffix` does, or of a folder.

    Parameters
    ----------
    given
        The path as the caller gave it.
    target
        The same, absolute.
    kind
        What the store will be.

    Raises
    ------
    ValueError
        If it has.
    """
    if kind is not Kind.FOLDER and names_folder(given):
        raise ValueError(f"{given}: a folder, and {kind.value} is to be made: leave out the slash")
    check_suffix(target, kind, ".h5" if kind is Kind.HDF5 else ".zarr")


def check_suffix(target: Path, kind: Kind, example: str) -> None:
    """Refuse a target with the name of another kind of model, unless it is there already.

    Parameters
    ----------
    target
        The file or folder to make.
    kind
        What it will be.
    example
        How its name may end instead.

    Raises
    ------
    ValueError
        If the name is that of another kind, or of files that have nothing to do with models.
    """
    suffix, found = suffix_of(target.name)
    maker = f"{found.value}, which {MAKERS[found]} makes" if found else ""
    if found is None:
        suffix = target.suffix if target.suffix.lower() in FOREIGN_SUFFIXES else ""
        maker = f"a file of another kind, {suffix}, and {kind.value} is to be made"
    if not suffix or found is kind or is_kind(target, kind):
        return
    stem = target.name[: -len(suffix)].removesuffix(".zarr") or "model"
    raise ValueError(f"{target}: by its name {maker}: choose another name, such as {stem}{example}")


def is_free_folder(path: Path) -> bool:
    """Tell whether a target may take a path's place: an empty folder that nobody stands in.

    It is no link, and not the working folder, which would have no name afterwards.
    """
    try:
        is_empty = not path.is_symlink() and path.is_dir() and not any(path.iterdir())
        return is_empty and not _is_working_folder(path)
    except OSError:  # it cannot be read
        return False


def _is_working_folder(path: Path) -> bool:
    return os.path.samefile(path, os.curdir)


def other_names(path: Path, names: Sequence[str]) -> str:
    """Say why a path is no folder with nothing but these files; nothing if it is one.

    Parameters
    ----------
    path
        What may be replaced.
    names
        Of the files, with a folder in front where they are in one.
    """
    known = {*map(Path, names), *(Path(name).parent for name in names)}
    try:
        if not path.is_dir():
            return "is a file, where a folder has to be made: choose another name"
        for folder, folders, files in os.walk(path, onerror=_raise):
            for name in sorted(files + folders):
                own = Path(folder, name).relative_to(path)
                if own not in known:
                    return f"contains {str(own)!r:.200}, which is not restored: choose another name"
    except OSError as e:
        return f"cannot be read ({e.strerror})"
    return ""


def _raise(error: OSError) -> None:
    raise error


def _content(path: Path) -> str:
    """Name the files of a folder that is no store, for a message that names the folder."""
    names: list[str] = []
    with suppress(OSError):  # a file, or something that another writer has replaced
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
    """Yield a temporary path, and give what is there the name `target` at the end, in one step.

    Parameters
    ----------
    target
        The file or folder that the caller makes at the yielded path. If the caller fails, what
        it made is removed.
    overwrite
        Whether `target` may exist.
    obstacle
        Returns why an existing target may not be replaced, or nothing if it may.
    sync
        Flush what was made before it gets its name, and then the name.
    as_folder
        Whether a folder is made, which may take the place of an empty one.

    Raises
    ------
    ValueError
        If it would lie in a Zarr store, whose next writer may replace or refuse it.
    """
    parent = resolved(target.parent)
    for folder in (parent, *parent.parents):
        if any(os.path.lexists(folder / name) for name in ZARR_MARKERS):
            raise ValueError(f"{target}: would lie in the store {folder}: choose another place")
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
    """Let errors name the target, not the hidden folder beside it, and say what to do.

    Errors of a call that is given no name, such as `write`, name it, too.
    """
    hidden = re.compile(
        re.escape(f"{target.parent / WORKING_PREFIX}") + r"\w+\.tmp(?:[\\/](?:new|scratch))?"
    )
    try:
        yield
    except BF16CodecsError as e:
        raise type(e)(hidden.sub(lambda _: str(target), str(e))) from e
    except OSError as e:
        if e.errno is None:
            raise OSError(hidden.sub(lambda _: str(target), str(e))) from e
        # An error of write(), as on a full disk, names no file; one of flushing, the folder.
        name = str(e.filename)
        if not (e.filename is None or hidden.match(name) or name == str(target.parent)):
            raise
        advice = _ADVICE.get(e.errno)
        # Of a target that is made for another one, it is there already.
        is_told = advice is None or str(e.strerror).endswith(advice)
        text = e.strerror if is_told else f"{e.strerror}; {advice}"
        raise OSError(e.errno, text, str(target)) from e


def _take_mode(path: Path, target: Path) -> None:
    """Let a new folder be open to those whom the empty one is open to, whose place it takes."""
    with suppress(FileNotFoundError):  # somebody has removed it
        # Without its owner's rights it could not be moved.
        path.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IRWXU)


def _check(
    target: Path,
    overwrite: bool,
    obstacle: Callable[[Path], str],
    as_folder: bool,
    path: Path,
) -> None:
    """Raise if the target may not be made: of what is at `path`, there or moved from there."""
    require_folder_of(target)
    if as_folder and is_free_folder(path):
        return  # made for this: nothing is lost
    while True:
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        with suppress(FileNotFoundError):  # another writer may have replaced it in between
            # Where a link leads depends on the place that it was made for.
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
        # Who appends to a run would go on in what takes its place.
        refuse_appends(path)
    elif not path.is_symlink() and os.path.lexists(journal_of(path)):
        settle_journal(path)  # what is left of an append has no place in the new file
