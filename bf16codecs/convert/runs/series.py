"""Runs: checkpoints over time in one store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import argument
from bf16codecs._base.names import PREFIX
from bf16codecs._base.paths import given_path
from bf16codecs._base.threads import codec_threads
from bf16codecs._files.publish import recover_missing
from bf16codecs._files.reading import disk_size
from bf16codecs.convert.options import RunOptions
from bf16codecs.convert.runs.appending import Step, add_step
from bf16codecs.convert.runs.members import check_series
from bf16codecs.convert.runs.packing import pack_hdf5, pack_zip
from bf16codecs.convert.runs.step_numbers import StepTold, ordered_steps, step_of
from bf16codecs.convert.sources import left_out, opened_source
from bf16codecs.convert.summary import Progress, Summary, shifted
from bf16codecs.convert.target import (
    absolute_target,
    check_store_name,
    is_free_folder,
    new_target,
    other_than_store,
    target_errors,
)
from bf16codecs.errors import StoreError
from bf16codecs.store.choice import (
    DEFAULT_CODEC,
    DEFAULT_GROUP,
    DEFAULT_STEP_SIZE,
    MAX_HDF5_CHUNK,
    CodecChoice,
)
from bf16codecs.store.kinds import Kind, detect
from bf16codecs.store.opening import open_run_store
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.layout import RunInfo
from bf16codecs.store.runs.reader import RunReader
from bf16codecs.store.runs.writer import RunWriter
from bf16codecs.store.zarr.append import ZarrRunWriter

__all__ = [
    "append_to_run",
    "opened_to_change",
    "own_choice",
    "safetensors_to_run",
]


def safetensors_to_run(
    sources: Sequence[str | os.PathLike[str]],
    store: str | os.PathLike[str],
    *,
    steps: Sequence[int] | None = None,
    keyframe_every: int = DEFAULT_GROUP,
    codec: str = DEFAULT_CODEC,
    level: str | int | None = None,
    chunk_size: int = DEFAULT_STEP_SIZE,
    threads: int | None = None,
    zarr_format: int = 3,
    as_hdf5: bool = False,
    sha256: bool = False,
    verify: bool = True,
    overwrite: bool = False,
    sync: bool = True,
    allow_changed_tensors: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Convert the checkpoints of a run to one store, with the step as first axis.

    Parameters
    ----------
    sources
        Safetensors files, folders of shards, or their indexes, in any order.
    store
        The store to make: a folder, or a ZIP file if the name ends in ``.zip``. It appears only
        when it is complete.
    steps
        The number of each one's step; by default its metadata or its name tell.
    keyframe_every
        How many steps there are from one that is coded whole to the next. Fewer are larger, and
        quicker to read.
    codec, level
        ``"arithmetic"`` (``"fast"`` or ``"best"``) or ``"huffman"``.
    chunk_size
        Largest size of one step in a chunk, in bytes.
    as_hdf5
        Make an HDF5 file.
    allow_changed_tensors
        Let tensors have another dtype or shape than in the steps before. Over time, each is then
        read in parts, under the first step of each; a `TensorChangeWarning` says so.
    threads, zarr_format, sha256, verify, overwrite, sync, progress
        As for `safetensors_to_zarr`.

    Returns
    -------
    Summary

    Raises
    ------
    SafetensorsError
        If a source is damaged, two are of the same step, or it is not certain which one is.
    StoreError
        If one has no tensor in common with those before it, or changed ones.
    FileExistsError
        If `store` exists and `overwrite` is false, or it is not a store.
    ValueError
        If an option makes no sense, or the target is or contains a source.
    """
    options = RunOptions(
        keyframe_every=keyframe_every,
        codec=codec,
        level=level,
        chunk_size=chunk_size,
        threads=threads,
        zarr_format=zarr_format,
        as_hdf5=as_hdf5,
        sha256=sha256,
        verify=verify,
        overwrite=overwrite,
        sync=sync,
        allow_changed_tensors=allow_changed_tensors,
        progress=progress,
    )
    return _new_run(ordered_steps(sources, steps), store, options)


def _new_run(
    checkpoints: Sequence[tuple[int, ModelReader]],
    store: str | os.PathLike[str],
    options: RunOptions,
) -> Summary:
    """Make a run of checkpoints, in the order of their steps."""
    start = time.perf_counter()
    if not checkpoints:
        raise ValueError("a run needs at least one checkpoint")
    paths = [path for _, source in checkpoints for path in source.paths]
    target = absolute_target(given_path(store, "target"), paths)
    kind, choice = options.kind_of(target), options.choice
    check_store_name(store, target, kind)
    check_series(checkpoints, options.allow_changed_tensors)
    obstacle, as_folder = partial(other_than_store, kind=kind), kind is Kind.FOLDER
    with (
        codec_threads(options.threads),
        new_target(target, options.overwrite, obstacle, options.sync, as_folder) as temporary,
    ):
        # What does not grow cheaply is made of a folder.
        is_packed = kind is Kind.ZIP or (kind is Kind.HDF5 and len(checkpoints) > 1)
        place = temporary.with_name("scratch") if is_packed else temporary
        info = _write_steps(place, Kind.FOLDER if is_packed else kind, kind, checkpoints, options)
        if is_packed and kind is Kind.ZIP:
            pack_zip(place, temporary)
        elif is_packed:
            pack_hdf5(place, temporary, choice)
    return Summary(
        len(paths),
        len(info.tensors),
        sum(source.total_nbytes() for _, source in checkpoints),
        disk_size(target),
        time.perf_counter() - start,
        left_out=left_out([source for _, source in checkpoints], target),
    )


