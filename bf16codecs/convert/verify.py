"""Verify stores by decoding them completely."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bf16codecs._arrays.views import StepView
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.limits import Limits
from bf16codecs._base.messages import (
    DAMAGE_ADVICE,
    RESTORE_ADVICE,
    counted,
    named_errors,
)
from bf16codecs._base.paths import given_path, require_path
from bf16codecs._base.threads import codec_threads
from bf16codecs.convert.checks import check_restored_size, differing_names, stored_index
from bf16codecs.convert.damages import NO_DAMAGE, Damages
from bf16codecs.convert.examining import Checks, ModelData
from bf16codecs.convert.restore import step_folders
from bf16codecs.convert.sources import opened_source
from bf16codecs.convert.summary import BytesDone, Progress, Summary, shifted
from bf16codecs.errors import BF16CodecsError, CodecError, CorruptDataError, StoreError
from bf16codecs.store.arrays import faults
from bf16codecs.store.attributes import ROUNDED, array_loss
from bf16codecs.store.kinds import address_scheme
from bf16codecs.store.objects import sizes_of_objects
from bf16codecs.store.opening import Opening, open_either
from bf16codecs.store.paths import STEP_PATH
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.layout import listed
from bf16codecs.store.runs.reader import RunReader

__all__ = ["verify_store"]


def verify_store(
    store: str | os.PathLike[str],
    src: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    base: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Decode a whole store, check every checksum and digest, and compare with `src` if given.

    After damage, or a difference to `src`, the rest is still read: one error, at the end, lists all
    of it.

    Parameters
    ----------
    store
        Anything that `bf16codecs.open_model` opens. Safetensors files have no checksums: they are
        only read, and compared with `src`. All steps of a run are verified, or the one that the
        path names: ``run.zarr@600``.
    src
        The original safetensors file, folder of shards or index, or its address. A lossy store is
        compared with it in half precision; a run, with the folder that `run_to_safetensors` makes.
    threads, base, storage_options, max_bytes, progress
        As for `zarr_to_safetensors`.

    Returns
    -------
    Summary

    Raises
    ------
    StoreError, bf16codecs.errors.CodecError
        If the store is damaged. The type is that of the first damage; `damage` lists all, each as a
        `bf16codecs.errors.Damage`. After 10,000, the rest is not read. `damage` is empty if the
        error is not damage: `LimitError`, `ServerError`.
    bf16codecs.errors.SourceMismatchError
        If the store is intact, but not a copy of `src`. Its `differences` lists the differences
        like `damage`; errors about damage have them as well.
    OSError
        If a server fails, or `src` cannot be read.
    """
    start, objects, steps, names = time.perf_counter(), 0, 0, 0
    is_sources = bool(src and address_scheme(os.fspath(src)))
    is_stores = any(address_scheme(str(place)) for place in (store, base))
    options = None if is_sources and not is_stores else storage_options
    opening = Opening(options, Limits(max_bytes), base=base)
    with codec_threads(threads), closing(_opened(store, opening)) as reader:
        damages = Damages(reader.where, reader.location[0])
        try:
            if isinstance(reader, RunReader):
                files, tensors, total = _verify_run(reader, src, storage_options, damages, progress)
                steps, names = len(reader.run.steps), len(reader.names)
            else:
                files, tensors, total = len(reader.info.files), len(reader.names), _size(reader)
                objects = _verify_objects(reader, damages)
                source = None if src is None else opened_source(src, options=storage_options)
                checks = Checks(damages, progress, total)
                _verify(reader, source, checks, shifted(progress, "verify", 0, total))
                checks.finish()
            _verify_documents(reader, damages)
        except (OSError, *NO_DAMAGE) as e:
            damages.stop(e)
            raise
        damages.check()
        # What a job has written was in no file, and has no digest; its frames have checksums.
        is_of_job = reader.info.checkpoint is not None or reader.stored.is_published
        has_checksums = is_of_job or all(file.restored.kinds for file in reader.info.files)
        state = "intact" if has_checksums else "readable"
        damages.check_same(state, "" if src is None else os.fspath(src), tensors)
        stored, loss = reader.total_nbytes(), reader.info.loss
    seconds = time.perf_counter() - start
    return Summary(
        files,
        tensors,
        total,
        stored,
        seconds,
        loss=loss,
        has_checksums=has_checksums,
        objects=objects,
        steps=steps,
        different_tensors=names,
    )


