"""The commands `info`, `verify` and `plugin-path`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from bf16codecs import convert as conversions
from bf16codecs._base.limits import Limits
from bf16codecs._base.messages import counted
from bf16codecs._base.names import SORTS
from bf16codecs._base.tables import format_size, printable
from bf16codecs.cli.console import progress_bar, say, show, show_json
from bf16codecs.cli.options import (
    Command,
    base_option,
    command,
    dask_option,
    is_source,
    is_store,
    json_option,
    max_bytes_option,
    max_read_option,
    on_dask,
    quiet_option,
    storage_option,
    threads_option,
)
from bf16codecs.cli.reports import counted_tensors, show_damage, summary_json, took
from bf16codecs.cli.tables import print_table
from bf16codecs.errors import BF16CodecsError

if TYPE_CHECKING:
    from bf16codecs.store.contents import Contents

__all__ = ["info", "plugin_path", "verify"]


@click.command(cls=Command)
@click.argument("store")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="file",
    show_default=True,
    help="Order of the tensors: as in the files, by name, or by descending size or ratio.",
)
@click.option(
    "--sizes",
    is_flag=True,
    help="Request the size of each chunk from a server that does not list sizes.",
)
@click.option(
    "--grids",
    is_flag=True,
    help="Request the head of each tensor's first chunk from a server, to find grids.",
)
@click.option(
    "--tensor",
    "tensors",
    multiple=True,
    metavar="NAME",
    help="Show only this tensor; repeatable.",
)
@click.option("--steps", is_flag=True, help="Show a table with the size of each step of a run.")
@storage_option
@max_read_option
@json_option
@command
def info(
    store: str,
    sort: str,
    sizes: bool,
    grids: bool,
    tensors: tuple[str, ...],
    steps: bool,
    storage_options: dict[str, Any] | None,
    max_bytes: int | None,
    as_json: bool,
) -> None:
    """Describe STORE: its kind, its sizes and its tensors.

    STORE is a model store, a run or a step of one, or a safetensors model.
    """
    from bf16codecs.store.contents import contents_of, with_grids
    from bf16codecs.store.opening import Opening, open_either

    opening = Opening(storage_options, Limits(max_bytes), with_base=False)
    with closing(open_either(store, opening)) as reader:
        contents = contents_of(reader, store, sizes, with_steps=steps)
        contents = with_grids(contents.only(tensors) if tensors else contents, reader, grids)
    if steps and contents.run is None:
        raise click.UsageError(f"--steps goes with runs, but {store} is one model")
    contents.sort(sort)
    if as_json:
        show_json(contents.to_json())
    else:
        _show_contents(contents, steps)


def _show_contents(contents: Contents, steps: bool) -> None:
    from bf16codecs.store.contents import file_lines, summary_lines, table_of, table_of_steps

    if not contents.is_whole:
        print_table(*table_of(contents))
        if steps:
            show("")
            print_table(*table_of_steps(contents))
        return
    for line in summary_lines(contents):
        say(printable(line))
    show("")
    print_table(*(table_of_steps if steps else table_of)(contents))
    for line in () if steps else file_lines(contents):
        say(printable(line))


@click.command(cls=Command)
@click.argument("store")
@click.argument("src", required=False)
@base_option
@storage_option
@threads_option
@max_bytes_option
@quiet_option
@json_option
@dask_option
@command
@on_dask
def verify(store: str, src: str | None, quiet: bool, as_json: bool, **options: Any) -> None:
    """Decode all of STORE, check every checksum, and compare with SRC if it is given.

    The command lists all damage.
    """
    if src is not None and is_source(store) and is_store(src):
        raise click.UsageError(f"{src} is the store: put it before {store}.")
    about: dict[str, Any] = {"store": store, "source": src}
    try:
        with progress_bar(quiet) as progress:
            summary = conversions.verify_store(store, src, progress=progress, **options)
    except BF16CodecsError as e:
        found = {"damage": e.damage, "differences": e.differences}
        if as_json and any(found.values()):
            lists = {key: [damage._asdict() for damage in each] for key, each in found.items()}
            show_json({**about, "intact": not e.damage, **lists})
        elif len(e.damage + e.differences) > 1 and not quiet:
            show_damage(e.damage + e.differences)
        raise
    if as_json:
        known = {"intact": True, "damage": [], "differences": []}
        show_json({**about, **known, **summary_json(summary)})
    elif not quiet:
        same = "" if src is None else f", identical to {printable(src)}"
        if src is not None and summary.loss is not None:
            same = f", identical to {printable(src)} in half precision"
        state = "intact" if summary.has_checksums else "readable, without checksums"
        objects = f" {counted(summary.objects, 'object')}," if summary.objects else ""
        say(
            f"{printable(store)}: {counted_tensors(summary)},{objects}"
            f" {format_size(summary.nbytes)}, {state}{same}, {took(summary)}"
        )
        if summary.loss is not None:
            say(summary.loss.described())


@click.command(cls=Command)
@command
def plugin_path() -> None:
    """Print the folder of the HDF5 plugin, for HDF5_PLUGIN_PATH."""
    from bf16codecs.hdf5.filters import PLUGIN_PATH

    show(PLUGIN_PATH)
