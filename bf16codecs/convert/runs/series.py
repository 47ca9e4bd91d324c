"""Make runs of checkpoints, and append to them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bf16codecs._base import interrupt as _interrupt
from bf16codecs._base.arguments import argument
from bf16codecs._base.cluster import current_cluster
from bf16codecs._base.names import PREFIX
from bf16codecs._base.paths import given_path
from bf16codecs._base.threads import codec_threads
from bf16codecs._files.publish import recover_missing
from bf16codecs._files.reading import disk_size
from bf16codecs.convert.checks import check_unchanged
from bf16codecs.convert.new_store import is_object_address, object_address, options_of_target
from bf16codecs.convert.options import RunOptions
from bf16codecs.convert.runs.appending import add_step
from bf16codecs.convert.runs.encoding import NewStep
from bf16codecs.convert.runs.members import check_series, refuse_published
from bf16codecs.convert.runs.packing import pack_hdf5, pack_zip
from bf16codecs.convert.runs.step_numbers import StepNumber, ordered_steps, step_of
from bf16codecs.convert.sources import check_used, left_out, opened_source
from bf16codecs.convert.summary import Progress, Summary, shifted
from bf16codecs.convert.target import (
    absolute_target,
    check_store_name,
    is_free_folder,
    new_target,
    other_than_store,
    target_errors,
)
from bf16codecs.convert.workers import Shared, sharing
from bf16codecs.errors import StoreError
from bf16codecs.store.choice import (
    DEFAULT_CODEC,
    DEFAULT_GROUP,
    DEFAULT_STEP_SIZE,
    MAX_HDF5_CHUNK,
    CodecChoice,
)
from bf16codecs.store.kinds import Kind, detect_given
from bf16codecs.store.opening import open_run_store
from bf16codecs.store.reader import ModelReader
from bf16codecs.store.runs.layout import RunInfo
from bf16codecs.store.runs.reader import RunReader
from bf16codecs.store.runs.writer import RunWriter
from bf16codecs.store.zarr.append import ZarrRunWriter

__all__ = [
    "append_to_run",
    "choice_of_run",
    "new_info",
    "opened_to_change",
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
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Convert the checkpoints of a run to one store, with the step as first axis.

    Parameters
    ----------
    sources
        Safetensors files, folders of shards, their indexes, or the addresses of these, in any
        order.
    store
        The store to make: a folder, a ZIP file if the name ends in ``.zip``, or the address of a
        folder in an object store; the run is then made in a temporary folder, and uploaded. It
        appears only when it is complete.
    steps
        Numbers of the sources' steps; by default found in their metadata or names.
    keyframe_every
        Number of steps from one that is coded whole to the next. A smaller number makes a larger
        run that is faster to read.
    codec, level
        ``"arithmetic"`` (``"fast"`` or ``"best"``) or ``"huffman"``.
    chunk_size
        Largest size of one step in a chunk, in bytes.
    as_hdf5
        Make an HDF5 file.
    allow_changed_tensors
        Let tensors have another dtype or shape than in the steps before. Over time, such a tensor
        is read in parts, each named after its first step; a `TensorChangeWarning` says so.
    threads, zarr_format, sha256, verify, overwrite, sync, storage_options, target_options, progress
        As for `safetensors_to_zarr`; in an object store, no run is replaced.

    Returns
    -------
    Summary

    Raises
    ------
    SafetensorsError
        If a source is damaged, if two have the same step, or if a step is not certain.
    StoreError
        If a source has no tensor in common with those before it, or has changed tensors.
    FileExistsError
        If `store` exists and `overwrite` is false, or it is not a store.
    ValueError
        If an option is invalid, or the target is or contains a source.
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
        target_options=_of_target(store, target_options, storage_options, sources),
        progress=progress,
    )
    check_used(storage_options, [*sources, store])
    return _new_run(ordered_steps(sources, steps, storage_options), store, options)


def _new_run(
    checkpoints: Sequence[tuple[int, ModelReader]],
    store: str | os.PathLike[str],
    options: RunOptions,
) -> Summary:
    """Make a run of checkpoints, which are ordered by step."""
    start = time.perf_counter()
    if not checkpoints:
        raise ValueError("a run needs at least one checkpoint")
    text = given_path(store, "target")
    if is_object_address(text):
        return _new_remote(checkpoints, text, options, start)
    paths = [path for _, source in checkpoints for path in source.paths]
    target = absolute_target(text, paths)
    kind, choice = options.kind_of(target), options.choice
    check_store_name(store, target, kind)
    check_series(checkpoints, options.allow_changed_tensors)
    obstacle, as_folder = partial(other_than_store, kind=kind), kind is Kind.FOLDER
    with (
        codec_threads(options.threads),
        new_target(target, options.overwrite, obstacle, options.sync, as_folder) as temporary,
    ):
        # Appending is cheap in folders alone: other kinds are made from one.
        is_packed = kind is Kind.ZIP or (kind is Kind.HDF5 and len(checkpoints) > 1)
        path = temporary.with_name("scratch") if is_packed else temporary
        info = _write_steps(path, Kind.FOLDER if is_packed else kind, kind, checkpoints, options)
        if is_packed and kind is Kind.ZIP:
            pack_zip(path, temporary)
        elif is_packed:
            pack_hdf5(path, temporary, choice)
    return _summary(checkpoints, info, target, disk_size(target), start)


def _new_remote(
    checkpoints: Sequence[tuple[int, ModelReader]], text: str, options: RunOptions, start: float
) -> Summary:
    """Make a run on the disk, since steps grow there, and upload it."""
    # zarr and obstore are imported only for addresses.
    from bf16codecs.convert.new_remote import new_remote
    from bf16codecs.convert.runs.remote import upload_run

    sources = [source for _, source in checkpoints]
    address = object_address(text, Kind.HDF5 if options.as_hdf5 else Kind.FOLDER, sources, options)
    check_series(checkpoints, options.allow_changed_tensors)
    with (
        codec_threads(options.threads),
        new_remote(address, options, is_run=True) as new,
        TemporaryDirectory() as scratch,
    ):
        path = Path(scratch, "run")
        info = _write_steps(path, Kind.FOLDER, Kind.FOLDER, checkpoints, options)
        report = options.progress and partial(options.progress, "upload")
        nbytes = upload_run(path, new, options.verify, report)
    return _summary(checkpoints, info, address, nbytes, start)


def _summary(
    checkpoints: Sequence[tuple[int, ModelReader]],
    info: RunInfo,
    target: Path | str,
    stored_nbytes: int,
    start: float,
) -> Summary:
    sources = [source for _, source in checkpoints]
    return Summary(
        sum(len(source.headers) for source in sources),
        len(info.tensors),
        sum(source.total_nbytes() for source in sources),
        stored_nbytes,
        time.perf_counter() - start,
        left_out=left_out(sources, target),
    )


def _write_steps(
    path: Path,
    kind: Kind,
    target_kind: Kind,
    checkpoints: Sequence[tuple[int, ModelReader]],
    options: RunOptions,
) -> RunInfo:
    """Write a run that may be packed into one of another kind, and return its attributes."""
    if kind is Kind.FOLDER:
        path.mkdir()
    info = new_info(options.choice, options.keyframe_every)
    done, total = 0, sum(source.total_nbytes() for _, source in checkpoints)
    # Workers need not see the run, which may lie on this machine's disk until it is uploaded.
    cluster, earlier, before = current_cluster(), dict[int, Shared](), dict[int, Any]()
    with ExitStack() as shared_sources:
        for number, source in checkpoints:
            report = shifted(options.progress, "convert", done, total)
            step = NewStep(source, number, options, _largest_chunk(target_kind), report, earlier)
            with (
                closing(_writer(path, kind, options.zarr_format, durable=False)) as writer,
                _opened(path, info) as run,
            ):
                info, _ = add_step(writer, run, info, step)
            if cluster is not None:
                (opened,) = shared_sources.enter_context(sharing(cluster, source))
                assert opened is not None
                earlier[number], before[number] = opened, source.opened_state()
            done += source.total_nbytes()
            source.close()
    for number, source in checkpoints:
        if number in before:
            check_unchanged(source, before[number])
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
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Append a checkpoint to a run, in a Zarr folder or an HDF5 file, or begin a run.

    Chunks before the last group of steps are not touched. After an error or a crash, the run is as
    before, or has the step. In an object store, each chunk of the last group is read and replaced.

    Parameters
    ----------
    src
        A safetensors file, a folder of shards, their index, or the address of one of these.
    store
        The run, at a path or at the address of a folder in an object store. It is made if nothing
        is there, as an HDF5 file if `as_hdf5` is true.
    step
        Number of the step, above that of the last one; by default found in the checkpoint's
        metadata, or in its name, behind a word: ``step-600``, ``checkpoint-600``.
    codec, level, keyframe_every, zarr_format
        As for `safetensors_to_run`, for a new run. For an existing run, values other than its own
        are refused.
    chunk_size, threads, as_hdf5, sha256, verify, sync, allow_changed_tensors, storage_options,
    target_options, progress
        As for `safetensors_to_run`.

    Returns
    -------
    Summary
        Summary of the step: `stored_nbytes` is what the run has grown by, `step` the number, and
        `step_by` its origin. `is_begun` is true if the run is new.

    Raises
    ------
    SafetensorsError
        If the source is damaged, or its step is not certain.
    StoreError
        If `store` is not a run that can grow, or the checkpoint does not belong to it, or has
        tensors of other dtypes or shapes.
    ValueError
        If the step is not after the last one, or another option is invalid, or differs from the
        run's.
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
        target_options=_of_target(store, target_options, storage_options, [src]),
        progress=progress,
    )
    check_used(storage_options, [src, store])
    with closing(opened_source(src, to_store=True, options=storage_options)) as source:
        text, wanted = given_path(store, "run"), (codec, level, keyframe_every, zarr_format)
        find_number = partial(step_of, source, src) if step is None else partial(StepNumber, step)
        target: Path | str = text
        if is_object_address(text):
            target = object_address(text, Kind.FOLDER, [source], options)
            change = _opened_at(target, options)
        else:
            target = Path(text)
            absolute_target(store, source.paths)
            change = _opened_if_there(target, options)
        if change is not None:
            return _append(source, find_number, target, options, wanted, change)
        number = find_number()
        options = replace(
            options,
            keyframe_every=DEFAULT_GROUP if keyframe_every is None else keyframe_every,
            codec=codec or DEFAULT_CODEC,
            level=level,
            zarr_format=3 if zarr_format is None else zarr_format,
        )
        if isinstance(target, Path) and options.kind_of(target) is Kind.ZIP:
            raise ValueError(
                f"{target}: runs in ZIP files cannot grow: name a folder, or an HDF5 file"
            )
        try:
            summary = _new_run([(number.value, source)], store, options)
        except FileExistsError as e:
            if isinstance(target, str):
                raise
            text = "another process has begun it meanwhile: append again"
            raise FileExistsError(e.errno, text, str(target)) from e
        return replace(summary, is_begun=True, step=number.value, step_by=number.origin)


def _append(
    source: ModelReader,
    find_number: Callable[[], StepNumber],
    target: Path | str,
    options: RunOptions,
    wanted: tuple[str | None, str | int | None, int | None, int | None],
    change: AbstractContextManager[tuple[RunWriter, RunReader, Kind]],
) -> Summary:
    """Append a step to an existing run, which `change` opens.

    `wanted` has the options that `choice_of_run` compares.
    """
    start = time.perf_counter()
    with codec_threads(options.threads), change as (writer, run, kind):
        # Not before: without a run to append to, advice about the number would not help.
        info, number = run.run, find_number()
        _check_order(run, number.value)
        stored_format = run.stored.zarr_format or None
        choice = choice_of_run(str(target), info, *wanted, stored_format=stored_format)
        options = replace(options, keyframe_every=info.group, codec=choice.name, level=choice.level)
        report = shifted(options.progress, "convert", 0, source.total_nbytes())
        step = NewStep(source, number.value, options, _largest_chunk(kind), report)
        _, nbytes = add_step(writer, run, info, step)
        _interrupt.finish(f"{target}, with step {number.value}")
    return Summary(
        len(source.headers),
        sum(len(header.entries) for header in source.headers),
        source.total_nbytes(),
        nbytes,
        time.perf_counter() - start,
        step=number.value,
        step_by=number.origin,
        left_out=left_out([source], target),
    )


def _of_target(
    store: str | os.PathLike[str],
    given: Mapping[str, Any] | None,
    others: Mapping[str, Any] | None,
    sources: Iterable[str | os.PathLike[str]],
) -> Mapping[str, Any] | None:
    text = given_path(store, "target")
    target = text if is_object_address(text) else Path(text)
    if given and isinstance(target, Path):
        name = argument("target_options")
        raise ValueError(f"{name} are for addresses: {text} is a path")
    return options_of_target(target, given, others, [os.fspath(source) for source in sources])


def _opened_at(
    url: str, options: RunOptions
) -> AbstractContextManager[tuple[RunWriter, RunReader, Kind]] | None:
    """Return what opens the run at an address, to append to it; None if nothing is there."""
    from bf16codecs.convert.runs.remote import opened_remote, run_at

    found = run_at(url, options.target_options)
    return None if found is None else opened_remote(*found, "append to")


def _opened_if_there(
    target: Path, options: RunOptions
) -> AbstractContextManager[tuple[RunWriter, RunReader, Kind]] | None:
    """Return what opens the run at a path, to append to it; None if nothing is there."""
    recover_missing(target)
    if not os.path.lexists(target) or is_free_folder(target):
        return None
    return _opened_path(target, options)


@contextmanager
def _opened_path(target: Path, options: RunOptions) -> Iterator[tuple[RunWriter, RunReader, Kind]]:
    with (
        target_errors(target),
        opened_to_change(target, "append to", durable=options.sync) as opened,
    ):
        yield opened


@contextmanager
def opened_to_change(
    target: Path, verb: str, durable: bool, advice: str | None = None
) -> Iterator[tuple[RunWriter, RunReader, Kind]]:
    """Open a run to change its steps; yield its writer, its reader, and its kind.

    In messages, `verb` is the change ("append to"), and `advice` what to do with one model.
    `durable` flushes all writes to the disk. Raises StoreError if it is not a run that can change;
    BlockingIOError if another process is changing it.
    """
    kind = detect_given(target)
    if kind not in (Kind.FOLDER, Kind.HDF5):
        rule = "only Zarr folders and HDF5 files can gain or lose steps"
        if kind is Kind.ZIP:
            advice = f"unzip it into a folder, such as {target.stem}, and {verb} that"
            raise StoreError(f"{target}: {kind.value}, but {rule}: {advice}")
        what = "and not a store" if kind is None else f"but {kind.value}"
        raise StoreError(f"{target}: not a run, {what}: {rule}")
    if kind is Kind.FOLDER:
        # Do not lock a folder that is not a run.
        with closing(open_run_store(target, advice=advice)) as run:
            refuse_published(run)
    # The writer has the lock: no other process changes the run after the reader has opened it.
    with (
        closing(_writer(target, kind, _format_of(target), durable)) as writer,
        closing(open_run_store(target, advice=advice)) as run,
    ):
        yield writer, run, kind


def _format_of(target: Path) -> int:
    return 3 if (target / "zarr.json").exists() else 2


def _writer(path: Path, kind: Kind, zarr_format: int, durable: bool) -> RunWriter:
    if kind is not Kind.HDF5:
        return ZarrRunWriter(path, zarr_format, durable)
    # Imported here: h5py is slow to import.
    from bf16codecs.store.hdf5.append import Hdf5RunWriter

    return Hdf5RunWriter(path, durable)


@contextmanager
def _opened(path: Path, info: RunInfo) -> Iterator[RunReader | None]:
    if not info.steps:
        yield None
        return
    with closing(open_run_store(path)) as run:
        yield run


def new_info(choice: CodecChoice, group: int) -> RunInfo:
    """Return the attributes of a run without steps."""
    codec = choice.for_run("bfloat16", group)
    return RunInfo(group, codec={"name": codec["name"], "configuration": codec["configuration"]})


def choice_of_run(
    target: str,
    info: RunInfo,
    codec: str | None = None,
    level: str | int | None = None,
    keyframe_every: int | None = None,
    zarr_format: int | None = None,
    stored_format: int | None = None,
) -> CodecChoice:
    """Return a run's codec; raise ValueError if an option, unless None, differs from the run's.

    `stored_format` is the Zarr format of the run; None if it is an HDF5 file.
    """
    name = str(info.codec.get("name", "")).removeprefix(PREFIX) or DEFAULT_CODEC
    configuration = dict(info.codec.get("configuration") or {})
    choice = CodecChoice(name, configuration.get("level"))
    options = {
        "codec": (codec, choice.name),
        "level": (level, choice.level),
        "keyframe_every": (keyframe_every, info.group),
        "zarr_format": (zarr_format, stored_format),
    }
    for option, (wanted, value) in options.items():
        if wanted is not None and wanted != value:
            raise ValueError(
                f"{target}: was made with {argument(option)} {value}, which all of its steps have,"
                f" not {wanted}"
            )
    return choice


def _check_order(run: RunReader, number: int) -> None:
    numbers = run.run.numbers
    if number in numbers:
        raise ValueError(
            f"{run.where}: has step {number} already: append one after {numbers[-1]}, the last"
            f" ({argument('step')})"
        )
    if numbers and number < numbers[-1]:
        raise ValueError(
            f"{run.where}: step {number} is before the last one, {numbers[-1]}: steps are appended"
            " in their order"
        )
