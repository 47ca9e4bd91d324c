"""Drop early steps of a published run."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bf16codecs._base.arguments import positive
from bf16codecs._base.paths import absolute, given_path
from bf16codecs.convert.new_store import is_object_address, object_address
from bf16codecs.convert.options import StoreOptions
from bf16codecs.convert.target import target_errors
from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import Kind, detect_given, options_of, path_of
from bf16codecs.store.opening import split_step
from bf16codecs.store.published.layout import CHANGE, WHOLE, PublishedInfo
from bf16codecs.store.published.places import opened_place
from bf16codecs.store.published.roots import Where, commit, lists, remove_keys

__all__ = ["DroppedSteps", "drop_steps", "where_of"]


@dataclass(frozen=True)
class DroppedSteps:
    """The steps that were dropped from a published run, and those that are left."""

    #: Numbers of the dropped steps, and the size of what was removed, in bytes.
    dropped: tuple[int, ...]
    nbytes: int
    #: Numbers of the remaining steps.
    steps: tuple[int, ...]
    #: How many steps a group has, which are dropped together.
    group: int


def drop_steps(
    store: str | os.PathLike[str],
    keep_last: int,
    *,
    sync: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> DroppedSteps:
    """Drop the early steps of a run that `bf16codecs.torch.publish` writes.

    Steps are dropped in groups, from one that is whole up to the next. No other step is read or
    written. After an error or a crash, the run is as before, or without these steps.

    Parameters
    ----------
    store
        The run: a folder, or an address in an object store.
    keep_last
        How many of the last steps to keep, at least; two are always kept.
    sync
        Flush the change to the disk.
    storage_options
        Options of the object store.

    Returns
    -------
    DroppedSteps

    Raises
    ------
    StoreError
        If `store` is not a published run, or others change it again and again.
    ValueError
        If `keep_last` is not positive.
    BlockingIOError
        If another process keeps the folder's lock for a minute.
    OSError
        If a file cannot be written, or a server fails.
    """
    where = where_of(store, storage_options, sync)
    positive("keep_last", keep_last)
    is_path = isinstance(where.target, Path)
    if is_path and detect_given(where.target) is not Kind.FOLDER:
        raise StoreError(f"{where}: not a published run: only these can drop early steps")
    with (
        target_errors(where.target) if isinstance(where.target, Path) else nullcontext(),
        closing(opened_place(where, advice="only published runs can drop early steps")) as place,
    ):
        if place.fault is not None:
            raise place.fault
        before = place.info

        def change(info: PublishedInfo | None) -> PublishedInfo:
            if info is None:
                raise FileNotFoundError(errno.ENOENT, "No run is there", str(where))
            return info.keeping(keep_last)

        keys = commit(place, change)
        info = place.info
    remove_keys(place, keys)
    assert before is not None
    assert info is not None
    gone = [step for step in before.steps if not lists(info, step.key)]
    nbytes = sum(step.nbytes(kind) for step in gone for kind in (CHANGE, WHOLE))
    return DroppedSteps(
        tuple(step.number for step in gone), nbytes, tuple(info.numbers), info.group
    )


def where_of(run: str | os.PathLike[str], options: Mapping[str, Any] | None, sync: bool) -> Where:
    """Return where a published run is, or will be.

    Raises ValueError if the address is no place for one, or options are given for a path.
    """
    text = given_path(run, "run")
    path, step = split_step(text)
    if step is not None:
        raise ValueError(f"{text}: names a step: leave out @{step}, for all of {path}")
    given = options_of(text, options)
    if is_object_address(text):
        return Where(object_address(text, Kind.FOLDER, [], StoreOptions()), given)
    text = path_of(text) or text
    return Where(Path(absolute(text)), None, sync)
