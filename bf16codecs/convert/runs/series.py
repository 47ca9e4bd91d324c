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
from bf16codecs._base.arguments import argument, as_integer
from bf16codecs._base.limits import MAX_GROUP
from bf16codecs._base.names import PREFIX
from bf16codecs._base.paths import given_path
from bf16codecs._base.threads import codec_threads
from bf16codecs._files.digests import kinds_of
from bf16codecs._files.publish import recover_missing
from bf16codecs._files.reading import disk_size
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
from bf16codecs.store.kinds import Kind, detect, suffix_of
from bf16codecs.store.opening import open_run_store
from bf16codecs.store.runs.layout import RunInfo
from bf16codecs.store.runs.reader import RunReader
from bf16codecs.store.runs.writer import RunWriter
from bf16codecs.store.zarr.append import ZarrRunWriter

__all__ = [
    "append_to_run",
    "check_run_options",
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
    start = time.perf_counter()
    choice = check_run_options(codec, level, keyframe_every, chunk_size, zarr_format)
    checkpoints = ordered_steps(sources, steps)
    if not checkpoints:
        raise ValueError("a run needs at least one checkpoint")
    paths = [path for _, source in checkpoints for path in source.paths]
    target = absolute_target(given_path(store, "target"), paths)
    kind = _kind_of(target, as_hdf5)
    check_store_name(store, target, kind)
    check_series(checkpoints, allow_changed_tensors)
    largest = MAX_HDF5_CHUNK if kind is Kind.HDF5 else None
    total = sum(source.total_nbytes() for _, source in checkpoints)
    done, kinds = 0, kinds_of(sha256)
    with (
        codec_threads(threads),
        new_target(
            target,
            overwrite,
            partial(other_than_store, kind=kind),
            sync,
            as_folder=kind is Kind.FOLDER,
        ) as temporary,
    ):
        # What does not grow cheaply is made of a folder.
        is_packed = kind is Kind.ZIP or (kind is Kind.HDF5 and len(checkpoints) > 1)
        place = temporary.with_name("scratch") if is_packed else temporary
        written_kind = Kind.FOLDER if is_packed else kind
        if written_kind is Kind.FOLDER:
            place.mkdir()
        info = _new_info(choice, keyframe_every)
        for number, source in checkpoints:
            with closing(_writer(place, written_kind, zarr_format, durable=False)) as writer:
                report = shifted(progress, "convert", done, total)
                with _opened(place, info) as run:
                    step = Step(
                        source=source,
                        number=number,
                        choice=choice,
                        chunk_size=chunk_size,
                        largest_chunk=largest,
                        digests=kinds,
                        verify=verify,
                        progress=report,
                        allow_changed_tensors=allow_changed_tensors,
                    )
                    info, _ = add_step(writer, run, info, step)
            done += source.total_nbytes()
            source.close()
        if is_packed and kind is Kind.ZIP:
            pack_zip(place, temporary)
        elif is_packed:
            pack_hdf5(place, temporary, choice)
    seconds = time.perf_counter() - start
    return Summary(
        len(paths),
        len(info.tensors),
        total,
        disk_size(target),
        seconds,
        left_out=left_out([source for _, source in checkpoints], target),
    )


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
    start = time.perf_counter()
    source = opened_source(src, to_store=True)
    target = Path(given_path(store, "run"))
    absolute_target(store, source.paths)
    told = step_of(source, src) if step is None else StepTold(step)
    recover_missing(target)
    if not os.path.lexists(target) or is_free_folder(target):
        if _kind_of(target, as_hdf5) is Kind.ZIP:
            raise ValueError(
                f"{target}: runs in ZIP files cannot grow: name a folder, or an HDF5 file"
            )
        try:
            summary = safetensors_to_run(
                [src],
                store,
                steps=[told.number],
                keyframe_every=DEFAULT_GROUP if keyframe_every is None else keyframe_every,
                codec=codec or DEFAULT_CODEC,
                level=level,
                chunk_size=chunk_size,
                threads=threads,
                zarr_format=3 if zarr_format is None else zarr_format,
                as_hdf5=as_hdf5,
                sha256=sha256,
                verify=verify,
                sync=sync,
                progress=progress,
            )
            return replace(summary, is_begun=True, step=told.number, step_by=told.by)
        except FileExistsError as e:
            text = "another process has begun it meanwhile: append again"
            raise FileExistsError(e.errno, text, str(target)) from e
    with (
        codec_threads(threads),
        target_errors(target),
        opened_to_change(target, "append to", durable=sync) as (writer, run, kind),
    ):
        info = run.run
        _check_order(run, told.number)
        choice = own_choice(target, info, codec, level, keyframe_every, zarr_format)
        _check_options(choice, info.group, chunk_size)
        report = shifted(progress, "convert", 0, source.total_nbytes())
        largest = MAX_HDF5_CHUNK if kind is Kind.HDF5 else None
        kinds = kinds_of(sha256)
        checkpoint = Step(
            source=source,
            number=told.number,
            choice=choice,
            chunk_size=chunk_size,
            largest_chunk=largest,
            digests=kinds,
            verify=verify,
            progress=report,
            allow_changed_tensors=allow_changed_tensors,
        )
        _, nbytes = add_step(writer, run, info, checkpoint)
        _interrupt.finish(f"{target}, with step {told.number}")
    tensors = sum(len(header.tensors) for header in source.headers)
    return Summary(
        len(source.headers),
        tensors,
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


def _kind_of(target: Path, as_hdf5: bool) -> Kind:
    if as_hdf5:
        return Kind.HDF5
    return Kind.ZIP if suffix_of(target.name)[1] is Kind.ZIP else Kind.FOLDER


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


def check_run_options(
    codec: str = DEFAULT_CODEC,
    level: str | int | None = None,
    keyframe_every: int = DEFAULT_GROUP,
    chunk_size: int = DEFAULT_STEP_SIZE,
    zarr_format: int = 3,
) -> CodecChoice:
    """Return what a new run is encoded with, by options as `safetensors_to_run` takes them.

    Raises
    ------
    ValueError, TypeError
        If one makes no sense.
    """
    choice = CodecChoice(codec, level)
    _check_options(choice, keyframe_every, chunk_size)
    if zarr_format not in (2, 3):
        raise ValueError(f"zarr_format must be 2 or 3, not {zarr_format!r}")
    return choice


def _check_options(choice: CodecChoice, group: int, chunk_size: int) -> None:
    if not 1 <= as_integer("keyframe_every", group) <= MAX_GROUP:
        raise ValueError(f"keyframe_every must be between 1 and {MAX_GROUP}, not {group}")
    if as_integer("chunk_size", chunk_size) < 1:
        raise ValueError(f"chunk_size must be positive, not {chunk_size}")
    choice.for_run("bfloat16", group)


def _check_order(run: RunReader, number: int) -> None:
    numbers = run.run.numbers
    if number in numbers:
        raise ValueError(f"{run.where}: has step {number} already")
    if numbers and number < numbers[-1]:
        raise ValueError(
            f"{run.where}: step {number} is before the last one, {numbers[-1]}: steps are appended"
            " in their order"
        )
