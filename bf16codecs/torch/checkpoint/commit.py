"""The coordinator's work: it plans a checkpoint, assembles it, and publishes it in one step."""

from __future__ import annotations

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
from bf16codecs._files.digests import Digests
from bf16codecs.convert.bases import Base, check_not_base, opened_base
from bf16codecs.convert.plan import NoCommonTensorError, find_repeated
from bf16codecs.convert.target import (
    absolute_target,
    new_target,
    other_than_model,
)
from bf16codecs.errors import CheckpointWarning, StoreError
from bf16codecs.store.attributes import ROUNDED, Difference, StoredFile
from bf16codecs.store.checkpoint import Checkpoint, CheckpointPaths
from bf16codecs.store.kinds import Kind
from bf16codecs.store.layout import StoreInfo
from bf16codecs.store.opening import Opening, open_store
from bf16codecs.store.plan import header_path, with_others
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.writer import write_bytes, write_checkpoint
from bf16codecs.store.zarr.sinks import FolderSink
from bf16codecs.store.zarr.writer import ChunkWriter, ZarrWriter
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
from bf16codecs.torch.checkpoint.encoding import ZARR_FORMAT
from bf16codecs.torch.checkpoint.planning import (
    SMALL_BYTES,
    Bounds,
    CheckpointPlan,
    base_arrays,
    plan_checkpoint,
)
from bf16codecs.torch.checkpoint.retention import release
from bf16codecs.torch.checkpoint.threads import count_sharing
from bf16codecs.torch.checkpoint.writing import (
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

    Raises FileExistsError if the path has something that may not be replaced; StoreError if the
    base is not a model, or has no tensor in common with this one.
    """

    def __init__(self, path: str, settings: Settings, plans: Sequence[SavePlan]) -> None:
        self._settings, self._stack = settings, ExitStack()
        self._processes = len(plans)
        self.target = absolute_target(path, [])
        check_not_base(settings.base, self.target, settings.storage_options)
        obstacle = partial(other_than_model, kind=Kind.FOLDER)
        with ExitStack() as stack:
            target = new_target(
                self.target, settings.overwrite, obstacle, settings.sync, as_folder=True
            )
            self._folder = stack.enter_context(target)
            self._base = stack.enter_context(self._opened_base())
            self._plan = self._planned(plans)
            self._folder.mkdir()
            self._writer = ZarrWriter(FolderSink(self._folder), settings.choice, ZARR_FORMAT)
            self._scratch = self._whole_task().scratch
            self._scratch.mkdir()
            self._stack = stack.pop_all()

    def _opened_base(self) -> Any:
        settings = self._settings
        return opened_base(
            settings.base,
            None,
            self.target,
            settings.choice,
            ("blake3",),
            settings.storage_options,
        )

    def _planned(self, plans: Sequence[SavePlan]) -> CheckpointPlan:
        plan = plan_checkpoint(plans, self._settings.chunk_size, str(self.target))
        if not isinstance(self._base, Base):
            return plan
        based = base_arrays(plan, self._base.model)
        # Tensors of a few bytes, such as the state of random numbers, are in all checkpoints.
        large = {array.path for array in plan.arrays.values() if array.nbytes >= SMALL_BYTES}
        if not (large & based.keys() if large else based):
            self._do_without_base(plan)
            return plan
        arrays = {n: replace(a, has_base=a.path in based) for n, a in plan.arrays.items()}
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
        settings = replace(self._settings, base=base)
        shared_writer = self._writer.shared()
        return Task(self.target, self._folder, self._plan.arrays, shared_writer, settings)

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
            if self._settings.overwrite:
                release(self.target, self._settings.sync)
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
        plan, size = self._plan, self._settings.chunk_size
        repeats = find_repeats(reports, plan.arrays)
        written = {
            name: replace(array, level="best" if any(r.is_best for r in reports[name]) else None)
            for name, array in plan.arrays.items()
            if name not in repeats.copies and name not in repeats.roundings
        }
        with opened_encoder(replace(self._whole_task(), arrays=written)) as encoder:
            put_small(encoder, reports, written)
            put_parts(encoder, reports, written, self._scratch)
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
        check_complete(self._folder, list(written.values()), paths)
        if isinstance(self._base, Base):
            self._base.check_unchanged()

    def _finish_store(
        self, written: Mapping[str, ArrayPlan], repeats: Repeats, checkpoint: CheckpointPaths
    ) -> dict[str, str]:
        """Write the metadata of a store of these arrays; return the path of each tensor."""
        paths, arrays, differences = _store_entries(self._plan, written, repeats)
        for array in arrays:
            self._writer.create(array)
        name = f"{self.target.name.removesuffix('.zarr') or 'model'}.safetensors"
        files = (StoredFile(name, self._plan.header.file_size, Digests(), header_path(0)),)
        reference = self._base.reference if isinstance(self._base, Base) else None
        info = StoreInfo(files, None, paths, reference, differences, checkpoint=checkpoint)
        self._writer.finish(info)
        return paths

    def _opened_store(self) -> AbstractContextManager[ModelReader]:
        base = self._base.model if isinstance(self._base, Base) else None
        return closing(open_store(self._folder, Kind.FOLDER, opening=Opening(base=base)))

    def _put_unwritten(self, shards: Sequence[UnwrittenShard], paths: Mapping[str, str]) -> None:
        writer = ChunkWriter(self._settings.choice, ZARR_FORMAT, FolderSink(self._folder))
        task = replace(self._whole_task(), writer=writer)
        with self._opened_store() as reader, opened_encoder(task) as encoder:
            put_unwritten(reader, encoder, shards, self._plan.arrays, paths)

    def _objects(
        self, reports: Mapping[str, ObjectReport], names: Mapping[str, tuple[str | int, ...]]
    ) -> tuple[bytes, bytes]:
        """Return the text of the checkpoint, and all objects."""
        content, extents = bytearray(), {}
        for name, report in sorted(reports.items()):
            with open(self._scratch / report.file, "rb") as file:
                file.seek(report.offset)
                extents[name] = len(content), report.size
                content += file.read(report.size)
            if len(content) != sum(extents[name]):
                raise StoreError(f"object {name!r}: its bytes are missing beside {self.target}")
        return Checkpoint(extents, names).to_text(), bytes(content)

    def abandon(self) -> None:
        """Undo the checkpoint, and remove all of its files."""
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
