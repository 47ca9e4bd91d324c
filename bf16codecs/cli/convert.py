"""The commands for HDF5: `st2h5`, `h52st` and `bf16codecs plugin-path`."""

from __future__ import annotations

import click

from bf16codecs.cli.console import progress_bar
from bf16codecs.cli.options import (
    command,
    conversion_options,
    overwrite_option,
    quiet_option,
    report,
    threads_option,
)
from bf16codecs.convert.convert import hdf5_to_safetensors, safetensors_to_hdf5

__all__ = ["h52st", "plugin_path", "st2h5"]


@click.command()
@click.argument("src")
@click.argument("file")
@conversion_options
@command
def st2h5(
    src: str,
    file: str,
    codec: str,
    level: str | None,
    chunk_size: int,
    threads: int | None,
    verify: bool,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Convert SRC to an HDF5 file.

    SRC is a .safetensors file, a folder of shards, or a *.safetensors.index.json.
    """
    with progress_bar(quiet) as progress:
        summary = safetensors_to_hdf5(
            src,
            file,
            codec=codec,
            level=level,
            chunk_size=chunk_size,
            threads=threads,
            verify=verify,
            overwrite=overwrite,
            progress=progress,
        )
    if not quiet:
        report(src, file, summary, "verified" if verify else "")


@click.command()
@click.argument("file")
@click.argument("dst")
@threads_option
@overwrite_option
@quiet_option
@command
def h52st(file: str, dst: str, threads: int | None, overwrite: bool, quiet: bool) -> None:
    """Restore the original safetensors file(s) of an HDF5 FILE, byte for byte.

    DST is the file to make, or the folder if FILE holds several files.
    """
    with progress_bar(quiet) as progress:
        summary = hdf5_to_safetensors(
            file, dst, threads=threads, overwrite=overwrite, progress=progress
        )
    if not quiet:
        report(file, dst, summary, "restored")


@click.command()
@command
def plugin_path() -> None:
    """Print the folder of the HDF5 plugin, for HDF5_PLUGIN_PATH."""
    from bf16codecs.hdf5.filters import PLUGIN_PATH

    click.echo(PLUGIN_PATH)