def _opened(store: str | os.PathLike[str], opening: Opening) -> ModelReader:
    """Open a store; an error about damage does not advise to verify the store."""
    try:
        return open_either(store, opening)
    except BF16CodecsError as e:
        text = str(e)
        if not text.endswith(DAMAGE_ADVICE):
            raise
        raise type(e)(f"{text.removesuffix(DAMAGE_ADVICE)}{RESTORE_ADVICE}") from e


def _verify_run(
    run: RunReader,
    src: str | os.PathLike[str] | None,
    options: Mapping[str, Any] | None,
    damages: Damages,
    progress: Progress | None,
) -> tuple[int, int, int]:
    """Verify all steps of a run; return the numbers of their files, tensors and bytes."""
    steps, sources = run.run.steps, _sources(run, src, options, damages)
    files, tensors, done, total = 0, 0, 0, sum(step.nbytes for step in steps)
    run.check_size(total, "the original files")
    try:
        _check_coordinate(run)
    except (CorruptDataError, StoreError) as e:
        damages.add(e)
    checks = Checks(damages, progress, total, run)
    for step, source in zip(steps, sources, strict=True):
        reader = run.step(step.number)
        _verify(reader, source, checks, shifted(progress, "verify", done, total))
        files, tensors = files + len(step.files), tensors + len(reader.names)
        done += step.nbytes
    checks.finish()
    if not damages:
        _verify_changes(run, damages)
    if not damages:

        def check(name: str) -> None:
            run.describe(name)
            run.check_header(name)

        _fails(run, check, damages.add)
    return files, tensors, total


def _verify_changes(run: RunReader, damages: Damages) -> None:
    """Verify what no step is read from: differences to the step before of those that are whole.

    Published runs have these, for whoever has the step before.
    """
    whole = (index for index, step in enumerate(run.run.steps) if index and step.parent is None)
    for path, index in itertools.product(sorted(run.run.arrays), whole):
        array = run.array(path)
        between = run.stored.between(path, index - 1, index)
        changed = None if between is None else between.against(0, StepView(array, index - 1))
        if changed is None:
            continue
        expected, number = StepView(array, index), run.run.numbers[index]
        try:
            for piece in expected.plan(path).pieces():
                ours, theirs = (np.empty(piece.array.chunk_nbytes, np.uint8) for _ in range(2))
                changed.read_piece(piece, ours)
                expected.read_piece(piece, theirs)
                if not np.array_equal(ours[: piece.nbytes], theirs[: piece.nbytes]):
                    text = "its differences to the step before lead to other values"
                    raise CorruptDataError(f"{run.label(path)}: step {number}: {text}")
        except (CodecError, StoreError) as e:
            damages.add(e, number)


def _sources(
    run: RunReader,
    src: str | os.PathLike[str] | None,
    options: Mapping[str, Any] | None,
    damages: Damages,
) -> Sequence[ModelReader | None]:
    """Open the source of each step of a run, and note files that belong to no step.

    Raises StoreError if the run has several steps, and `src` is not a folder with the files of all;
    OSError if `src` does not exist.
    """
    steps = run.run.steps
    if src is None:
        return [None] * len(steps)
    if len(steps) == 1:
        return [opened_source(src, options=options)]
    require_path(given_path(src, "source"))
    folders = [Path(src, folder) for folder in step_folders(run.run)]
    paths = [
        folder / step.file_names[0] if len(step.file_names) == 1 else folder
        for folder, step in zip(folders, steps, strict=True)
    ]
    if not all(path.exists() for path in paths):
        command = for_caller("run_to_safetensors", "zarr2st --all or h52st --all")
        raise StoreError(
            f"{run.where}: a run of {counted(len(steps), 'step')}, but {os.fspath(src)} is not the"
            f" folder with all of them that {command} makes: name the step to compare, as in"
            f" {run.where}@{steps[-1].number}"
        )
    files = {
        folder / name
        for folder, step in zip(folders, steps, strict=True)
        for name in step.file_names
    }
    for path in sorted({*Path(src).rglob("*.safetensors")} - files):
        damages.differ(f"{path} belongs to none of its steps")
    return list(map(opened_source, paths))


