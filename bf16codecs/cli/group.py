"""The command `bf16codecs` and its subcommands."""

from __future__ import annotations

from typing import Any

import click

from bf16codecs._base.version import __version__
from bf16codecs.cli.analyze import analyze
from bf16codecs.cli.bench import bench
from bf16codecs.cli.bench_run import bench_run
from bf16codecs.cli.convert import drop_steps, orbax, rebase, undo_append
from bf16codecs.cli.demo import demo
from bf16codecs.cli.fleet import fleet
from bf16codecs.cli.hugging_face import pack_hf
from bf16codecs.cli.inspect import info, plugin_path, verify
from bf16codecs.cli.mount import mount
from bf16codecs.cli.view import view

__all__ = ["main"]


_version = click.version_option(__version__, prog_name="bf16codecs")


_CONVERTERS = ("h52st", "st2h5", "st2zarr", "zarr2st")


class _Group(click.Group):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the subcommand that arguments begin with."""
        if args[0] in _CONVERTERS:
            ctx.fail(f"{args[0]} is a command of its own: leave out {ctx.info_name}.")
        return super().resolve_command(ctx, args)


@click.group(cls=_Group)
@_version
def main() -> None:
    """Lossless compression of model weights in Zarr and HDF5."""


for _command in (
    analyze,
    bench,
    bench_run,
    demo,
    drop_steps,
    fleet,
    info,
    mount,
    orbax,
    pack_hf,
    plugin_path,
    rebase,
    undo_append,
    verify,
    view,
):
    main.add_command(_version(_command))
