"""The commands that convert: `st2zarr`, `zarr2st`, `st2h5` and `h52st`."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bf16codecs import convert as conversions
from bf16codecs._base.messages import counted, few
from bf16codecs._base.tables import format_size, printable
from bf16codecs.cli.console import progress_bar, say, show, show_json
from bf16codecs.cli.options import (
    Command,
    Decorator,
    WholeNumber,
    add_options,
    base_option,
    command,
    conversion_options,
    dask_option,
    drop_options,
    is_source,
    is_store,
    json_option,
    max_bytes_option,
    on_dask,
    overwrite_option,
    paths_argument,
    quiet_option,
    storage_option,
    sync_option,
    target_option,
    threads_option,
    version_option,
)
from bf16codecs.cli.reports import report
from bf16codecs.cli.runs import STEP, Job, run_job, run_options, step_options
from bf16codecs.errors import ManyFilesWarning, TensorChangeWarning

if TYPE_CHECKING:
    from bf16codecs.convert import Summary

__all__ = [
    "drop_steps",
    "h52st",
    "orbax",
    "rebase",
    "st2h5",
    "st2zarr",
    "undo_append",
    "zarr2st",
    "zarr_format_option",
]

zarr_format_option = click.option(
    "--zarr-format",
    type=click.Choice(["3", "2"]),
    default="3",
    show_default=True,
    help="Version of the Zarr format.",
)


def _run(
    convert: Callable[..., Summary],
    source: Any,
    target: str,
    done: str,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    if target == "-":  # other programs take it for standard output
        what = "files are restored" if done == "restored" else "stores are made"
        raise click.UsageError(f"-: {what} at a path, not on standard output (./- is a path)")
    if quiet:  # until the command ends
        warnings.simplefilter("ignore", ManyFilesWarning)
        warnings.simplefilter("ignore", TensorChangeWarning)
    with progress_bar(quiet) as progress:
        summary = convert(source, target, progress=progress, **options)
    if as_json or not quiet:
        done = "begun" if summary.is_begun else done
        verified = options.get("verify", True)  # restoring always checks the digests
        report(source, target, summary, done, verified=verified, as_json=as_json)


@click.command(cls=Command)
@paths_argument("STORE")
@conversion_options()
@run_options
@target_option
@zarr_format_option
@dask_option
@version_option
@command
@on_dask
def st2zarr(
    paths: tuple[tuple[str, ...], str],
    zarr_format: str,
    lossy: str | None,
    **options: Any,
) -> None:
    """Convert SRC to a Zarr store.

    SRC is a .safetensors file, a folder of shards, a *.safetensors.index.json, or the address of
    one; or a file of PyTorch or GGUF, or a checkpoint folder of torch.distributed. STORE is a
    folder, a ZIP file if its name ends in .zip, or a folder in an object store (s3://, gs://,
    az://).

    With --series, SRC are the checkpoints of a run, and the first axis of each tensor in STORE is
    the step. With --append, SRC becomes another step of such a store.

    With --lossy, FP32 tensors are rounded to half precision: zarr2st does not restore SRC, and
    says so.
    """
    if lossy is not None and options["base"] is not None:
        raise click.UsageError("--lossy excludes --base and --dask")
    options["zarr_format"] = int(zarr_format)
    src, store = paths
    job = run_job(src, options, {"--lossy": lossy})
    convert = conversions.safetensors_to_zarr
    if lossy is not None:
        convert = functools.partial(convert, lossy=lossy)
    _store(job, convert, src, store, options)


def _store(
    job: Job,
    convert: Callable[..., Summary],
    src: tuple[str, ...],
    target: str,
    options: dict[str, Any],
) -> None:
    """Make a store of one model with `convert`, or make a run, or append to one."""
    if job is Job.SERIES:
        _run(conversions.safetensors_to_run, src, target, "converted", **options)
    elif job is Job.APPEND:
        _run(conversions.append_to_run, src[0], target, "appended", **options)
    else:
        _run(convert, src[0], target, "converted", **options)


to_option = click.option(
    "--to",
    type=click.Choice(["safetensors"]),
    help="Make a safetensors file of a model that was another kind of file.",
)


def _restoring_arguments(store: str) -> Decorator:
    """Add the arguments `store` and `dst`, and say what is missing as st2zarr does."""

    def check(ctx: click.Context, param: click.Parameter, dst: str | None) -> str:
        if dst is None:
            given = ctx.params[store]
            raise click.UsageError(f"Missing argument 'DST': where to restore {given} to.")
        return dst

    return add_options(
        click.argument(store),
        click.argument("dst", required=False, metavar="DST", callback=check),
    )


@click.command(cls=Command)
@_restoring_arguments("store")
@base_option
@storage_option
@threads_option
@max_bytes_option
@overwrite_option
@sync_option
@quiet_option
@json_option
@to_option
@step_options
@dask_option
@version_option
@command
@on_dask
def zarr2st(store: str, dst: str, step: int | None, all_steps: bool, **options: Any) -> None:
    """Restore the original file or files of STORE, byte for byte.

    A lossy store does not restore the original FP32 numbers: the loss is reported.

    DST is the file to make, or a folder if STORE holds several files or an index. For a run, choose
    a step with --step; with --all, DST is a folder for all steps.
    """
    _restore(conversions.zarr_to_safetensors, store, dst, step, all_steps, options)


def _restore(
    convert: Callable[..., Summary],
    store: str,
    dst: str,
    step: int | None,
    all_steps: bool,
    options: dict[str, Any],
) -> None:
    from bf16codecs.store.kinds import Kind, suffix_of
    from bf16codecs.store.opening import split_step

    makes_store = suffix_of(store)[1] not in (None, Kind.SAFETENSORS)
    is_missing = not (makes_store or os.path.lexists(store))
    if (is_missing or is_source(store)) and is_store(dst):
        raise click.UsageError(f"{dst} is the store: put it before {store}.")
    if (step is not None or all_steps) and split_step(store)[1] is not None:
        raise click.UsageError(f"{store} is already one step: leave out --step and --all")
    if all_steps:
        others = step, options.pop("base"), options.pop("to")
        if any(option is not None for option in others):
            raise click.UsageError(
                "--all restores every step of a run: leave out --step, --base and --to"
            )
        convert = conversions.run_to_safetensors
    elif step is not None:
        convert = functools.partial(convert, step=step)
    _run(convert, store, dst, "restored", **options)


@click.command(cls=Command)
@paths_argument("FILE")
@conversion_options(with_lossy=False)
@run_options
@dask_option
@version_option
@command
@on_dask
def st2h5(paths: tuple[tuple[str, ...], str], lossy: str | None, **options: Any) -> None:
    """Convert SRC to an HDF5 file.

    SRC is a .safetensors file, a folder of shards, a *.safetensors.index.json, or the address of
    one; or a file of PyTorch or GGUF, or a checkpoint folder of torch.distributed.

    With --series, SRC are the checkpoints of a run, and the first axis of each tensor in FILE is
    the step. With --append, SRC becomes another step of such a file.
    """
    if lossy is not None:
        raise click.UsageError("lossy stores are Zarr stores: use st2zarr --lossy")
    src, file = paths
    job = run_job(src, options, {})
    if job is not Job.MODEL:
        options["as_hdf5"] = True
    _store(job, conversions.safetensors_to_hdf5, src, file, options)


@click.command(cls=Command)
@_restoring_arguments("file")
@base_option
@storage_option
@threads_option
@max_bytes_option
@overwrite_option
@sync_option
@quiet_option
@json_option
@to_option
@step_options
@dask_option
@version_option
@command
@on_dask
def h52st(file: str, dst: str, step: int | None, all_steps: bool, **options: Any) -> None:
    """Restore the original safetensors file or files of an HDF5 FILE, byte for byte.

    DST is the file to make, or a folder if FILE holds several files or an index. For a run, choose
    a step with --step; with --all, DST is a folder for all steps.
    """
    _restore(conversions.hdf5_to_safetensors, file, dst, step, all_steps, options)


@click.command(cls=Command)
@click.argument("store")
@click.option(
    "--onto",
    metavar="MODEL",
    help="The new base: a store of any kind, or safetensors; auto:DIR takes the best in DIR."
    "  [default: none, the store depends on no other]",
)
@base_option
@storage_option
@threads_option
@max_bytes_option
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Read the finished store again and compare.",
)
@sync_option
@quiet_option
@json_option
@dask_option
@command
@on_dask
def rebase(store: str, onto: str | None, **options: Any) -> None:
    """Rewrite STORE so that it needs no base, or another one.

    It keeps its codec, and is replaced atomically. If it already is as requested, it stays
    unchanged.
    """
    quiet, as_json = options.pop("quiet"), options.pop("as_json")
    with progress_bar(quiet) as progress:
        summary = conversions.rebase_store(store, onto, progress=progress, **options)
    done, verified = "whole" if onto is None else "rewritten", options["verify"]
    if summary.is_unchanged:
        done, verified = "unchanged", False
    if summary.is_unchanged and not (quiet or as_json):
        state = "whole" if onto is None else f"based on {printable(onto)}"
        show(f"{printable(store)}: already {state}, left unchanged")
    elif as_json or not quiet:
        report(store, store, summary, done, verified=verified, as_json=as_json)


@click.command("undo-append", cls=Command)
@click.argument("run")
@click.option(
    "--step",
    type=STEP,
    help="Number of the last step, so that a repeated call removes no other.  [default: any]",
)
@storage_option
@sync_option
@quiet_option
@json_option
@command
def undo_append(
    run: str,
    step: int | None,
    storage_options: dict[str, Any] | None,
    sync: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Remove the last step of RUN, as if it had not been appended.

    RUN is a Zarr folder, its address in an object store, or an HDF5 file. After an error or a
    crash, it is as before, or without the step. A removed step cannot be recovered. The only step
    of a run cannot be removed: remove RUN itself.
    """
    from bf16codecs.store.runs.layout import listed

    undone = conversions.undo_append(run, step, sync=sync, storage_options=storage_options)
    if as_json:
        show_json({"target": run, "done": "removed", **asdict(undone)})
    elif not quiet:
        say(
            f"{printable(run)}: removed step {undone.step} ({counted(undone.tensors, 'tensor')},"
            f" {format_size(undone.nbytes)}: {printable(few(undone.files, 3))}); remaining steps:"
            f" {listed(undone.steps)}"
        )


@click.command("drop-steps", cls=Command)
@click.argument("run")
@click.option(
    "--keep-last",
    type=WholeNumber(1, 2**31),
    required=True,
    metavar="N",
    help="Keep at least the last N steps.",
)
@storage_option
@sync_option
@quiet_option
@json_option
@command
def drop_steps(
    run: str,
    keep_last: int,
    storage_options: dict[str, Any] | None,
    sync: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Drop the early steps of RUN, which a training job publishes.

    RUN is the folder that bf16codecs.torch.publish writes, or its address in an object store. Steps
    are dropped in groups, from one that is whole up to the next; no other step is read or written.
    """
    from bf16codecs.store.runs.layout import listed

    found = conversions.drop_steps(run, keep_last, sync=sync, storage_options=storage_options)
    if as_json:
        show_json({"target": run, "done": "dropped", **asdict(found)})
    elif not quiet:
        if found.dropped:
            what = f"dropped steps: {listed(found.dropped)} ({format_size(found.nbytes)})"
        else:
            what = f"dropped no steps, since groups of {found.group} are dropped together"
        say(f"{printable(run)}: {what}; remaining steps: {listed(found.steps)}")


# Options of conversions to a store alone.
_TO_STORE = ("codec", "level", "chunk_size", "sha256", "zarr_format", "lossy")


@click.command(cls=Command)
@click.argument("src")
@click.argument("dst")
@conversion_options(with_lossy=False)
@zarr_format_option
@max_bytes_option
@command
def orbax(src: str, dst: str, **options: Any) -> None:
    """Convert an Orbax checkpoint to a Zarr store, or such a store back to a checkpoint.

    SRC is the folder of a checkpoint of one step, and DST the store to make. Or SRC is such a
    store, and DST the folder to make, from which Orbax restores the same tree with the same bits;
    --base then is the location of the store's base, and options of codecs and chunks are refused.
    """
    from bf16codecs.convert.orbax import orbax_to_zarr, zarr_to_orbax
    from bf16codecs.convert.orbax.converting import is_to_convert

    if not is_to_convert(src, dst):
        drop_options(options, _TO_STORE, "has no effect when a checkpoint is restored")
        _run(zarr_to_orbax, src, dst, "restored", **options)
        return
    if options.pop("lossy") is not None:
        raise click.UsageError("lossy stores are made from safetensors: use st2zarr --lossy")
    options["zarr_format"] = int(options["zarr_format"])
    _run(orbax_to_zarr, src, dst, "converted", **options)
