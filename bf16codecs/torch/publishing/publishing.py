"""Publishes the weights of a training job, step by step."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from bf16codecs._base.arguments import as_integer
from bf16codecs.convert.runs.dropping import where_of
from bf16codecs.convert.target import check_store_name
from bf16codecs.store.bases import identity
from bf16codecs.store.kinds import Kind
from bf16codecs.store.published.layout import CHANGE, WHOLE, PublishedStep
from bf16codecs.store.published.roots import Where
from bf16codecs.torch.publishing.checking import as_mapping
from bf16codecs.torch.publishing.copies import copies_of
from bf16codecs.torch.publishing.writer import PublishWriter, RefusingWriter, Settings

__all__ = ["Published", "publish"]


class Published(NamedTuple):
    """A step that was published: its number, and its bytes in the run."""

    step: int
    #: The differences to the step before; 0 for the first step.
    change_nbytes: int
    #: All of the step, if it is one that programs can begin with; otherwise 0.
    whole_nbytes: int


def publish(
    path: str | os.PathLike[str],
    state_dict: Mapping[str, Any],
    step: int,
    *,
    restart: bool = False,
    keep_last: int | None = None,
    keyframe_every: int | None = None,
    codec: str | None = None,
    level: str | None = None,
    keep_copy: bool = True,
    threads: int | None = None,
    sync: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    process_group: Any = None,
) -> Published:
    """Add a step to a published run, for programs that `follow` it.

    All processes of a job call it, with their shards; a tensor that is no `DTensor` is the same in
    all of them. The step is there for all readers at once, or not at all. If processes fail, all
    raise the error of one of them. After an error or Ctrl-C it may be there, if all of it
    had been written: then publishing its number again raises StoreError. Tensors must not change
    until it returns.

    Parameters
    ----------
    path
        The run: a folder that all processes see, or an address in an object store (``s3://``,
        ``gs://``, ``az://``). If nothing is there, the run begins with this step.
    state_dict
        Tensors by name, `DTensor`s too, on any device. All steps have the same names, shapes,
        dtypes and ties.
    step
        Its number, above that of the last step.
    restart
        Drop all earlier steps, and begin the run anew with this one: its number, its tensors and
        their shards may be any.
    keep_last
        Keep at least this many of the last steps, and at least two, and drop earlier ones, in
        groups of `keyframe_every`.
    keyframe_every
        In a run that begins, how many steps there are from one that is published whole to the
        next; by default 32. Programs that follow already do not read whole steps.
    codec, level
        In a run that begins, ``"arithmetic"`` with level ``"fast"`` or ``"best"``, or
        ``"huffman"``.
    keep_copy
        Keep a copy of the process's shards in memory, against which the next step is coded;
        otherwise, the step before is read.
    threads
        How many threads each process uses; by default its share of the machine's cores.
    sync
        Flush the step to the disk before it is there.
    storage_options
        Options of the object store.
    process_group
        The processes that publish; by default all.

    Returns
    -------
    Published
        The number of bytes that the step takes.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or a tensor cannot be stored.
    bf16codecs.store.StoreError
        If something else is at the path, the step is not after the last one, its tensors are not
        those of the steps before, or another job has published meanwhile.
    BlockingIOError
        If another process keeps the folder's lock for a minute.
    OSError
        If a file cannot be written, or a server fails.
    RuntimeError
        If another process of the job was interrupted.

    Examples
    --------
    >>> from bf16codecs.torch import publish
    >>> publish("policy.zarr", model.state_dict(), step=600)  # doctest: +SKIP
    Published(step=600, change_nbytes=0, whole_nbytes=666)
    """
    try:
        tensors = as_mapping(state_dict)
        settings = Settings(
            where=_where_of(path, storage_options, sync),
            number=as_integer("step", step),
            restart=restart,
            keep_copy=keep_copy,
            keep_last=keep_last,
            codec=codec,
            level=level,
            keyframe_every=keyframe_every,
            threads=threads,
        )
    except Exception as e:
        if not _is_alone():  # the others wait for this process
            _save_together({}, RefusingWriter(e), process_group)
        raise
    with copies_of(identity(str(settings.where)), settings.keep_copy) as copies:
        writer = PublishWriter(settings, tensors, copies)
        try:
            saved = _save(tensors, writer, process_group)
            if copies is not None:  # before another process publishes
                writer.keep(copies)
        finally:
            writer.close()
    assert isinstance(saved, PublishedStep)
    return Published(settings.number, saved.nbytes(CHANGE), saved.nbytes(WHOLE))


def _where_of(path: Any, options: Mapping[str, Any] | None, sync: bool) -> Where:
    where = where_of(path, options, sync)
    if isinstance(where.target, Path):
        check_store_name(os.fspath(path), where.target, Kind.FOLDER)
    return where


def _is_alone() -> bool:
    return not torch.distributed.is_available() or not torch.distributed.is_initialized()


def _error_of(failed: CheckpointException, own: int) -> BaseException:
    """Return the error that a process raises where some have failed, by their ranks in the group.

    An interrupt is that of its process, and a RuntimeError in others.
    """
    errors = {rank: error for rank, (error, _) in failed.failures.items()}
    interrupts = [rank for rank, error in errors.items() if not isinstance(error, Exception)]
    if own in interrupts:
        return errors[own]
    rank = min(interrupts or errors)
    error = errors[rank]
    if interrupts:
        error = RuntimeError(f"process {rank} was interrupted ({type(error).__name__})")
    trace = "".join(traceback.format_list(failed.failures[rank][1] or []))
    others = f", and {len(errors) - 1} more failed" if len(errors) > 1 else ""
    error.add_note(f"This is the error of process {rank} of the group{others}:\n{trace}")
    return error


def _save_together(state_dict: dict[str, Any], writer: dcp.StorageWriter, group: Any) -> Any:
    try:
        return dcp.save(state_dict, storage_writer=writer, process_group=group).storage_data
    except CheckpointException as e:
        raise _error_of(e, torch.distributed.get_rank(group)) from None


def _save(state_dict: dict[str, Any], writer: PublishWriter, group: Any) -> Any:
    """Let all processes write their part; return what the coordinator sends to all."""
    if not _is_alone():
        return _save_together(state_dict, writer, group)
    planner = dcp.DefaultSavePlanner()
    planner.set_up_planner(state_dict, writer.storage_meta(), is_coordinator=True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    plan = planner.finish_plan(plan)
    results = writer.write_data(plan, planner).wait()
    writer.finish(metadata, [results])
    return metadata.storage_data
