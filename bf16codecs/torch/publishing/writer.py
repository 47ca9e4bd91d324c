"""A writer of published steps for `torch.distributed.checkpoint`, which lets processes agree."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed.checkpoint import Metadata, SavePlan, SavePlanner, StorageWriter
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from bf16codecs._base.arguments import as_integer, one_of, positive
from bf16codecs._base.limits import MAX_GROUP
from bf16codecs._base.messages import few
from bf16codecs._base.threads import codec_threads
from bf16codecs.convert.target import target_errors
from bf16codecs.errors import StoreError
from bf16codecs.store.choice import DEFAULT_CODEC, CodecChoice
from bf16codecs.store.published.layout import CHANGE, WHOLE, PublishedInfo, PublishedStep
from bf16codecs.store.published.opening import open_last_step
from bf16codecs.store.published.places import opened_place
from bf16codecs.store.published.roots import (
    Place,
    ReplacedError,
    Where,
    commit,
    lists,
    new_step_key,
    remove_keys,
)
from bf16codecs.torch.checkpoint.planning import check_item
from bf16codecs.torch.checkpoint.shards import Shard
from bf16codecs.torch.checkpoint.threads import (
    Processors,
    count_sharing,
    thread_share,
    usable_processors,
)
from bf16codecs.torch.publishing.checking import check_state, tied_in
from bf16codecs.torch.publishing.copies import Copies
from bf16codecs.torch.publishing.encoding import Task, write_packs
from bf16codecs.torch.publishing.planning import (
    RESTART,
    RunPlan,
    Wanted,
    chunk_count,
    new_plan,
    plan_of_run,
)

__all__ = ["PublishWriter", "RefusingWriter", "Settings"]


# Codecs of runs.
_CODECS = "arithmetic", "huffman"
_STEPS, _GROUPS = range(2**63), range(1, MAX_GROUP + 1)


@dataclass(frozen=True)
class Settings:
    """The arguments of `publish` but the tensors; TypeError or ValueError if one is invalid."""

    where: Where
    number: int
    restart: bool
    keep_copy: bool
    keep_last: int | None
    codec: str | None
    level: str | None
    keyframe_every: int | None
    threads: int | None

    def __post_init__(self) -> None:
        if self.number not in _STEPS:
            raise ValueError(f"step must be 0 to 2**63 - 1, not {self.number}")
        for name in ("keep_last", "threads"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.keyframe_every is not None:
            as_integer("keyframe_every", self.keyframe_every, _GROUPS)
        if self.codec is not None:
            one_of("codec", self.codec, _CODECS)
        CodecChoice(self.codec or DEFAULT_CODEC, self.level)
        flags = {"restart": self.restart, "keep_copy": self.keep_copy, "sync": self.where.durable}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, not {value!r:.80}")


class _LocalReport(NamedTuple):
    """A process's report before anything is planned."""

    where: str
    number: int
    processors: Processors
    #: Tensors that are the memory of another one, in this process.
    tied: Mapping[str, str]


