"""Runs: checkpoints over time in one store."""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from bf16codecs._lock import locked_folder
from bf16codecs._paths import given_path
from bf16codecs._threads import codec_threads
from bf16codecs.codecs import FrameCodec
from bf16codecs.convert.appending import add_step
from bf16codecs.convert.step_numbers import ordered_steps, step_of
from bf16codecs.convert.storing import DEFAULT_CODEC
from bf16codecs.convert.summary import Progress, Summary, shifted
from bf16codecs.convert.target import absolute_target, is_kind, new_target
from bf16codecs.errors import StoreError
from bf16codecs.safetensors import Source, open_source
from bf16codecs.store.choice import CodecChoice
from bf16codecs.store.opening import Kind, detect, open_run_store
from bf16codecs.store.run_layout import MAX_GROUP, RunInfo
from bf16codecs.store.run_writer import RunWriter
from bf16codecs.store.runs import RunReader
from bf16codecs.store.zarr_run_writer import ZarrRunWriter

__all__ = ["DEFAULT_GROUP", "DEFAULT_STEP_SIZE", "append_to_run", "safetensors_to_run"]

#: How many steps from one that is coded whole to the next.
DEFAULT_GROUP = 16
#: The largest size of one step in a chunk.
DEFAULT_STEP_SIZE = 1 << 22


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
    verify: bool = True,
    overwrite: bool = False,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Convert the checkpoints of a run to one store in Zarr, with the step as first axis.

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
    threads, zarr_format, verify, overwrite, sync, progress
        As for `safetensors_to_zarr`.

    Returns
    -------
    Summary

    Raises
    ------
    SafetensorsError
        If a source is damaged, two are of the same step, or one tells of none.
    StoreError
        If one has no tensor in common with those before it.
    FileExistsError
        If `store` exists and `overwrite` is false, or it is not a store.
    ValueError
        If an option makes no sense, or the target is or contains a source.
    """
    start = time.perf_counter()
    choice = CodecChoice(codec, level)
    _check_options(choice, keyframe_every, chunk_size, zarr_format)
    checkpoints = ordered_steps(sources, steps)
    if not checkpoints:
        raise ValueError("a run needs at least one checkpoint")
    paths = [path for _, source in checkpoints for path in source.paths]
    target = absolute_target(given_path(store, "target"), paths)
    as_zip = target.name.lower().endswith(".zip")
    may_replace = partial(is_kind, kind=Kind.ZIP if as_zip else Kind.FOLDER)
    total = sum(source.nbytes for _, source in checkpoints)
    done = 0
    with codec_threads(threads), new_target(target, overwrite, may_replace, sync) as temporary:
        folder = temporary.with_name("scratch") if as_zip else temporary
        folder.mkdir()
        info = _new_info(choice, keyframe_every)
        for number, source in checkpoints:
            report = shifted(progress, "convert", done, total)
            make = partial(ZarrRunWriter, folder, zarr_format, durable=False)
            info, _ = _add(folder, info, make, source, number, choice, chunk_size, verify, report)
            done += source.nbytes
        if as_zip:
            _pack(folder, temporary)
    return Summary(
        len(paths), len(info.tensors), total, _size_of(target), time.perf_counter() - start
    )


def append_to_run(
    src: str | os.PathLike[str],
    store: str | os.PathLike[str],
    step: int | None = None,
    *,
    keyframe_every: int = DEFAULT_GROUP,
    codec: str | None = None,
    level: str | int | None = None,
    chunk_size: int = DEFAULT_STEP_SIZE,
    threads: int | None = None,
    zarr_format: int = 3,
    verify: bool = True,
    sync: bool = True,
    progress: Progress | None = None,
) -> Summary:
    """Append a checkpoint to a run store in a Zarr folder, or begin one.

    What is older than the last group of steps is not touched. Whatever happens, the run is as
    before, or has the step.

    Parameters
    ----------
    src
        A safetensors file, a folder of shards, or their index.
    store
        The run. If nothing is there, it is made, with `keyframe_every` and `zarr_format`.
    step
        The number of the step, above that of the last one; by default the checkpoint's metadata or
        its name tell.
    codec, level
        By default those that the run was made with.
    keyframe_every, chunk_size, threads, zarr_format, verify, sync, progress
        As for `safetensors_to_run`.

    Returns
    -------
    Summary
        Of the step: its `stored_nbytes` is what was written.

    Raises
    ------
    SafetensorsError
        If the source is damaged, or nothing tells which step it is.
    StoreError
        If `store` is not a run in a folder, or the checkpoint is not of it.
    ValueError
        If the step is not after the last one, or another option makes no sense.
    BlockingIOError
        If another process is appending to the run.
    """
    start = time.perf_counter()
    source = open_source(src)
    number = step_of(source, src) if step is None else step
    target = Path(given_path(store, "run"))
    absolute_target(target, source.paths)
    if not target.exists():
        return safetensors_to_run(
            [src],
            store,
            steps=[number],
            keyframe_every=keyframe_every,
            codec=codec or DEFAULT_CODEC,
            level=level,
            chunk_size=chunk_size,
            threads=threads,
            zarr_format=zarr_format,
            verify=verify,
            sync=sync,
            progress=progress,
        )
    if detect(target) is not Kind.FOLDER:
        raise StoreError(f"{target}: not a run in a Zarr folder, to which alone steps are appended")
    with codec_threads(threads), locked_folder(target), closing(open_run_store(target)) as run:
        info = run.run
        _check_order(run, number)
        choice = _choice_of(info, codec, level)
        _check_options(choice, info.group, chunk_size, run.zarr_format)
        make = partial(ZarrRunWriter, target, run.zarr_format, durable=sync)
        report = shifted(progress, "convert", 0, source.nbytes)
        info, nbytes = _add(target, info, make, source, number, choice, chunk_size, verify, report)
    tensors = sum(len(file.header.tensors) for file in source.files)
    return Summary(len(source.files), tensors, source.nbytes, nbytes, time.perf_counter() - start)


def _add(
    folder: Path,
    info: RunInfo,
    make: Callable[[Callable[[str], FrameCodec]], RunWriter],
    source: Source,
    number: int,
    choice: CodecChoice,
    chunk_size: int,
    verify: bool,
    progress: Callable[[int, int], None] | None,
) -> tuple[RunInfo, int]:
    """Add a step to the run in a folder; leave it as it was after an error."""
    with _opened(folder, info) as run:
        writer = make(partial(choice.for_run, group=info.group))
        with closing(writer):
            try:
                return add_step(
                    writer, run, info, source, number, choice, chunk_size, verify, progress
                )
            except BaseException:
                writer.abandon()
                raise


@contextmanager
def _opened(folder: Path, info: RunInfo) -> Iterator[RunReader | None]:
    if not info.steps:
        yield None
        return
    with closing(open_run_store(folder)) as run:
        yield run


def _new_info(choice: CodecChoice, group: int) -> RunInfo:
    codec = choice.for_run("bfloat16", group)
    return RunInfo(group, codec={"name": codec["name"], "configuration": codec["configuration"]})


def _choice_of(info: RunInfo, codec: str | None, level: str | int | None) -> CodecChoice:
    """Return what was asked for, or what the run was made with."""
    if codec is not None or level is not None:
        return CodecChoice(codec or DEFAULT_CODEC, level)
    name = str(info.codec.get("name", "")).removeprefix("bf16codecs.") or DEFAULT_CODEC
    made = dict(info.codec.get("configuration") or {})
    return CodecChoice(name, made.get("level"))


def _check_options(choice: CodecChoice, group: int, chunk_size: int, zarr_format: int) -> None:
    if not 1 <= group <= MAX_GROUP:
        raise ValueError(f"keyframe_every must be between 1 and {MAX_GROUP}, not {group}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be positive, not {chunk_size}")
    if zarr_format not in (2, 3):
        raise ValueError(f"zarr_format must be 2 or 3, not {zarr_format!r}")
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


def _pack(folder: Path, target: Path) -> None:
    """Write a folder's files as the uncompressed members of a ZIP file, and remove it."""
    with zipfile.ZipFile(target, "x", zipfile.ZIP_STORED) as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            # With a date that is always the same, equal stores make equal files.
            member = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            member.file_size = path.stat().st_size
            member.external_attr = 0o644 << 16
            with archive.open(member, "w") as out, open(path, "rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
    shutil.rmtree(folder)


def _size_of(store: Path) -> int:
    if store.is_file():
        return store.stat().st_size
    return sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
