"""The command `pack-hf`."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import click

from bf16codecs import convert as conversions
from bf16codecs._base.messages import counted, few
from bf16codecs.cli.console import printable, progress_bar, say
from bf16codecs.cli.options import (
    Command,
    command,
    conversion_options,
    drop_options,
    max_bytes_option,
)
from bf16codecs.cli.reports import report
from bf16codecs.errors import ManyFilesWarning

if TYPE_CHECKING:
    from bf16codecs.convert import FolderSummary

__all__ = ["pack_hf"]

#: Options that only one of the two directions has.
_PACKING = ("codec", "level", "chunk_size", "sha256")
_RESTORING = ("max_bytes",)


@click.command("pack-hf", cls=Command)
@click.argument("folder", metavar="DIR")
@click.argument("out")
@click.option("--restore", is_flag=True, help="Restore what was packed: DIR is packed, OUT is not.")
@functools.partial(conversion_options, with_lossy=False, with_base=False)
@max_bytes_option
@command
def pack_hf(folder: str, out: str, restore: bool, lossy: str | None, **options: Any) -> None:
    """Pack the folder DIR of a Hugging Face model, with its weights in Zarr stores.

    All files are copied as they are, but for *.safetensors, with their indexes: OUT has model.zarr
    in the place of model.safetensors. With --restore, OUT gets every file of the original, byte for
    byte; with --no-verify, also files that were changed since, as they are now.
    """
    if lossy is not None:
        raise click.UsageError("what is packed is restored: --lossy does not go with pack-hf")
    foreign, direction = (_PACKING, "goes without") if restore else (_RESTORING, "goes with")
    drop_options(options, foreign, f"{direction} --restore")
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
        (_tell_changed if restore else _tell)(summary)


def _tell(summary: FolderSummary) -> None:
    """Say which stores there are, and what is as it was."""
    stores, kept = few(summary.stores, 4), counted(len(summary.kept), "file")
    say(printable(f"{counted(len(summary.stores), 'store')}: {stores}; {kept} as before"))
    for index, told in summary.apart.items():
        say(printable(f"{index}: {told}"))
    if summary.other_weights:
        names = few(summary.other_weights, 4)
        say(printable(f"not packed, since only safetensors are: {names}"))


def _tell_changed(summary: FolderSummary) -> None:
    """Say what was restored that is not as it was packed."""
    if summary.changed:
        names = few(summary.changed, 4)
        say(printable(f"changed since it was packed, and restored as it is now: {names}"))
