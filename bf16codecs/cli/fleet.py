"""The command `fleet`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bf16codecs._base.messages import counted
from bf16codecs._base.tables import Column, format_size, printable
from bf16codecs.cli.console import progress_bar, say, show_json
from bf16codecs.cli.convert import zarr_format_option
from bf16codecs.cli.options import (
    Command,
    command,
    conversion_options,
    dask_option,
    on_dask,
    target_option,
)
from bf16codecs.cli.reports import write_text
from bf16codecs.cli.runs import check_codec
from bf16codecs.cli.tables import Table
from bf16codecs.errors import ManyFilesWarning, StoreError
from bf16codecs.store.choice import CodecChoice

if TYPE_CHECKING:
    from bf16codecs.convert.fleet.plan import Conversion
    from bf16codecs.convert.fleet.running import ConversionResult

__all__ = ["fleet"]

_COLUMNS = (
    Column("store", is_text=True),
    Column("size", rank=2, least=8),
    Column("stored", rank=1, least=8),
    Column("ratio", least=5),
    Column("seconds", rank=3, least=7),
    Column("", is_text=True, least=9),
)
_STATES = {"there": "was there"}


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="SRC... DST")
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    help="Write the plan to FILE and stop: a line of CSV for each model, with its source, its store"
    " and its base.",
)
@click.option(
    "--find-bases",
    is_flag=True,
    help="Store models that come from one another, such as fine-tunes, as differences to one of"
    " them, which is found by a sample.",
)
@click.option(
    "--share",
    is_flag=True,
    help="Let chunks that several stores have be hard links to one file.",
)
@conversion_options(with_lossy=False)
@target_option
@zarr_format_option
@dask_option
@command
@on_dask
def fleet(
    paths: tuple[str, ...],
    plan_file: str | None,
    find_bases: bool,
    share: bool,
    lossy: str | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert all models in SRC, each to a Zarr store of its own in DST.

    SRC are models, or folders, which are searched for models; also in object stores. DST is a
    folder, or an address in an object store. A model llama/8b in SRC becomes DST/llama/8b.zarr.

    Stores that are complete stay: after an interruption, the same command does what is left. A
    model that fails does not end the others.

    `bf16codecs fleet PLAN.csv` does what a plan says, which --plan has written and you may have
    changed: names of stores, a base for a store, which may be another store of the plan, models to
    leave out.
    """
    from bf16codecs.convert.fleet.plan import plan_text
    from bf16codecs.convert.fleet.running import convert_fleet

    if lossy is not None:
        raise click.UsageError("lossy stores are made one by one: use st2zarr --lossy")
    if find_bases:
        check_codec(options, CodecChoice.check_difference)
    conversions = _planned(paths, find_bases, options)
    if plan_file is not None:
        write_text(plan_text(conversions), plan_file)
        if not (quiet or plan_file == "-"):
            say(f"{printable(plan_file)}: {counted(len(conversions), 'model')}")
        return
    if quiet:  # until the command ends
        warnings.simplefilter("ignore", ManyFilesWarning)
    options["zarr_format"] = int(options["zarr_format"])
    results = []
    shows_rows = not (quiet or as_json)
    names = [[printable(each.store)] for each in conversions]
    table = Table(_COLUMNS, [[*name, *[""] * 5] for name in names]) if shows_rows else None
    with progress_bar(quiet) as progress:
        for result in convert_fleet(conversions, share=share, progress=progress, **options):
            results.append(result)
            if table is not None:
                table.row(_cells(result))
    if table is not None:
        table.end()
    _report(results, len(conversions), quiet, as_json)


def _planned(paths: Sequence[str], find_bases: bool, options: dict[str, Any]) -> list[Conversion]:
    """Find the models, or read a plan; take the base from the options of conversions."""
    from bf16codecs.convert.fleet.plan import parse_plan, plan_fleet

    base = options.pop("base")
    if len(paths) == 1 and paths[0].endswith(".csv"):
        if base is not None or find_bases:
            name = "--find-bases" if find_bases else "--base"
            raise click.UsageError(f"{name} goes with SRC: a plan has a base for each store")
        return parse_plan(Path(paths[0]).read_text(encoding="utf-8"), paths[0])
    if len(paths) == 1:
        raise click.UsageError(f"Missing argument 'DST': where to make the stores of {paths[0]}.")
    *sources, target = paths
    storage_options = options["storage_options"]
    return plan_fleet(
        sources, target, base=base, find_bases=find_bases, storage_options=storage_options
    )


def _cells(result: ConversionResult) -> list[str]:
    name, state = printable(result.conversion.store), _STATES.get(result.state, result.state)
    if result.state == "failed":
        return [name, "", "", "", f"{result.seconds:.1f}", state]
    ratio = result.nbytes / max(1, result.stored_nbytes)
    sizes = [format_size(result.nbytes), format_size(result.stored_nbytes)]
    return [name, *sizes, f"{ratio:.3f}", f"{result.seconds:.1f}", state]


def _report(results: Sequence[ConversionResult], planned: int, quiet: bool, as_json: bool) -> None:
    """Print a summary, and why models failed; raise StoreError if some have."""
    states = Counter(result.state for result in results)
    failed = [result for result in results if result.state == "failed"]
    nbytes, stored = (
        sum(getattr(result, name) for result in results) for name in ("nbytes", "stored_nbytes")
    )
    if as_json:
        models = [
            {**asdict(result.conversion), **asdict(result), "conversion": None}
            for result in results
        ]
        for model in models:
            del model["conversion"]
        sizes = {"nbytes": nbytes, "stored_nbytes": stored}
        show_json({"models": models, **dict(states), **sizes})
    elif not quiet:
        for result in failed:
            source = result.conversion.source
            say(printable(f"{source}: {result.note.removeprefix(f'{source}: ')}"))
        was_there = f", {states['there']} were there" if states["there"] else ""
        shared_nbytes = sum(result.shared_nbytes for result in results)
        shared = f", {format_size(shared_nbytes)} of it in shared files" if shared_nbytes else ""
        lost = f", {len(failed)} failed" if failed else ""
        say(
            f"{counted(planned, 'model')}: {states['converted']} converted{was_there}{lost};"
            f" {format_size(nbytes)} -> {format_size(stored)}"
            f" (ratio {nbytes / max(1, stored):.3f}){shared}"
        )
    if failed:
        first = failed[0]
        source = first.conversion.source
        reason = first.note.removeprefix(f"{source}: ")
        raise StoreError(
            f"{len(failed)} of {counted(planned, 'model')} failed, the first: {source}: {reason}"
        )
