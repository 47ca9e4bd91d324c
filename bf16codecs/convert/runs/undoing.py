"""Taking the last append to a run back."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.paths import given_path
from bf16codecs._files.publish import recover_missing
from bf16codecs.convert.runs.plan import check_growing
from bf16codecs.convert.runs.series import opened_to_change
from bf16codecs.convert.target import absolute_target, target_errors
from bf16codecs.errors import StoreError
from bf16codecs.store.layout import StoreInfo

__all__ = ["UndoneAppend", "undo_append"]


@dataclass(frozen=True)
class UndoneAppend:
    """The step that was removed from a run, and the steps that are left."""

    #: The number of the step.
    step: int
    #: The names of its files, and their size in bytes.
    files: tuple[str, ...]
    nbytes: int
    tensors: int
    #: The numbers of the steps that are left.
    steps: tuple[int, ...]


def undo_append(
    store: str | os.PathLike[str], step: int | None = None, *, sync: bool = True
) -> UndoneAppend:
    """Remove the last step of a run, whichever it was made by.

    Whatever happens, the run is as before, or without the step. What is older than the last group
    of steps is not touched. What is removed cannot be had back: restore it before, or append the
    checkpoint again.

    Parameters
    ----------
    store
        The run: a Zarr folder, or an HDF5 file. In the latter, chunks of the last group of steps
        are written anew, and where they were is lost.
    step
        The number of the step, which has to be the last one's; None for any. With it, removing
        a step once more does no harm.
    sync
        Flush all to the disk.

    Returns
    -------
    UndoneAppend

    Raises
    ------
    StoreError
        If `store` is not a run that can change, or has one step alone.
    ValueError
        If `step` is not the last one.
    BlockingIOError
        If another process is changing the run.
    """
    target = Path(given_path(store, "run"))
    absolute_target(store, [])
    recover_missing(target)
    with (
        target_errors(target),
        opened_to_change(target, "undo the append in", durable=sync) as (writer, run, _),
    ):
        info = run.run
        last = info.steps[-1]
        if step is not None and step != last.number:
            raise ValueError(
                f"{target}: its last step is {last.number}, not {step}: no other can be removed"
            )
        if len(info.steps) == 1:
            raise StoreError(
                f"{target}: its only step, {last.number}, began it, and cannot be removed from it:"
                " remove the run"
            )
        for path in sorted(info.arrays):
            check_growing(run, path)
        left = info.without_last()
        before, after = (StoreInfo((), None, {}, run=own) for own in (info, left))
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
