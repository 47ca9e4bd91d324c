"""The command `bf16codecs` and its subcommands."""

from __future__ import annotations

import click

from bf16codecs._base.version import __version__
from bf16codecs.cli.analyze import analyze
from bf16codecs.cli.bench import bench
from bf16codecs.cli.bench_run import bench_run
from bf16codecs.cli.convert import orbax, rebase, undo_append
from bf16codecs.cli.demo import demo
from bf16codecs.cli.hugging_face import pack_hf
from bf16codecs.cli.inspect import info, plugin_path, verify
from bf16codecs.cli.view import view

__all__ = ["main"]


_version = click.version_option(__version__, prog_name="bf16codecs")


@click.group()
@_version
def main() -> None:
    """Lossless compression of model weights in Zarr and HDF5."""


for _command in (
    analyze,
    bench,
    bench_run,
    demo,
    info,
    orbax,
    pack_hf,
    plugin_path,
    rebase,
    undo_append,
    verify,
    view,
):
    main.add_command(_version(_command))
