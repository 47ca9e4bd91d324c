"""The coordinator's work: it plans a checkpoint, assembles it, and publishes it in one step."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from torch.distributed.checkpoint import SavePlan
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from bf16codecs._arrays.grid import ArrayPlan
from bf16codecs._base.messages import few
from bf16codecs._base.threads import run_all
from bf16codecs._files.digests import Digests
from bf16codecs.convert.bases import Base, check_not_base, opened_base
from bf16codecs.convert.new_store import Target
from bf16codecs.convert.plan import NoCommonTensorError, find_repeated
from bf16codecs.errors import BaseMismatchError, CheckpointWarning, StoreError
from bf16codecs.store.attributes import ROUNDED, Difference, StoredFile
from bf16codecs.store.checkpoint import Checkpoint, CheckpointPaths
from bf16codecs.store.kinds import path_of
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.plan import header_path, with_others
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.writer import write_bytes, write_checkpoint
from bf16codecs.torch.checkpoint.assembling import (
    Repeats,
    UnwrittenShard,
    check_complete,
    find_repeats,
    joined,
    of_one_process,
    put_parts,
    put_small,
    put_unwritten,
)
from bf16codecs.torch.checkpoint.drafts import new_draft
from bf16codecs.torch.checkpoint.planning import (
    SMALL_BYTES,
    Bounds,
    CheckpointPlan,
    base_arrays,
    plan_checkpoint,
)
from bf16codecs.torch.checkpoint.retention import release
from bf16codecs.torch.checkpoint.series_folders import SeriesFolder
from bf16codecs.torch.checkpoint.threads import count_sharing
from bf16codecs.torch.checkpoint.writing import (
    SCRATCH,
    ObjectReport,
    Settings,
    ShardReport,
    Task,
    opened_encoder,
)

__all__ = ["PLANS_LEFT_OUT", "Commit"]

#: The error if torch leaves out plans that it assumes to be known from an earlier save.
PLANS_LEFT_OUT = (
    "DefaultSavePlanner(enable_plan_caching=True) leaves out what this writer has not seen: use one"
    " StoreWriter for all checkpoints, with checkpoint_id=, and no caching where another process"
    " saves (AsyncCheckpointerType.PROCESS)"
)


class Commit:
    """A checkpoint in the making, from the plans of all processes, without duplicates.

    `folder` is the one that `target` is in. Raises FileExistsError if the target is something that
    may not be replaced; StoreError if the base is not a model, or has no tensor in common with this
    one; BlockingIOError if another process is writing the target in an object store.
    """

    def __init__(
        self, folder: SeriesFolder, target: Target, settings: Settings, plans: Sequence[SavePlan]
    ) -> None:
        self._settings, self._stack = settings, ExitStack()
        self.folder, self.target = folder, target
        self._processes, options = len(plans), settings.options
        check_not_base(settings.base, self.target, options.storage_options)
        with ExitStack() as stack:
            self.draft = stack.enter_context(new_draft(self.target, options))
            self._writer = self.draft.writer(options)
            self._base = stack.enter_context(self._opened_base())
            self._plan = self._planned(plans)
            self.draft.declare(
                (array.path for array in self._plan.arrays.values()), self._address()
            )
            self._stack = stack.pop_all()

    def _opened_base(self) -> Any:
        options = self._settings.options
        return opened_base(
            options.base, None, self.target, options.choice, ("blake3",), options.storage_options
        )

    def _planned(self, plans: Sequence[SavePlan]) -> CheckpointPlan:
        plan = plan_checkpoint(plans, self._settings.options.chunk_size, str(self.target))
        if not isinstance(self._base, Base):
            return plan
        based = base_arrays(plan, self._base.model)
        # Tensors of a few bytes, such as the state of random numbers, are in all checkpoints.
        large = {array.path for array in plan.arrays.values() if array.nbytes >= SMALL_BYTES}
        if not (large & based.keys() if large else based):
            self._do_without_base(plan)
            return plan
        arrays, folder = dict(plan.arrays), self._writer.difference_folder
        for name, array in arrays.items():
            if array.path in based:
                path = f"{array.path}/{folder}" if folder else array.path
                arrays[name] = replace(array, path=path, has_base=True)
        return replace(plan, arrays=arrays)

    def _do_without_base(self, plan: CheckpointPlan) -> None:
        """Give up a base without a tensor of this checkpoint, or refuse it."""
        assert isinstance(self._base, Base)
        text = f"{self.target}: has no tensor in common with its base, {self._base.model.where}:"
        text += " none of the same name, dtype and shape"
        if not self._settings.is_base_optional:
            raise NoCommonTensorError(text)
        if plan.arrays:
            warnings.warn(f"{text}; it is stored without one", CheckpointWarning, stacklevel=2)
        self._base = ""

    def tasks(self, plans: Sequence[SavePlan]) -> Iterator[Task]:
        """Yield the task of each process."""
        whole = self._whole_task()
        processors = [plan.storage_data for plan in plans]
        for plan in plans:
            tensors = [item for item in plan.items if item.type is not WriteItemType.BYTE_IO]
            arrays = {item.index.fqn: self._plan.arrays[item.index.fqn] for item in tensors}
            processes = count_sharing(plan.storage_data, processors)
            yield replace(whole, arrays=arrays, processes=processes)

    def _whole_task(self) -> Task:
        base = None
        if isinstance(self._base, Base):
            where, step = self._base.model.location
            base = where if step is None else f"{where}@{step}"
        settings, folder = self._settings.with_base(base), self.draft.path
        return Task(self.target, folder, self._plan.arrays, self._writer.shared(), settings)

    def finish(
        self,
        results: Sequence[Sequence[WriteResult]],
        names: Mapping[str, tuple[str | int, ...]],
        expected: Mapping[str, Any],
    ) -> None:
        """Assemble the checkpoint, and give it its name.

        `names` has the keys that led to each name, and `expected` torch's metadata. Raises
        FileExistsError if another process has made the checkpoint; StoreError if chunks or items
        are missing; ValueError if the reports lack something that torch's metadata list.
        """
        with self._stack:
            if self.draft.replaces:
                release(self.folder)
            reports: dict[str, list[ShardReport]] = defaultdict(list)
            objects: dict[str, ObjectReport] = {}
            for result in chain.from_iterable(results):
                name, report = result.index.fqn, result.storage_data
                if isinstance(report, ObjectReport):
                    objects[name] = report
                else:
                    reports[name].append(report)
            missing = [
                name
                for name, entry in expected.items()
                if name not in objects and not _is_reported(name, entry, reports)
            ]
            if missing:
                raise ValueError(f"{self.target}: {few(sorted(missing), 5)}: {PLANS_LEFT_OUT}")
            self._assemble(reports, *self._objects(objects, names))

    def _assemble(
        self, reports: Mapping[str, Sequence[ShardReport]], text: bytes, objects: bytes
    ) -> None:
        plan, size = self._plan, self._settings.options.chunk_size
        repeats = find_repeats(reports, plan.arrays)
        written = {
            name: replace(array, level="best" if any(r.is_best for r in reports[name]) else None)
            for name, array in plan.arrays.items()
            if name not in repeats.copies and name not in repeats.roundings
        }
        with opened_encoder(replace(self._whole_task(), arrays=written)) as encoder:
            put_small(encoder, reports, written)
            put_parts(encoder, reports, written, self.draft)
        self._writer.drop(SCRATCH)
        write_bytes(self._writer, header_path(0), plan.header.raw, size)
        checkpoint, _ = write_checkpoint(self._writer, text, objects, size)
        paths = self._finish_store(written, repeats, checkpoint)
        if repeats.unwritten:
            self._put_unwritten(repeats.unwritten, paths)
        # No process could compare these with tensors of other processes.
        separate = of_one_process(reports) & written.keys() if self._processes > 1 else set()
        if len(separate) > 1:
            with self._opened_store() as reader:
                more = find_repeated(reader, separate)
            for name in (*more.copies, *more.roundings):
                self._writer.drop(written.pop(name).path)
            if more.copies or more.roundings:
                paths = self._finish_store(written, joined(repeats, more), checkpoint)
        chunks = self._writer.chunks
        check_complete(str(self.target), self.draft, chunks, list(written.values()), paths)
        self._check_base()

    def _address(self) -> str | None:
        """Return the address of the base, if it is at one."""
        where = self._base.model.location[0] if isinstance(self._base, Base) else ""
        return where if path_of(where) is None else None

    def _check_base(self) -> None:
        """Raise BaseMismatchError if the base has changed, or was removed."""
        if isinstance(self._base, Base):
            self._base.check_unchanged()
        base = self._address()
        if base and self.folder.may_look_at(base) and not self.folder.attributes(base).is_model:
            raise BaseMismatchError(f"{base}: was removed while it was read as a base")

    def _finish_store(
        self, written: Mapping[str, ArrayPlan], repeats: Repeats, checkpoint: CheckpointPaths
    ) -> dict[str, str]:
        """Write the metadata of a store of these arrays; return the path of each tensor."""
        paths, arrays, differences = _store_entries(self._plan, written, repeats)
        for array in arrays:
            self._writer.create(array)
        stem = os.path.basename(self.target).removesuffix(".zarr") or "model"
        files = (
            StoredFile(
                f"{stem}.safetensors", self._plan.header.file_size, Digests(), header_path(0)
            ),
        )
        reference = self._base.reference if isinstance(self._base, Base) else None
        info = StoreInfo(files, None, paths, reference, differences, checkpoint=checkpoint)
        self._writer.finish(info)
        return paths

    def _opened_store(self) -> AbstractContextManager[ModelReader]:
        base = self._base.model if isinstance(self._base, Base) else None
        return closing(self.draft.open(base))

    def _put_unwritten(self, shards: Sequence[UnwrittenShard], paths: Mapping[str, str]) -> None:
        task = replace(self._whole_task(), writer=self._writer.chunks)
        with self._opened_store() as reader, opened_encoder(task) as encoder:
            put_unwritten(reader, encoder, shards, self._plan.arrays, paths)

    def _objects(
        self, reports: Mapping[str, ObjectReport], names: Mapping[str, tuple[str | int, ...]]
    ) -> tuple[bytes, bytes]:
        """Return the text of the checkpoint, and all objects."""
        extents, end = {}, 0
        by_key: dict[str, list[str]] = defaultdict(list)
        for name, report in sorted(reports.items()):
            extents[name] = end, report.size
            end += report.size
            by_key[report.key].append(name)
        content = bytearray(end)

        def read(key: str, together: Sequence[str]) -> None:
            size = max(reports[name].offset + reports[name].size for name in together)
            found = self.draft.read(key, 0, size)
            if len(found) < size:
                names_of_key = few(sorted(together), 3)
                raise StoreError(f"{self.target}: bytes of the objects {names_of_key} are missing")
            for name in together:
                (start, nbytes), offset = extents[name], reports[name].offset
                content[start : start + nbytes] = found[offset : offset + nbytes]

        # Each process has written its own.
        jobs = (partial(read, key, together) for key, together in by_key.items())
        run_all(jobs, self._writer.concurrency)
        return Checkpoint(extents, names).to_text(), bytes(content)

    def abandon(self) -> None:
        """Undo the checkpoint, and remove all of its files."""
        if self._processes > 1:
            self.draft.leave_note()
        with suppress(_Abandoned), self._stack:
            raise _Abandoned


class _Abandoned(Exception):
    """The checkpoint is undone."""


def _is_reported(name: str, entry: Any, reports: Mapping[str, Sequence[ShardReport]]) -> bool:
    """Tell whether processes have reported each shard of a tensor that torch's metadata list."""
    chunks = entry.chunks if isinstance(entry, TensorStorageMetadata) else ()
    shards = {Bounds(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks}
    return name in reports and shards == {report.bounds for report in reports[name]}


def _store_entries(
    plan: CheckpointPlan, written: Mapping[str, ArrayPlan], repeats: Repeats
) -> tuple[dict[str, str], list[ArrayPlan], dict[str, Difference]]:
    """Return the path of each tensor, the arrays, and the differences by their paths."""
    paths = plan.paths
    copies: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    roundings: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for name, owner in repeats.copies.items():
        paths[name], copies[owner] = paths[owner], (*copies[owner], name)
    for name, owner in repeats.roundings.items():
        paths[name], roundings[owner] = paths[owner] + ROUNDED, (*roundings[owner], name)
    arrays, differences = [], {}
    infos = {tensor.name: tensor for tensor in plan.header.tensors}
    for name, array in written.items():
        followers = copies[name], roundings[name]
        if array.has_base:
            spec = infos[name].dtype, infos[name].shape
            difference = Difference(name, *spec, array.chunks, *followers, array.level)
            differences[array.path] = difference
            arrays.append(array)
        else:
            arrays.append(with_others(array, *followers))
    return paths, arrays, differences
