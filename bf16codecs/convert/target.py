"""Targets that get their name only when they are complete."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["absolute_target", "new_target"]


def absolute_target(target: str | os.PathLike[str], sources: Iterable[Path]) -> Path:
    """Return the target's absolute path; it must not be or contain any of `sources`."""
    text = os.fspath(target)
    if "://" in text:
        raise ValueError(f"{text}: targets must be local; upload the finished one")
    path = Path(os.path.abspath(text))
    for source in sources:
        resolved = source.resolve()
        if path.resolve() == resolved or path.resolve() in resolved.parents:
            raise ValueError(f"{text}: would replace the source, {source}")
    return path


@contextmanager
def new_target(
    target: Path, overwrite: bool, may_replace: Callable[[Path], bool]
) -> Iterator[Path]:
    """Yield a temporary path beside `target`, and rename it to `target` at the end.

    Parameters
    ----------
    target
        The file or folder that the caller makes at the yielded path. If the caller fails, what
        it made is removed.
    overwrite
        Whether `target` may exist.
    may_replace
        Returns whether an existing target is of a kind that may be replaced.
    """
    _check(target, overwrite, may_replace)
    name = f".bf16codecs-{os.getpid()}-{secrets.token_hex(4)}"
    temporary, aside = target.with_name(name + ".tmp"), target.with_name(name + ".old")
    try:
        yield temporary
        _check(target, overwrite, may_replace)
        if target.is_dir():
            # No system replaces a folder that is not empty in one step.
            os.rename(target, aside)
            os.rename(temporary, target)
        else:
            os.replace(temporary, target)
    except OSError as e:
        # An error of write(), as on a full disk, names no file; and users do not know our name.
        if e.filename is None or str(e.filename).startswith(str(temporary)):
            e.filename = str(target)
        raise
    finally:
        if os.path.lexists(aside) and not os.path.lexists(target):
            os.rename(aside, target)
        _remove(temporary)
        _remove(aside)


def _check(target: Path, overwrite: bool, may_replace: Callable[[Path], bool]) -> None:
    if not target.parent.is_dir():
        raise FileNotFoundError(2, "No such folder", str(target.parent))
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise FileExistsError(17, "File exists (--overwrite replaces it)", str(target))
    if not may_replace(target):
        raise FileExistsError(
            17, "Not overwritten: it is not a store or file of this kind", str(target)
        )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