class PublishWriter(StorageWriter):
    """Publishes one step of a run; `copies` are this process's of the step before."""

    def __init__(
        self, settings: Settings, state_dict: Mapping[str, Any], copies: Copies | None
    ) -> None:
        super().__init__()
        self._settings, self._state, self._copies = settings, state_dict, copies
        self._place: Place | None = None
        self._plan: RunPlan | None = None
        #: The folder of the step's packs and a new plan, until the root names them.
        self._unseen: set[str] = set()
        self._key = ""
        #: What nobody needs any more.
        self._gone: set[str] = set()
        #: This process's shards, and whether each is a copy on the host, once they are written.
        self._shards: list[tuple[Shard, bool]] = []
        self._task: Task | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a writer publishes one step."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the coordinator opens the run when it plans the step."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse tensors and names that cannot be stored; report what the coordinator asks for.

        All checks of what this process alone has are made here, since torch hands their errors to
        all processes.
        """
        check_state(self._state)
        for item in plan.items:
            check_item(item)
        where, number = str(self._settings.where), self._settings.number
        report = _LocalReport(where, number, usable_processors(), tied_in(self._state))
        return replace(plan, storage_data=report)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Open the run, and plan the step; called on the coordinator."""
        settings, reports = self._settings, [plan.storage_data for plan in plans]
        _check_agreement(reports)
        wanted = Wanted.of(
            plans,
            [report.tied for report in reports],
            codec=settings.codec,
            level=settings.level,
            keyframe_every=settings.keyframe_every,
        )
        place = self._place = opened_place(settings.where)
        if place.fault is not None and not settings.restart:
            raise place.fault
        info = None if settings.restart else place.info
        self._check_number(info)
        if info is None:
            plan = new_plan(wanted, settings.where)
        else:
            with closing(open_last_step(settings.where, info)) as run:
                plan = plan_of_run(run, wanted, settings.where)
        self._plan, self._key = plan, new_step_key(settings.number)
        self._unseen = {self._key}
        before, slot = None, 0
        if info is not None:
            before, slot = (info.numbers[-1], info.steps[-1].key), info.slot(len(info.steps))
        numbers, processors = plan.numbers, [report.processors for report in reports]
        planned = []
        for process, each in enumerate(plans):
            items = [item for item in each.items if item.index.fqn in plan.arrays]
            names = {item.index.fqn for item in items}
            task = Task(
                where=settings.where,
                key=self._key,
                process=process,
                processes=count_sharing(reports[process].processors, processors),
                arrays={name: (numbers[name], plan.arrays[name]) for name in names},
                choice=plan.choice,
                before=before,
                is_whole=slot == 0,
            )
            planned.append(replace(each, items=items, storage_data=task))
        return planned

    def _check_number(self, info: PublishedInfo | None) -> None:
        where, number = self._settings.where, self._settings.number
        if info is not None and number <= info.numbers[-1]:
            what = "is there already" if number in info.numbers else "is not after the last one"
            raise StoreError(
                f"{where}: step {number} {what}: the last one is {info.numbers[-1]}; if this job"
                f" has gone back to an earlier step, and no other one publishes here, {RESTART}"
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
        results = [WriteResult(item.index, 0, None) for item in plan.items]
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
        reports = (result.storage_data for result in chain.from_iterable(results))
        for report in filter(None, reports):
            chunks.update(report.chunks)
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
        first, new = place.info, None
        last = "" if first is None else first.steps[-1].key
        if plan.document is not None:
            key, document = plan.document
            self._unseen.add(key)
            place.put(key, document)
            new = PublishedInfo(key, plan.group)

        def change(found: PublishedInfo | None) -> PublishedInfo:
            if found is not None and lists(found, step.key):
                return found  # the reply to an earlier request was lost
            # Another process may have dropped steps meanwhile, but must not have published. Where
            # the run begins anew, it took the folder of this step for one of a dead writer.
            info = found if new is None else new
            if info is None or (info.steps[-1].key != last if new is None else found is not first):
                raise ReplacedError.at(place.where)
            info = info.with_step(step)
            keep = self._settings.keep_last
            return info if keep is None else info.keeping(keep)

        self._gone = commit(place, change)
        self._unseen.clear()

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
                f"{self._settings.where}: step {self._settings.number}: parts of"
                f" {few(sorted(lacking), 3)} are in no process's shard"
            )

    def close(self) -> None:
        """Remove what nobody needs, and what was written of a step that failed."""
        place, self._place = self._place, None
        if place is None:
            return
        unseen = self._unseen if self._unseen and not place.may_list(self._key) else set()
        place.close()
        remove_keys(place, self._gone | unseen)

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


class RefusingWriter(StorageWriter):
    """Lets all processes know the error that keeps this one from publishing; writes nothing."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def _refuse(self, *args: Any) -> Any:
        """Raise the error, which torch hands to all processes."""
        raise self._error

    prepare_local_plan = prepare_global_plan = write_data = finish = _refuse

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True: no other writer is chosen by the path."""
        return True


def _check_agreement(reports: Sequence[_LocalReport]) -> None:
    """Raise ValueError unless all processes publish the same step of the same run."""
    given = sorted({(report.where, report.number) for report in reports})
    if len(given) > 1:
        texts = " and ".join(f"step {number} to {where}" for where, number in given[:2])
        raise ValueError(f"the processes do not publish the same: {texts}")


def _on_host(shard: Shard) -> tuple[Shard, bool]:
    """Return a shard on the host, and whether it was copied there."""
    if shard.tensor.device.type == "cpu":
        return shard, False
    return replace(shard, tensor=shard.tensor.cpu()), True