def _write_steps(
    place: Path,
    kind: Kind,
    target_kind: Kind,
    checkpoints: Sequence[tuple[int, ModelReader]],
    options: RunOptions,
) -> RunInfo:
    """Write a run of one kind, of which one of another may be made; return its attributes."""
    if kind is Kind.FOLDER:
        place.mkdir()
    info = _new_info(options.choice, options.keyframe_every)
    done, total = 0, sum(source.total_nbytes() for _, source in checkpoints)
    for number, source in checkpoints:
        report = shifted(options.progress, "convert", done, total)
        step = Step(source, number, options, _largest_chunk(target_kind), report)
        with (
            closing(_writer(place, kind, options.zarr_format, durable=False)) as writer,
            _opened(place, info) as run,
        ):
            info, _ = add_step(writer, run, info, step)
        done += source.total_nbytes()
        source.close()
    return info


def _largest_chunk(kind: Kind) -> int | None:
    return MAX_HDF5_CHUNK if kind is Kind.HDF5 else None


def append_to_run(
    src: str | os.PathLike[str],
    store: str | os.PathLike[str],
    step: int | None = None,
    *,
    keyframe_every: int | None = None,
    codec: str | None = None,
    level: str | int | None = None,
    chunk_size: int = DEFAULT_STEP_SIZE,
    threads: int | None = None,
    zarr_format: int | None = None,
    as_hdf5: bool = False,
    sha256: bool = False,
    verify: bool = True,
    sync: bool = True,
    allow_changed_tensors: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Append a checkpoint to a run store, in a Zarr folder or an HDF5 file, or begin one.

    What is older than the last group of steps is not touched. Whatever happens, the run is as
    before, or has the step.

    Parameters
    ----------
    src
        A safetensors file, a folder of shards, or their index.
    store
        The run. If nothing is there, it is made: in an HDF5 file if `as_hdf5` says so.
    step
        The number of the step, above that of the last one; by default the checkpoint's metadata or
        its name tell, behind a word: ``step-600``, ``checkpoint-600``.
    codec, level, keyframe_every, zarr_format
        As for `safetensors_to_run`, for a new run. One that is there has its own; others are
        refused.
    chunk_size, threads, as_hdf5, sha256, verify, sync, allow_changed_tensors, progress
        As for `safetensors_to_run`.

    Returns
    -------
    Summary
        Of the step: its `stored_nbytes` is what was written, `step` its number, and `step_by` what
        told that. `is_begun` tells whether it is the first one.

    Raises
    ------
    SafetensorsError
        If the source is damaged, or it is not certain which step it is.
    StoreError
        If `store` is not a run that can grow, or the checkpoint is not of it, or has tensors of
        other dtypes or shapes.
    ValueError
        If the step is not after the last one, or another option makes no sense, or is not that
        of the run.
    BlockingIOError
        If another process is appending to the run.
    FileExistsError
        If another process has begun it meanwhile.
    """
    options = RunOptions(
        chunk_size=chunk_size,
        threads=threads,
        as_hdf5=as_hdf5,
        sha256=sha256,
        verify=verify,
        sync=sync,
        allow_changed_tensors=allow_changed_tensors,
        progress=progress,
    )
    with closing(opened_source(src, to_store=True)) as source:
        target = Path(given_path(store, "run"))
        absolute_target(store, source.paths)
        told = step_of(source, src) if step is None else StepTold(step)
        recover_missing(target)
        if os.path.lexists(target) and not is_free_folder(target):
            wanted = codec, level, keyframe_every, zarr_format
            return _append(source, told, target, options, wanted)
        options = replace(
            options,
            keyframe_every=DEFAULT_GROUP if keyframe_every is None else keyframe_every,
            codec=codec or DEFAULT_CODEC,
            level=level,
            zarr_format=3 if zarr_format is None else zarr_format,
        )
        if options.kind_of(target) is Kind.ZIP:
            raise ValueError(
                f"{target}: runs in ZIP files cannot grow: name a folder, or an HDF5 file"
            )
        try:
            summary = _new_run([(told.number, source)], store, options)
        except FileExistsError as e:
            text = "another process has begun it meanwhile: append again"
            raise FileExistsError(e.errno, text, str(target)) from e
        return replace(summary, is_begun=True, step=told.number, step_by=told.by)


def _append(
    source: ModelReader,
    told: StepTold,
    target: Path,
    options: RunOptions,
    wanted: tuple[str | None, str | int | None, int | None, int | None],
) -> Summary:
    """Append a step to a run that is there; `wanted` is what `own_choice` compares."""
    start = time.perf_counter()
    with (
        codec_threads(options.threads),
        target_errors(target),
        opened_to_change(target, "append to", durable=options.sync) as (writer, run, kind),
    ):
        info = run.run
        _check_order(run, told.number)
        choice = own_choice(target, info, *wanted)
        options = replace(options, keyframe_every=info.group, codec=choice.name, level=choice.level)
        report = shifted(options.progress, "convert", 0, source.total_nbytes())
        checkpoint = Step(source, told.number, options, _largest_chunk(kind), report)
        _, nbytes = add_step(writer, run, info, checkpoint)
        _interrupt.finish(f"{target}, with step {told.number}")
    return Summary(
        len(source.headers),
        sum(len(header.tensors) for header in source.headers),
        source.total_nbytes(),
        nbytes,
        time.perf_counter() - start,
        step=told.number,
        step_by=told.by,
        left_out=left_out([source], target),
    )


@contextmanager
def opened_to_change(
    target: Path, verb: str, durable: bool
) -> Iterator[tuple[RunWriter, RunReader, Kind]]:
    """Open a run to change its steps; yield what does it, what reads it, and its kind.

    Parameters
    ----------
    target
        The run.
    verb
        What is to be done, for messages: "append to".
    durable
        Flush all to the disk.

    Raises
    ------
    StoreError
        If it is no run that can change.
    BlockingIOError
        If another process changes it.
    """
    kind = detect(target)
    if kind not in (Kind.FOLDER, Kind.HDF5):
        grow = "steps come and go in Zarr folders and HDF5 files alone"
        if kind is Kind.ZIP:
            advice = f"unzip it into a folder, such as {target.stem}, and {verb} that"
            raise StoreError(f"{target}: {kind.value}, and {grow}: {advice}")
        what = "and no store" if kind is None else f"but {kind.value}"
        raise StoreError(f"{target}: not a run, {what}: {grow}")
    if kind is Kind.FOLDER:
        open_run_store(target).close()  # what is no run gets no lock
    # The writer has the lock: nobody appends between reading what there is and writing.
    with (
        closing(_writer(target, kind, _format_of(target), durable)) as writer,
        closing(open_run_store(target)) as run,
    ):
        yield writer, run, kind


def _format_of(target: Path) -> int:
    return 3 if (target / "zarr.json").exists() else 2


def _writer(path: Path, kind: Kind, zarr_format: int, durable: bool) -> RunWriter:
    if kind is not Kind.HDF5:
        return ZarrRunWriter(path, zarr_format, durable)
    # h5py is imported by those who have HDF5 files.
    from bf16codecs.store.hdf5.append import Hdf5RunWriter

    return Hdf5RunWriter(path, durable)


@contextmanager
def _opened(place: Path, info: RunInfo) -> Iterator[RunReader | None]:
    if not info.steps:
        yield None
        return
    with closing(open_run_store(place)) as run:
        yield run


def _new_info(choice: CodecChoice, group: int) -> RunInfo:
    codec = choice.for_run("bfloat16", group)
    return RunInfo(group, codec={"name": codec["name"], "configuration": codec["configuration"]})


def own_choice(
    target: Path,
    info: RunInfo,
    codec: str | None = None,
    level: str | int | None = None,
    keyframe_every: int | None = None,
    zarr_format: int | None = None,
) -> CodecChoice:
    """Return what a run was made with, which its steps have to have: others raise ValueError."""
    name = str(info.codec.get("name", "")).removeprefix(PREFIX) or DEFAULT_CODEC
    made = dict(info.codec.get("configuration") or {})
    choice = CodecChoice(name, made.get("level"))
    options = {
        "codec": (codec, choice.name),
        "level": (level, choice.level),
        "keyframe_every": (keyframe_every, info.group),
        "zarr_format": (zarr_format, None if target.is_file() else _format_of(target)),
    }
    for option, (wanted, own) in options.items():
        if wanted is not None and wanted != own:
            raise ValueError(
                f"{target}: was made with {argument(option)} {own}, which all of its steps have,"
                f" not {wanted}"
            )
    return choice


def _check_order(run: RunReader, number: int) -> None:
    numbers = run.run.numbers
    if number in numbers:
        raise ValueError(f"{run.where}: has step {number} already")
    if numbers and number < numbers[-1]:
        raise ValueError(
            f"{run.where}: step {number} is before the last one, {numbers[-1]}: steps are appended"
            " in their order"
        )
