"""The command `pack-hf`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import click

from bf16codecs import convert as conversions
from bf16codecs._base.messages import counted, few
from bf16codecs._base.tables import printable
from bf16codecs.cli.console import progress_bar, say
from bf16codecs.cli.options import (
    Command,
    command,
    conversion_options,
    dask_option,
    drop_options,
    max_bytes_option,
    on_dask,
    storage_option,
)
from bf16codecs.cli.reports import report
from bf16codecs.errors import ManyFilesWarning

if TYPE_CHECKING:
    from bf16codecs.convert import FolderSummary

__all__ = ["pack_hf"]

#: Options that only one of the two directions has.
_PACKING = ("codec", "level", "chunk_size", "sha256", "storage_options")
_RESTORING = ("max_bytes",)


@click.command("pack-hf", cls=Command)
@click.argument("folder", metavar="DIR")
@click.argument("out")
@click.option("--restore", is_flag=True, help="Restore the packed folder DIR to OUT.")
@conversion_options(with_lossy=False, with_base=False)
@max_bytes_option
@storage_option
@dask_option
@command
@on_dask
def pack_hf(folder: str, out: str, restore: bool, lossy: str | None, **options: Any) -> None:
    """Pack the folder DIR of a Hugging Face model, with its weights in Zarr stores.

    OUT is a folder, or its address in an object store. It gets a copy of every file, but stores
    instead of *.safetensors and their indexes: model.zarr instead of model.safetensors. With
    --restore, OUT gets every file of the original, byte for byte; with --no-verify, files that were
    changed since packing are restored as changed.
    """
    if lossy is not None:
        raise click.UsageError("--lossy does not go with pack-hf, which restores the original")
    if restore:
        drop_options(options, _PACKING, "does not go with --restore")
    else:
        drop_options(options, _RESTORING, "goes with --restore")
    quiet, as_json = options.pop("quiet"), options.pop("as_json")
    if quiet:  # until the command ends
        warnings.simplefilter("ignore", ManyFilesWarning)
    work = conversions.unpack_hugging_face if restore else conversions.pack_hugging_face
    with progress_bar(quiet) as progress:
        summary = work(folder, out, progress=progress, **options)
    if quiet and not as_json:
        return
    done, verified = ("restored", True) if restore else ("converted", options["verify"])
    lists = {name: list(getattr(summary, name)) for name in ("stores", "kept", "changed")}
    more = {**lists, "apart": dict(summary.apart)}
    report(folder, out, summary, done, verified=verified, as_json=as_json, more=more)
    if not as_json:
        (_show_changed if restore else _show_packed)(summary)


def _show_packed(summary: FolderSummary) -> None:
    """Print the stores, and the files that were copied."""
    stores, kept = few(summary.stores, 4), counted(len(summary.kept), "file")
    say(printable(f"{counted(len(summary.stores), 'store')}: {stores}; {kept} copied"))
    for index, reason in summary.apart.items():
        say(printable(f"{index}: {reason}"))
    if summary.other_weights:
        names = few(summary.other_weights, 4)
        say(printable(f"not packed, since only safetensors are: {names}"))


def _show_changed(summary: FolderSummary) -> None:
    """Print the files that were changed after packing."""
    if summary.changed:
        names = few(summary.changed, 4)
        say(printable(f"changed since packing, and restored as changed: {names}"))
