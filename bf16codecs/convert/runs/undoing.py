"""Undo the last append to a run."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import argument
from bf16codecs._base.paths import given_path
from bf16codecs._files.publish import recover_missing
from bf16codecs.convert.new_store import is_object_address, object_address
from bf16codecs.convert.options import StoreOptions
from bf16codecs.convert.runs.plan import check_growing
from bf16codecs.convert.runs.series import opened_to_change
from bf16codecs.convert.target import absolute_target, target_errors
from bf16codecs.errors import StoreError
from bf16codecs.store.kinds import Kind
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.runs.reader import RunReader
from bf16codecs.store.runs.writer import RunWriter

__all__ = ["UndoneAppend", "undo_append"]


@dataclass(frozen=True)
class UndoneAppend:
    """The step that was removed from a run, and the remaining steps."""

    #: Number of the removed step.
    step: int
    #: Names of its files, and their size in bytes.
    files: tuple[str, ...]
    nbytes: int
    tensors: int
    #: Numbers of the remaining steps.
    steps: tuple[int, ...]


def undo_append(
    store: str | os.PathLike[str],
    step: int | None = None,
    *,
    sync: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> UndoneAppend:
    """Remove the last step of a run, however it was made.

    After an error or a crash, the run is as before, or without the step. Chunks before the last
    group of steps are not touched. A removed step cannot be recovered: restore it before, or append
    the checkpoint again.

    Parameters
    ----------
    store
        The run: a Zarr folder, on a disk or at an address in an object store, or an HDF5 file. In
        HDF5, the chunks of the last group of steps are written anew, and the space of the old ones
        is lost. In an object store, the next append replaces them.
    step
        Number of the last step, so that a repeated call removes no other; None for any.
    sync
        Flush all writes to the disk.
    storage_options
        Options of the object store.

    Returns
    -------
    UndoneAppend

    Raises
    ------
    StoreError
        If `store` is not a run that can change, or has only one step.
    ValueError
        If `step` is not the last one.
    BlockingIOError
        If another process is changing the run.
    OSError
        If a file cannot be read or written, or a server fails.
    """
    target = given_path(store, "run")
    with _opened(target, sync, storage_options) as (writer, run, _):
        info = run.run
        last = info.steps[-1]
        if step is not None and step != last.number:
            raise ValueError(
                f"{target}: its last step is {last.number}, not {step}: no other can be removed"
            )
        if len(info.steps) == 1:
            raise StoreError(
                f"{target}: {last.number} is its only step, and cannot be removed: remove the run"
                " itself"
            )
        for path in sorted(info.arrays):
            check_growing(run, path)
        left = info.without_last()
        before, after = (StoreInfo((), None, {}, run=run_info) for run_info in (info, left))
        try:
            writer.remove_last(after, sorted(before.arrays - after.arrays))
        except BaseException:
            writer.abandon()
            raise
        _interrupt.finish(f"{target}, without step {last.number}")
    tensors = len(info.paths_at(len(left.steps)))
    return UndoneAppend(
        last.number, tuple(last.file_names), last.nbytes, tensors, tuple(left.numbers)
    )


@contextmanager
def _opened(
    target: str, sync: bool, options: Mapping[str, Any] | None
) -> Iterator[tuple[RunWriter, RunReader, Kind]]:
    """Open a run to remove its last step."""
    verb, advice = "undo the append in", "only appends to runs can be undone"
    if is_object_address(target):
        # Imported only for addresses: zarr, obstore.
        from bf16codecs.convert.runs.remote import opened_remote, run_at

        url = object_address(target, Kind.FOLDER, [], StoreOptions())
        found = run_at(url, options)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No run is there", target)
        with opened_remote(*found, verb) as opened:
            yield opened
        return
    if options:
        name = argument("storage_options")
        raise ValueError(f"{name} are for addresses: {target} is a path")
    path = Path(target)
    absolute_target(target, [])
    recover_missing(path)
    with (
        target_errors(path),
        opened_to_change(path, verb, durable=sync, advice=advice) as opened,
    ):
        yield opened
