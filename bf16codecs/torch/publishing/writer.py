"""A writer of published steps for `torch.distributed.checkpoint`, which lets processes agree."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import Metadata, SavePlan, SavePlanner, StorageWriter
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from bf16codecs._base.messages import few
from bf16codecs._base.threads import codec_threads
from bf16codecs.convert.target import target_errors
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.opening import Opening, open_run_store
from bf16codecs.store.published.layout import CHANGE, WHOLE, PublishedInfo, PublishedStep
from bf16codecs.store.published.places import opened_place
from bf16codecs.store.published.roots import Place, Where, commit, new_step_key
from bf16codecs.torch.checkpoint.planning import check_item
from bf16codecs.torch.checkpoint.shards import Shard
from bf16codecs.torch.checkpoint.threads import count_sharing, thread_share, usable_processors
from bf16codecs.torch.publishing.copies import Copies
from bf16codecs.torch.publishing.encoding import Report, Task, write_packs
from bf16codecs.torch.publishing.planning import (
    RESTART,
    RunPlan,
    Wanted,
    chunk_count,
    new_plan,
    plan_of_run,
)

__all__ = ["PublishWriter", "Settings"]


@dataclass(frozen=True)
class Settings:
    """The arguments of `publish` but the tensors."""

    where: Where
    number: int
    tied: Mapping[str, str]
    restart: bool
    keep_last: int | None
    codec: str | None
    level: str | None
    keyframe_every: int | None
    threads: int | None


class PublishWriter(StorageWriter):
    """Publishes one step of a run; `copies` are this process's of the step before."""

    def __init__(self, settings: Settings, copies: Copies | None) -> None:
        super().__init__()
        self._settings, self._copies = settings, copies
        self._place: Place | None = None
        self._plan: RunPlan | None = None
        self._key = ""
        #: This process's shards, and whether each is a copy on the host, once they are written.
        self._shards: list[tuple[Shard, bool]] = []
        self._task: Task | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a writer publishes one step."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the coordinator opens the run when it plans the step."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse tensors and names that cannot be stored; report what the coordinator asks for."""
        for item in plan.items:
            check_item(item)
        return replace(plan, storage_data=(usable_processors(), dict(self._settings.tied)))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Open the run, and plan the step; called on the coordinator."""
        settings = self._settings
        tied = dict(chain.from_iterable(plan.storage_data[1].items() for plan in plans))
        options = settings.codec, settings.level, settings.keyframe_every
        # A process whose shard of a tied tensor is empty cannot know that it is tied.
        plans = [
            replace(plan, items=[item for item in plan.items if item.index.fqn not in tied])
            for plan in plans
        ]
        wanted = Wanted.of(plans, tied, *options)
        self._place = opened_place(settings.where)
        info = None if settings.restart else self._place.info
        self._check_number(info)
        if info is None:
            plan = new_plan(wanted, settings.where)
        else:
            with closing(open_run_store(str(settings.where), self._opening)) as run:
                plan = plan_of_run(run, wanted, settings.where)
        self._plan, self._key = plan, new_step_key(settings.number)
        before, slot = None, 0
        if info is not None:
            before, slot = (info.numbers[-1], info.steps[-1].key), info.slot(len(info.steps))
        numbers, processors = plan.numbers, [each.storage_data[0] for each in plans]
        tasks = []
        for process, each in enumerate(plans):
            names = {item.index.fqn for item in each.items}
            tasks.append(
                Task(
                    settings.where,
                    self._key,
                    process,
                    count_sharing(each.storage_data[0], processors),
                    {name: (numbers[name], plan.arrays[name]) for name in names},
                    plan.choice,
                    before,
                    slot == 0,
                )
            )
        return [replace(p, storage_data=t) for p, t in zip(plans, tasks, strict=True)]

    @property
    def _opening(self) -> Opening:
        return Opening(self._settings.where.options)

    def _check_number(self, info: PublishedInfo | None) -> None:
        where, number = self._settings.where, self._settings.number
        if info is not None and number <= info.numbers[-1]:
            what = "is there already" if number in info.numbers else "is not after the last one"
            raise StoreError(
                f"{where}: step {number} {what}: the last one is {info.numbers[-1]}; for a job that"
                f" goes back to an earlier step, {RESTART}"
            )

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the packs of this process."""
        task = plan.storage_data
        assert isinstance(task, Task)
        self._task = task
        self._shards = [_on_host(Shard.of(item, planner)) for item in plan.items]
        threads = self._settings.threads or thread_share(task.processes)
        with codec_threads(threads), self._named():
            report = write_packs(task, [shard for shard, _ in self._shards], self._copies)
        results = [WriteResult(item.index, 0, Report()) for item in plan.items]
        if results:
            results[0] = replace(results[0], storage_data=report)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Add the step to the run; called on the coordinator."""
        assert self._place is not None
        assert self._plan is not None
        chunks: Counter[int] = Counter()
        packs: dict[str, dict[str, int]] = {CHANGE: {}, WHOLE: {}}
        for result in chain.from_iterable(results):
            report = result.storage_data
            chunks += report.chunks
            for kind, sizes in report.packs.items():
                packs[kind] |= sizes
        self._check_complete(chunks)
        step = PublishedStep(
            self._settings.number, self._key, {k: v for k, v in packs.items() if v}
        )
        with self._named():
            self._commit(self._place, self._plan, step)
        metadata.storage_data = step  # which torch sends to all processes

    def _commit(self, place: Place, plan: RunPlan, step: PublishedStep) -> None:
        info = place.info
        if plan.document is not None:
            key, document = plan.document
            place.put(key, document)
            info = PublishedInfo(key, plan.group)
        assert info is not None
        info = info.with_step(step)
        if self._settings.keep_last is not None:
            info = info.keeping(self._settings.keep_last)
        commit(place, info)

    def _named(self) -> AbstractContextManager[None]:
        """Let errors of a disk name the run, and say what to do."""
        target = self._settings.where.target
        return target_errors(target) if isinstance(target, Path) else nullcontext()

    def _check_complete(self, chunks: Counter[int]) -> None:
        assert self._plan is not None
        numbers = self._plan.numbers
        lacking = [
            name
            for name, array in self._plan.arrays.items()
            if chunks[numbers[name]] != chunk_count(array)
        ]
        if lacking:
            raise StoreError(
                f"{self._settings.where}: step {self._settings.number}: no process has all of"
                f" {few(sorted(lacking), 3)}"
            )

    def close(self, failed: bool) -> None:
        """Let others publish; after a failure, remove the packs of the step."""
        place, self._place = self._place, None
        if place is None:
            return
        with closing(place):
            if failed and self._key:
                with suppress(BF16CodecsError, OSError):  # the next step's writer removes them
                    place.remove([self._key])

    def keep(self, copies: Copies) -> None:
        """Keep copies of what this process has published."""
        if self._task is None:  # it has no shard
            return
        arrays = self._task.arrays
        copies.put(
            self._task.key,
            (
                ((s.name, s.bounds), s.values(arrays[s.name][1], s.bounds.axes), is_copy)
                for s, is_copy in self._shards
            ),
        )

    def storage_meta(self) -> StorageMeta:
        """Return the path of the run, for torch."""
        return StorageMeta(checkpoint_id=str(self._settings.where))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True: no other writer is chosen by the path."""
        return True


def _on_host(shard: Shard) -> tuple[Shard, bool]:
    """Return a shard on the host, and whether it was copied there."""
    if shard.tensor.device.type == "cpu":
        return shard, False
    return replace(shard, tensor=shard.tensor.cpu()), True