def _check_coordinate(run: RunReader) -> None:
    """Compare the array of step numbers with the attributes; an unfinished append may add one."""
    numbers = run.run.numbers
    array = run.array(STEP_PATH)
    if array.dtype != np.int64 or len(array.shape) != 1 or array.shape[0] < len(numbers):
        raise StoreError(
            f"{run.label(STEP_PATH)}: {array.dtype} of shape {array.shape}, not the numbers of"
            f" {counted(len(numbers), 'step')}"
        )
    found = np.empty(len(numbers), np.int64)
    array.read_range(0, found.nbytes, found.view(np.uint8))
    if found.tolist() != numbers:
        raise CorruptDataError(
            f"{run.label(STEP_PATH)}: has the steps {listed(found.tolist())}; the attributes of the"
            f" run have {listed(numbers)}"
        )


def _size(reader: ModelReader) -> int:
    index = reader.info.index
    return sum(file.size for file in reader.info.files) + (0 if index is None else index.size)


def _verify_objects(reader: ModelReader, damages: Damages) -> int:
    """Decode the objects that a checkpoint has beside tensors; return their number."""
    paths = reader.info.checkpoint
    if paths is None:
        return 0
    try:
        sizes = sizes_of_objects(reader) or {}
        if paths.objects is None:
            return len(sizes)
        plan = reader.plan(paths.objects)
        reader.check_size(plan.nbytes, "the objects")
    except BF16CodecsError as e:
        damages.add(e)
        return 0
    chunk = np.empty(plan.chunk_nbytes, np.uint8)
    for piece in plan.pieces():
        try:
            reader.read(piece, chunk)
        except BF16CodecsError as e:
            damages.add(e, chunk=piece.index, path=paths.objects)
    return len(sizes)


def _verify_documents(reader: ModelReader, damages: Damages) -> None:
    """Note metadata that are invalid, or that other software cannot read or would misread."""
    names = reader.info.tensors
    storage_faults = faults(names, partial(_check_storage, reader))
    for path, error in chain(storage_faults, reader.stored.document_faults()):
        if path not in damages.paths:
            damages.add(error, tensor=names.get(path), path=path)


def _check_storage(reader: ModelReader, path: str) -> None:
    """Check the metadata of an array's storage and loss."""
    reader.codec_label(path)
    if reader.info.loss is not None and not path.endswith(ROUNDED):
        with named_errors(reader.label(path)):
            array_loss(reader.stored.attributes(path))


def _verify(
    reader: ModelReader,
    source: ModelReader | None,
    checks: Checks,
    progress: BytesDone | None,
) -> None:
    """Decode all of a model, and compare it with its digests, and with its source if given."""
    found, paths = partial(checks.damages.add, step=reader.location[1]), reader.info.paths

    def check(name: str) -> None:
        reader.tensor(name)
        reader.check_header(name)

    try:
        if _fails(reader, lambda name: reader.array(paths[name]), found):
            return  # only complete files can be checked further
        _ = reader.headers  # a damaged header is one fault, not one of each tensor
        _fails(reader, check, found)
        _verify_data(reader, source, checks, progress)
    except BF16CodecsError as e:
        if e.damage:  # already the error that lists all, after too much damage
            raise
        found(e)


def _fails(reader: ModelReader, check: Callable[[str], object], found: Callable[..., None]) -> bool:
    """Report the tensors that fail a check, and return whether there are any."""
    is_bad = False
    for name, error in faults(reader.names, check):
        is_bad = True
        found(error, tensor=name, path=reader.info.paths.get(name))
    return is_bad


def _verify_data(
    reader: ModelReader,
    source: ModelReader | None,
    checks: Checks,
    progress: BytesDone | None,
) -> None:
    headers, index, step = reader.headers, stored_index(reader), reader.location[1]
    check_restored_size(reader, headers)
    if source is not None:
        difference = differing_names(reader, headers, index, source)
        if difference is not None:
            checks.damages.differ(difference, step)
            source = None
    checks.add(ModelData(reader, source), progress)
