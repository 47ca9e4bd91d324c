"""A writer of checkpoints for `torch.distributed.checkpoint`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import Metadata, SavePlan, SavePlanner, StorageWriter
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from bf16codecs import _core
from bf16codecs._base.arguments import positive
from bf16codecs._base.paths import absolute, given_path, missing_path
from bf16codecs._base.threads import codec_threads
from bf16codecs._files.publish import recover_missing
from bf16codecs._files.sync import make_folders
from bf16codecs.convert.new_store import Target, is_object_address, object_address
from bf16codecs.convert.options import AUTO, Options, StoreOptions
from bf16codecs.convert.target import absolute_target, check_store_name, target_errors
from bf16codecs.errors import StoreError
from bf16codecs.store.bases import path_to
from bf16codecs.store.choice import DEFAULT_CHUNK_SIZE
from bf16codecs.store.kinds import OBJECT_SCHEMES, Kind, address_scheme, path_of
from bf16codecs.store.opening import split_step
from bf16codecs.torch.checkpoint.commit import PLANS_LEFT_OUT, Commit
from bf16codecs.torch.checkpoint.planning import check_item, names_of
from bf16codecs.torch.checkpoint.retention import Retention, check_series, folder_of, previous_of
from bf16codecs.torch.checkpoint.series_folders import SeriesFolder
from bf16codecs.torch.checkpoint.threads import thread_share, usable_processors
from bf16codecs.torch.checkpoint.unfinished import Unfinished, undo_others
from bf16codecs.torch.checkpoint.writing import Settings, Task, write_items

__all__ = ["StoreWriter"]

#: A value for the base: the previous checkpoint of this series.
PREVIOUS = "previous"
#: A value for the level: best for the shards for which it pays.
AUTO_LEVEL = "auto"
_LEVELS = tuple(_core.LEVELS)
_CODECS = "arithmetic", "huffman", "zstd"
_OF_ONE_SAVE = ("_commit", "_unfinished", "_plans", "_is_alone")


class StoreWriter(StorageWriter):
    """Writes checkpoints as model stores, for `torch.distributed.checkpoint.save`.

    Each tensor, sharded or not, becomes one array, whose chunks the processes write in parallel.
    The store appears under its name when it is complete, and not at all if a process fails.

    Parameters
    ----------
    path
        The store to make: a folder, on a file system that all processes see, or in an object store
        (``s3://``, ``gs://``, ``az://``). ``save(..., checkpoint_id=...)`` gives another one.
    codec, level
        As `bf16codecs.convert.safetensors_to_zarr` takes them: ``"arithmetic"``, ``"huffman"`` or
        ``"zstd"``; other codecs have no checksums of integers. With ``"arithmetic"``, level
        ``"auto"`` is ``"best"`` for shards whose first chunk gets 2 % smaller by it, and ``"fast"``
        for the others: ``"best"`` pays for an optimizer's state, and not for weights.
    base
        The path or address of a model: tensors that it also has are stored as differences to it.
        ``"previous"`` is the checkpoint of this series before this one; the first has no base.
    keep_last
        How many checkpoints of this series to keep, up to the step of this one, by default all.
        Earlier ones are removed once this one is complete; later ones stay. A series is the
        checkpoints in one folder whose names differ in the step alone.
    keep_every
        Checkpoints whose step is a multiple of it are kept for ever. Their names have the step:
        ``step-600.zarr``.
    chunk_size
        The largest size of a chunk, in bytes, where shards allow it.
    threads
        How many threads each process uses; by default its share of the machine's cores.
    overwrite
        Replace a checkpoint at this path.
    sync
        On a disk, flush the checkpoint before it gets its name.
    storage_options
        Options of the object store that the checkpoint is in, and of a base at an address with the
        same scheme; for a checkpoint on a disk, options of the file system of a base at an address.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    FileNotFoundError
        If the base does not exist.
    StoreError
        If the base is on a disk, and the checkpoint is not.
    OSError
        If there are no credentials for the object store.

    Examples
    --------
    >>> import torch.distributed.checkpoint as dcp
    >>> from bf16codecs.torch.checkpoint import StoreWriter
    >>> dcp.save(state, storage_writer=StoreWriter("run/step-600.zarr"))  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        codec: str = "arithmetic",
        level: str | int | None = "fast",
        base: str | os.PathLike[str] | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        *,
        chunk_size: int = DEFAULT_CHUNK_SIZE,
        threads: int | None = None,
        overwrite: bool = False,
        sync: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.path = _checked(path)
        if codec not in _CODECS:
            # Other codecs have no checksums of integers: damage would go unnoticed.
            raise ValueError(f"codec must be {', '.join(_CODECS)}, not {codec!r}")
        is_measured = codec == "arithmetic" and level == AUTO_LEVEL
        # The other codecs have no word for "fast".
        is_default = is_measured or (codec != "arithmetic" and level == "fast")
        if codec == "arithmetic" and level is not None and level not in (*_LEVELS, AUTO_LEVEL):
            raise ValueError(f"level must be {', '.join(_LEVELS)} or {AUTO_LEVEL}, not {level!r}")
        location = None if base is None else given_path(base, "base")
        options = Options(
            codec=codec,
            level=None if is_default else level,
            chunk_size=chunk_size,
            base=location,
            storage_options=storage_options,
            overwrite=overwrite,
            sync=sync,
        )
        if location is not None:
            options.choice.check_difference()
            _check_base(location, self.path)
        self._settings = Settings(options, is_measured, is_base_optional=location == PREVIOUS)
        if is_object_address(self.path):
            # Now, before any training: a package or credentials may be missing.
            self._folder(self.path)
        self._retention = Retention.checked(keep_last, keep_every)
        if threads is not None:
            positive("threads", threads)
        self._threads = threads
        self._forget()

    def _forget(self) -> None:
        self._commit: Commit | None = None
        self._unfinished: Unfinished | None = None
        # The plans of the previous save: torch may leave out plans that did not change.
        self._plans: list[SavePlan] = []
        self._is_alone = False

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in _OF_ONE_SAVE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a checkpoint, at another path if one is given."""
        self.close()
        if checkpoint_id:
            self.path = _checked(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Undo a checkpoint that was not finished.

        Raises
        ------
        ValueError
            If processes do not exchange plans: then no process knows all tensors.
        """
        if kwargs.get("use_collectives") is False:
            raise ValueError(
                "use_collectives=False: each process would write a checkpoint of its own, but a"
                " store has the tensors of all processes: leave it out"
            )
        self.close()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse tensors and names that cannot be stored; report this process's processors."""
        for item in plan.items:
            check_item(item)
        names_of(plan.planner_data)
        return replace(plan, storage_data=usable_processors())

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Plan the store, and begin it; called on the coordinator."""
        plans = self._with_unchanged(plans)
        settings = self._settings
        if self._retention.keep_last is not None or settings.base == PREVIOUS:
            option = "keep_last" if self._retention.keep_last is not None else 'base="previous"'
            check_series(self.path, option)
        target: Target = self.path
        if not is_object_address(self.path):
            target = absolute_target(self.path, [])
            make_folders(target.parent, settings.options.sync)  # as torch's own writer does
        folder = self._folder(target)
        if settings.base == PREVIOUS:
            base = previous_of(folder)
            # A difference to a checkpoint that is removed after this save would be rewritten then.
            is_worth_it = base is not None and self._retention.keeps_before(base)
            settings = settings.with_base(base if is_worth_it else None)
        if isinstance(target, str):
            undo_others(target)  # whose note would keep this one out
        self._commit = Commit(folder, target, settings.at(target), plans)
        self._is_alone = len(plans) == 1
        # If another process fails, torch neither calls `finish` nor reports it: the next
        # checkpoint, or the end of this object or process, undoes this one.
        self._unfinished = Unfinished(self, str(target), self._commit.abandon)
        tasks = self._commit.tasks(plans)
        return [replace(p, storage_data=t) for p, t in zip(plans, tasks, strict=True)]

    def _folder(self, target: Target) -> SeriesFolder:
        """Return the folder that a target is in."""
        options = self._settings.options
        return folder_of(target, options.storage_options, options.sync)

    def _with_unchanged(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Fill in the plans that torch left out."""
        previous = self._plans
        if not all(map(_is_sent, plans)) and len(previous) != len(plans):
            raise ValueError(PLANS_LEFT_OUT)
        self._plans = [plan if _is_sent(plan) else previous[i] for i, plan in enumerate(plans)]
        return self._plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the tensors and objects of this process's plan."""
        task = plan.storage_data
        assert isinstance(task, Task)
        try:
            threads, target = self._threads or thread_share(task.processes), task.target
            on_disk = target_errors(target) if isinstance(target, Path) else nullcontext()
            with codec_threads(threads), on_disk:
                results = write_items(plan, planner, task)
        except BaseException:
            # With other processes, do not remove the files that they are still writing.
            if self._is_alone:
                self.close()
            raise
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: Sequence[Sequence[WriteResult]]) -> None:
        """Assemble the store, and give it its name; called on the coordinator."""
        names, expected = names_of(metadata.planner_data), metadata.state_dict_metadata
        commit, self._commit = self._commit, None
        unfinished, self._unfinished = self._unfinished, None
        assert commit is not None
        if unfinished is None or not unfinished.end():
            raise StoreError(f"{self.path}: this process has begun another checkpoint there")
        with codec_threads(self._threads):  # by default all: the other processes wait
            commit.finish(results, names, expected)
            self._retention.apply(commit.folder)

    def close(self) -> None:
        """Undo a checkpoint that was begun and not finished."""
        if self._unfinished is not None:
            self._unfinished.undo()
        self._commit = self._unfinished = None

    def storage_meta(self) -> StorageMeta:
        """Return the path of the checkpoint, for torch."""
        return StorageMeta(checkpoint_id=self.path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether a checkpoint can be written there: to a path, or to an object store."""
        text = os.fspath(checkpoint_id)
        return "://" not in text or address_scheme(text) in OBJECT_SCHEMES

    def __repr__(self) -> str:
        return f"<StoreWriter {self.path}>"


def _is_sent(plan: SavePlan) -> bool:
    """Tell whether torch has sent a plan, rather than left it out because it did not change."""
    return getattr(plan, "usable", True)  # before PyTorch 2.7, none is left out


def _check_base(base: str, path: str) -> None:
    """Refuse a base that does not exist, or that `path` cannot have, before any training."""
    if base.startswith(AUTO):
        raise ValueError(
            f"{base}: choosing a base needs all tensors, and each process has only its own:"
            " name the base"
        )
    if base == PREVIOUS or "://" in base:
        return
    location, _ = split_step(base)
    recover_missing(location)
    if not os.path.lexists(location):
        raise missing_path(location, "No such model to be the base")
    if is_object_address(path):
        path_to(location, path)


def _checked(path: str | os.PathLike[str]) -> str:
    text = given_path(path, "checkpoint")
    if is_object_address(text):
        return object_address(text, Kind.FOLDER, [], StoreOptions())
    text = path_of(text) or text
    check_store_name(text, Path(absolute(text)), Kind.FOLDER)
    return text
